//! The promises about figures, and whether a run kept them.

use super::figure::Figure;
use crate::RunVerdict;

/// One promise about one figure.
struct Promise {
    figure: &'static str,
    of: Part,
    bound: Bound,
}

/// The number of a figure that a promise is about.
#[derive(Debug, Clone, Copy)]
enum Part {
    P50,
    Ratio,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

const PROMISES: &[Promise] = &[
    Promise { figure: "warm_turn", of: Part::Ratio, bound: Bound::AtMost(5.0) },
    Promise { figure: "turn_cpu_us", of: Part::P50, bound: Bound::AtMost(90.0) },
    Promise { figure: "turn_cpu_traced_us", of: Part::Ratio, bound: Bound::AtMost(1.15) },
    Promise { figure: "first_answer_zygote_np", of: Part::P50, bound: Bound::AtMost(10.0) },
    Promise { figure: "first_answer_pool_np", of: Part::P50, bound: Bound::AtMost(3.0) },
    Promise { figure: "first_answer_pool_np_own", of: Part::P50, bound: Bound::AtMost(4.0) },
    Promise { figure: "fork_live", of: Part::P50, bound: Bound::AtMost(25.0) },
    Promise { figure: "idle_session_all_mib", of: Part::P50, bound: Bound::AtMost(4.0) },
    Promise { figure: "sessions_answering", of: Part::Ratio, bound: Bound::AtLeast(1.0) },
    Promise { figure: "turns_per_s_100", of: Part::Ratio, bound: Bound::AtLeast(0.5) },
];

/// Whether the figure has a promise.
pub fn is_promised(figure: &str) -> bool {
    PROMISES.iter().any(|promise| promise.figure == figure)
}

/// Prints every promise with the measured value. A promise without a measured figure is not kept.
pub fn judge(figures: &[Figure]) -> RunVerdict {
    println!();
    let mut verdict = RunVerdict::Good;
    for promise in PROMISES {
        let measured = promise.measured(figures);
        let kept = measured.is_some_and(|value| promise.bound.holds(value));
        if !kept {
            verdict = RunVerdict::Bad;
        }
        println!("{}", promise.line(measured, kept));
    }
    verdict
}

impl Promise {
    fn measured(&self, figures: &[Figure]) -> Option<f64> {
        let figure = figures.iter().find(|figure| figure.figure == self.figure)?;
        match self.of {
            Part::P50 => figure.p50,
            Part::Ratio => figure.ratio,
        }
    }

    fn line(&self, measured: Option<f64>, kept: bool) -> String {
        let part = match self.of {
            Part::P50 => "p50",
            Part::Ratio => "ratio",
        };
        let bound = match self.bound {
            Bound::AtMost(most) => format!("at most {most}"),
            Bound::AtLeast(least) => format!("at least {least}"),
        };
        let measured = measured.map_or("not measured".to_owned(), |value| format!("{value:.3}"));
        let word = if kept { "kept" } else { "NOT KEPT" };
        format!("{:<26} {part:<5} {bound:<13} {measured:>12}  {word}", self.figure)
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_at(p50: f64) -> Vec<Figure> {
        let of = |promise: &Promise| Figure::of(promise.figure, "", &[p50]).beside(&[p50]);
        PROMISES.iter().map(of).collect()
    }

    #[test]
    fn a_promise_is_kept_at_its_bound_and_not_beyond_it() {
        assert_eq!(judge(&all_at(3.0)), RunVerdict::Good);
        assert_eq!(judge(&all_at(3.1)), RunVerdict::Bad);
    }

    #[test]
    fn a_promise_without_a_figure_is_not_kept() {
        assert_eq!(judge(&all_at(1.0)[1..]), RunVerdict::Bad);
        assert_eq!(judge(&[]), RunVerdict::Bad);
    }
}

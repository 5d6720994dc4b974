//! A figure: a measured distribution and its baseline, as a table row or as JSON.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

/// One figure. Times are in milliseconds. A value that does not apply is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    pub figure: String,
    pub unit: String,
    pub n: usize,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub baseline_p50: Option<f64>,
    /// `p50 / baseline_p50`.
    pub ratio: Option<f64>,
}

/// The first line of the table.
pub const HEADING: &str = "figure                                   unit        n        p50        p95   baseline    ratio";

impl Figure {
    /// A figure of times, without a baseline.
    pub fn of_times(figure: &str, times: &[Duration]) -> Self {
        Self::of(figure, "ms", &millis(times))
    }

    /// A figure of any samples, without a baseline.
    pub fn of(figure: &str, unit: &str, samples: &[f64]) -> Self {
        Self {
            figure: figure.to_owned(),
            unit: unit.to_owned(),
            n: samples.len(),
            p50: percentile(samples, 50.0),
            p95: percentile(samples, 95.0),
            baseline_p50: None,
            ratio: None,
        }
    }

    /// Adds a baseline that was measured in the same run.
    #[must_use]
    pub fn beside(mut self, baseline: &[f64]) -> Self {
        self.baseline_p50 = percentile(baseline, 50.0);
        self.ratio = self.p50.zip(self.baseline_p50).map(|(p50, base)| p50 / base);
        self
    }

    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    pub fn row(&self) -> String {
        format!(
            "{:<40} {:<6} {:>6} {:>10} {:>10} {:>10} {:>8}",
            self.figure,
            self.unit,
            self.n,
            shown(self.p50),
            shown(self.p95),
            shown(self.baseline_p50),
            self.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        )
    }
}

/// Times as milliseconds.
pub fn millis(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| time.as_secs_f64() * 1000.0).collect()
}

fn shown(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.4}"))
}

/// The sample that `percent` of all samples do not exceed (nearest rank). `None` without samples.
pub fn percentile(samples: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_percentile_is_a_sample_that_was_taken() {
        let samples: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!(percentile(&samples, 50.0), Some(10.0));
        assert_eq!(percentile(&samples, 95.0), Some(19.0));
        assert_eq!(percentile(&[7.0], 95.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn a_figure_prints_the_same_as_a_row_and_as_json() {
        let figure = Figure::of("warm_turn", "ms", &[0.1, 0.2, 0.4]);
        expect![[r#"{"figure":"warm_turn","unit":"ms","n":3,"p50":0.2,"p95":0.4,"baseline_p50":null,"ratio":null}"#]]
            .assert_eq(&figure.json().unwrap());
        assert_eq!(figure.row().len(), HEADING.len());
    }
}

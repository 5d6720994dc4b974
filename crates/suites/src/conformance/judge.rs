//! What a run shows, given what is known of each scenario: a pure function from checks and the list
//! to verdicts. The list has to stay true, so an entry that is no longer needed is a failure too.

use std::collections::BTreeSet;

use serde::Serialize;

use super::results::Check;
use super::scenarios::{SCENARIOS, Standing, applies, standing_of};

/// One scenario in one round of a suite.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// `stable`, `alpha 2026-07-28`, ...
    pub round: String,
    pub scenario: String,
    pub verdict: Verdict,
    /// Checks that were put to the test, and those of them that passed.
    pub tried: usize,
    pub passed: usize,
    /// What is wrong, or why the scenario does not apply.
    pub words: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Passed,
    Failed,
    DoesNotApply,
    /// The list does not know the scenario.
    Unknown,
}

impl Row {
    pub fn is_bad(&self) -> bool {
        matches!(self.verdict, Verdict::Failed | Verdict::Unknown)
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }
}

/// The verdict about one scenario; no checks mean that the suite left none.
pub fn judge(round: &str, scenario: &str, checks: Option<&[Check]>) -> Row {
    let standing = standing_of(scenario);
    let (verdict, words) = match (standing, checks) {
        (None, _) => (Verdict::Unknown, "not in the list".to_owned()),
        (Some(_), None) => (Verdict::Failed, "the suite left no result".to_owned()),
        (Some(Standing::DoesNotApply(reason)), Some(_)) => {
            (Verdict::DoesNotApply, reason.to_owned())
        }
        (Some(Standing::Applies), Some(checks)) => weigh(checks, &[]),
        (Some(Standing::AppliesBut(excepted)), Some(checks)) => weigh(checks, excepted),
    };
    let tried = checks.unwrap_or_default().iter().filter(|check| check.is_tried());
    let (tried, bad): (Vec<_>, Vec<_>) = tried.partition(|check| !check.is_bad());
    Row {
        round: round.to_owned(),
        scenario: scenario.to_owned(),
        verdict,
        tried: tried.len() + bad.len(),
        passed: tried.len(),
        words,
    }
}

fn weigh(checks: &[Check], excepted: &[(&str, &str)]) -> (Verdict, String) {
    let is_excepted = |check: &Check| excepted.iter().any(|(id, _)| *id == check.id);
    let bad: Vec<&Check> =
        checks.iter().filter(|check| check.is_bad() && !is_excepted(check)).collect();
    if !bad.is_empty() {
        let complaints = bad.iter().map(|check| {
            format!("{}: {}", check.id, check.message.as_deref().unwrap_or("no words"))
        });
        return (Verdict::Failed, complaints.collect::<Vec<_>>().join("; "));
    }
    if !checks.iter().any(|check| check.is_tried() && !is_excepted(check)) {
        // At some revision a scenario may have nothing but what does not apply.
        let first = checks.iter().find(|check| check.is_bad()).map(|check| &*check.id);
        return match excepted.iter().find(|(id, _)| Some(*id) == first) {
            Some((_, reason)) => (Verdict::DoesNotApply, (*reason).to_owned()),
            None => (Verdict::Failed, "nothing was put to the test".to_owned()),
        };
    }
    let seen: BTreeSet<&str> =
        checks.iter().filter(|check| check.is_bad()).map(|check| &*check.id).collect();
    let words = match seen.is_empty() {
        true => String::new(),
        false => format!("without {}", seen.into_iter().collect::<Vec<_>>().join(", ")),
    };
    (Verdict::Passed, words)
}

/// Entries of the list that this run shows to be wrong: they say that something does not apply,
/// and it passed wherever it was tried.
pub fn stale<'r>(results: impl Iterator<Item = (&'r str, &'r [Check])> + Clone) -> Vec<String> {
    let names: BTreeSet<&str> = results.clone().map(|(name, _)| name).collect();
    let mut stale = Vec::new();
    for name in names {
        let mine = results.clone().filter(|(other, _)| *other == name);
        let checks: Vec<&Check> = mine.flat_map(|(_, checks)| checks).collect();
        let passes = |checks: &[&Check]| {
            checks.iter().any(|check| check.is_tried()) && !checks.iter().any(|c| c.is_bad())
        };
        match standing_of(name) {
            Some(Standing::DoesNotApply(_)) if passes(&checks) => {
                stale.push(format!("{name} is said not to apply, and passes"));
            }
            Some(Standing::AppliesBut(excepted)) => {
                for (id, _) in excepted {
                    let of_id: Vec<&Check> =
                        checks.iter().copied().filter(|check| check.id == *id).collect();
                    if passes(&of_id) {
                        stale.push(format!("{name}: {id} is said not to apply, and passes"));
                    }
                }
            }
            _ => {}
        }
    }
    stale
}

/// Entries of the list that a whole run does not bear out: no suite has the scenario, or it is said
/// to apply and passes nowhere.
pub fn hollow(rows: &[Row]) -> Vec<String> {
    let mut hollow = Vec::new();
    for (name, _) in SCENARIOS {
        let mut verdicts = rows.iter().filter(|row| row.scenario == *name).map(|row| row.verdict);
        let Some(first) = verdicts.next() else {
            hollow.push(format!("{name} is in the list, and in no suite"));
            continue;
        };
        let nowhere = first == Verdict::DoesNotApply && verdicts.all(|verdict| verdict == first);
        if applies(name) && nowhere {
            hollow.push(format!("{name} is said to apply, and does so nowhere"));
        }
    }
    hollow
}

#[cfg(test)]
mod tests {
    use super::super::results::parse;
    use super::*;

    /// `a+ b- c~`: checks that passed, failed, were skipped.
    fn checks(text: &str) -> Vec<Check> {
        let one = |word: &str| {
            let (id, sign) = word.split_at(word.len() - 1);
            let status = match sign {
                "+" => "SUCCESS",
                "-" => "FAILURE",
                "!" => "WARNING",
                _ => "SKIPPED",
            };
            format!(r#"{{"id": "{id}", "status": "{status}"}}"#)
        };
        let all: Vec<String> = text.split_whitespace().map(one).collect();
        parse(&format!("[{}]", all.join(","))).unwrap()
    }

    #[test]
    fn a_scenario_passes_when_what_applies_of_it_does() {
        let excepted = [("b", "we have none")];
        for (text, verdict, words) in [
            ("a+", Verdict::Passed, ""),
            ("a+ b-", Verdict::Passed, "without b"),
            ("a+ b- b+", Verdict::Passed, "without b"),
            ("a+ c~", Verdict::Passed, ""),
            ("a- b-", Verdict::Failed, "a: no words"),
            ("a!", Verdict::Failed, "a: no words"),
            ("b-", Verdict::DoesNotApply, "we have none"),
            ("b+", Verdict::Failed, "nothing was put to the test"),
            ("a~", Verdict::Failed, "nothing was put to the test"),
            ("wire-schema-valid+", Verdict::Failed, "nothing was put to the test"),
            ("a+ wire-schema-valid-", Verdict::Failed, "wire-schema-valid: no words"),
        ] {
            assert_eq!(weigh(&checks(text), &excepted), (verdict, words.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_scenario_that_the_list_does_not_know_is_bad_whatever_it_says() {
        let row = judge("stable", "news", Some(&checks("a+")));
        assert_eq!((row.verdict, row.is_bad()), (Verdict::Unknown, true));
    }

    #[test]
    fn a_scenario_without_a_result_is_bad() {
        let row = judge("stable", "ping", None);
        assert_eq!((row.verdict, row.tried), (Verdict::Failed, 0));
        assert!(!judge("stable", "ping", Some(&checks("ping+"))).is_bad());
    }

    #[test]
    fn what_is_said_not_to_apply_and_passes_everywhere_is_stale() {
        let name = "completion-complete";
        assert!(matches!(standing_of(name), Some(Standing::DoesNotApply(_))));
        let found = |rounds: &[&str]| {
            let rounds: Vec<Vec<Check>> = rounds.iter().map(|text| checks(text)).collect();
            stale(rounds.iter().map(|checks| (name, &checks[..]))).len()
        };
        assert_eq!(found(&["x+"]), 1);
        assert_eq!(found(&["x+", "x-"]), 0);
        assert_eq!(found(&["x~ wire-schema-valid+"]), 0);
    }

    #[test]
    fn a_single_check_that_is_excepted_and_passes_is_stale() {
        let (name, id) = ("caching", "sep-2549-prompts-list-caching-hints");
        let found = |text: &str| stale([(name, &checks(text)[..])].into_iter()).len();
        assert_eq!(found(&format!("{id}-")), 0);
        assert_eq!(found(&format!("{id}+")), 1);
        assert_eq!(found("other+"), 0);
    }

    #[test]
    fn the_list_has_no_scenario_that_is_nowhere() {
        let row = |name: &str, verdict| Row { verdict, ..judge("stable", name, None) };
        let mut rows: Vec<Row> = SCENARIOS
            .iter()
            .map(|(name, _)| match applies(name) {
                true => row(name, Verdict::Passed),
                false => row(name, Verdict::DoesNotApply),
            })
            .collect();
        assert_eq!(hollow(&rows), [""; 0]);
        rows[0].verdict = Verdict::DoesNotApply;
        rows.retain(|row| row.scenario != "ping");
        assert_eq!(
            hollow(&rows),
            [
                "server-initialize is said to apply, and does so nowhere",
                "ping is in the list, and in no suite"
            ]
        );
    }
}

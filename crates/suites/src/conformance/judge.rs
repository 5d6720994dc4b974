//! Judges the results of a run against the list of scenarios. All functions are pure. An entry of the list
//! that the run disproves is a failure too, so that the list stays right.

use std::collections::BTreeSet;

use serde::Serialize;

use super::results::Check;
use super::scenarios::{SCENARIOS, Standing, applies, standing_of};

/// One scenario in one round of a suite.
#[derive(Debug, Clone, Serialize)]
pub struct ScenarioRow {
    /// `stable`, `alpha 2026-07-28`, ...
    pub round: String,
    pub scenario: String,
    pub verdict: ScenarioVerdict,
    /// The number of checks that tested something, and how many of them passed.
    pub tried: usize,
    pub passed: usize,
    /// What failed, or why the scenario does not apply.
    pub words: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScenarioVerdict {
    Passed,
    Failed,
    DoesNotApply,
    /// The scenario is missing in the list.
    Unknown,
}

impl ScenarioRow {
    pub fn is_bad(&self) -> bool {
        matches!(self.verdict, ScenarioVerdict::Failed | ScenarioVerdict::Unknown)
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }
}

/// The verdict on one scenario. `checks` is `None` if the suite wrote no result.
pub fn judge(round: &str, scenario: &str, checks: Option<&[Check]>) -> ScenarioRow {
    let standing = standing_of(scenario);
    let (verdict, words) = match (standing, checks) {
        (None, _) => (ScenarioVerdict::Unknown, "missing in scenarios.rs".to_owned()),
        (Some(_), None) => (ScenarioVerdict::Failed, "the suite wrote no result".to_owned()),
        (Some(Standing::DoesNotApply(reason)), Some(_)) => {
            (ScenarioVerdict::DoesNotApply, reason.to_owned())
        }
        (Some(Standing::Applies), Some(checks)) => judge_checks(checks, &[]),
        (Some(Standing::AppliesBut(excepted)), Some(checks)) => judge_checks(checks, excepted),
    };
    let tried = checks.unwrap_or_default().iter().filter(|check| check.is_tried());
    let (tried, bad): (Vec<_>, Vec<_>) = tried.partition(|check| !check.is_bad());
    ScenarioRow {
        round: round.to_owned(),
        scenario: scenario.to_owned(),
        verdict,
        tried: tried.len() + bad.len(),
        passed: tried.len(),
        words,
    }
}

fn judge_checks(checks: &[Check], excepted: &[(&str, &str)]) -> (ScenarioVerdict, String) {
    let is_excepted = |check: &Check| excepted.iter().any(|(id, _)| *id == check.id);
    let bad: Vec<&Check> =
        checks.iter().filter(|check| check.is_bad() && !is_excepted(check)).collect();
    if !bad.is_empty() {
        let complaints = bad.iter().map(|check| {
            format!("{}: {}", check.id, check.message.as_deref().unwrap_or("no message"))
        });
        return (ScenarioVerdict::Failed, complaints.collect::<Vec<_>>().join("; "));
    }
    if !checks.iter().any(|check| check.is_tried() && !is_excepted(check)) {
        // At some revisions a scenario has only checks that do not apply.
        let first = checks.iter().find(|check| check.is_bad()).map(|check| &*check.id);
        return match excepted.iter().find(|(id, _)| Some(*id) == first) {
            Some((_, reason)) => (ScenarioVerdict::DoesNotApply, (*reason).to_owned()),
            None => (ScenarioVerdict::Failed, "no check tested anything".to_owned()),
        };
    }
    let seen: BTreeSet<&str> =
        checks.iter().filter(|check| check.is_bad()).map(|check| &*check.id).collect();
    let words = match seen.is_empty() {
        true => String::new(),
        false => format!("without {}", seen.into_iter().collect::<Vec<_>>().join(", ")),
    };
    (ScenarioVerdict::Passed, words)
}

/// Entries of the list that this run disproves: they say that a scenario or check does not apply, but it
/// passed in every round.
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
                stale.push(format!("{name} is listed as not applicable, but passes"));
            }
            Some(Standing::AppliesBut(excepted)) => {
                for (id, _) in excepted {
                    let of_id: Vec<&Check> =
                        checks.iter().copied().filter(|check| check.id == *id).collect();
                    if passes(&of_id) {
                        stale.push(format!("{name}: {id} is listed as not applicable, but passes"));
                    }
                }
            }
            _ => {}
        }
    }
    stale
}

/// Entries of the list that a complete run does not confirm: no suite has the scenario, or it is listed as
/// applicable and applies in no round.
pub fn unconfirmed(rows: &[ScenarioRow]) -> Vec<String> {
    let mut unconfirmed = Vec::new();
    for (name, _) in SCENARIOS {
        let mut verdicts = rows.iter().filter(|row| row.scenario == *name).map(|row| row.verdict);
        let Some(first) = verdicts.next() else {
            unconfirmed.push(format!("{name} is in the list, but in no suite"));
            continue;
        };
        let nowhere =
            first == ScenarioVerdict::DoesNotApply && verdicts.all(|verdict| verdict == first);
        if applies(name) && nowhere {
            unconfirmed.push(format!("{name} is listed as applicable, but applies in no round"));
        }
    }
    unconfirmed
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
            ("a+", ScenarioVerdict::Passed, ""),
            ("a+ b-", ScenarioVerdict::Passed, "without b"),
            ("a+ b- b+", ScenarioVerdict::Passed, "without b"),
            ("a+ c~", ScenarioVerdict::Passed, ""),
            ("a- b-", ScenarioVerdict::Failed, "a: no message"),
            ("a!", ScenarioVerdict::Failed, "a: no message"),
            ("b-", ScenarioVerdict::DoesNotApply, "we have none"),
            ("b+", ScenarioVerdict::Failed, "no check tested anything"),
            ("a~", ScenarioVerdict::Failed, "no check tested anything"),
            ("wire-schema-valid+", ScenarioVerdict::Failed, "no check tested anything"),
            ("a+ wire-schema-valid-", ScenarioVerdict::Failed, "wire-schema-valid: no message"),
        ] {
            assert_eq!(
                judge_checks(&checks(text), &excepted),
                (verdict, words.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn a_scenario_that_the_list_does_not_know_is_bad_whatever_it_says() {
        let row = judge("stable", "news", Some(&checks("a+")));
        assert_eq!((row.verdict, row.is_bad()), (ScenarioVerdict::Unknown, true));
    }

    #[test]
    fn a_scenario_without_a_result_is_bad() {
        let row = judge("stable", "ping", None);
        assert_eq!((row.verdict, row.tried), (ScenarioVerdict::Failed, 0));
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
        let row = |name: &str, verdict| ScenarioRow { verdict, ..judge("stable", name, None) };
        let mut rows: Vec<ScenarioRow> = SCENARIOS
            .iter()
            .map(|(name, _)| match applies(name) {
                true => row(name, ScenarioVerdict::Passed),
                false => row(name, ScenarioVerdict::DoesNotApply),
            })
            .collect();
        assert_eq!(unconfirmed(&rows), [""; 0]);
        rows[0].verdict = ScenarioVerdict::DoesNotApply;
        rows.retain(|row| row.scenario != "ping");
        assert_eq!(
            unconfirmed(&rows),
            [
                "server-initialize is listed as applicable, but applies in no round",
                "ping is in the list, but in no suite"
            ]
        );
    }
}

//! The table of a run: one line per scenario and round.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::judge::{ScenarioRow, ScenarioVerdict};

/// The most characters of a reason in the table. `docs/mcp-conformance.md` has the complete reason.
const WORDS_MAX: usize = 90;

pub fn table(rows: &[ScenarioRow], took: Duration) -> String {
    let mut text = String::new();
    let width = |of: fn(&ScenarioRow) -> &str| {
        rows.iter().map(|row| of(row).chars().count()).max().unwrap_or_default()
    };
    let (scenario, round) = (width(|row| &row.scenario), width(|row| &row.round));
    for row in rows {
        let words: String = row.words.chars().take(WORDS_MAX).collect();
        let line = format!(
            "{:<scenario$} {:<round$} {:<14} {:>2}/{:<2} {words}",
            row.scenario,
            row.round,
            word(row.verdict),
            row.passed,
            row.tried,
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(word(row.verdict)).or_default() += 1;
    }
    let checks: usize = rows
        .iter()
        .filter(|row| row.verdict == ScenarioVerdict::Passed)
        .map(|row| row.passed)
        .sum();
    let counts: Vec<String> =
        counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    let _ = writeln!(text, "took {:.1} s", took.as_secs_f64());
    let _ = writeln!(text, "{}; {checks} checks in scenarios that passed", counts.join(", "));
    text
}

pub fn word(verdict: ScenarioVerdict) -> &'static str {
    match verdict {
        ScenarioVerdict::Passed => "passed",
        ScenarioVerdict::Failed => "FAILED",
        ScenarioVerdict::DoesNotApply => "does not apply",
        ScenarioVerdict::Unknown => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_table_says_what_came_of_each_scenario_and_how_many_there_were() {
        let row = |scenario: &str, verdict, words: &str| ScenarioRow {
            round: "alpha 2026-07-28".to_owned(),
            scenario: scenario.to_owned(),
            verdict,
            tried: 3,
            passed: 2,
            words: words.to_owned(),
        };
        let rows = [
            row("ping", ScenarioVerdict::Passed, ""),
            row("tools-call-audio", ScenarioVerdict::DoesNotApply, "code makes no sound"),
            row("caching", ScenarioVerdict::Failed, "x: no ttlMs"),
        ];
        expect![[r#"
            ping             alpha 2026-07-28 passed          2/3
            tools-call-audio alpha 2026-07-28 does not apply  2/3  code makes no sound
            caching          alpha 2026-07-28 FAILED          2/3  x: no ttlMs
            took 1.5 s
            1 FAILED, 1 does not apply, 1 passed; 2 checks in scenarios that passed
        "#]]
        .assert_eq(&table(&rows, Duration::from_millis(1500)));
    }
}

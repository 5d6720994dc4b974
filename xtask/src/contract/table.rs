//! The table of the contract as text: one row per line of the contract.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::Tally;
use super::lines::ContractLine;

/// The most characters of a sentence in the table.
const SENTENCE_CHARS_MAX: usize = 78;

#[derive(Debug, PartialEq, Eq)]
pub struct ContractRow {
    pub number: u8,
    pub state: LineState,
    sentence: String,
    /// The number of runs in which the line passed, and of those in which it ran.
    passed: u32,
    ran: u32,
    time: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineState {
    Passed,
    /// A test failed in at least one run.
    Failed,
    /// No test failed, but in at least one run a test could not run on this machine.
    Skipped,
    /// The line has no test, or its tests did not run every time.
    Missing,
}

pub fn rows(lines: &[ContractLine], tallies: &BTreeMap<u8, Tally>, runs: u32) -> Vec<ContractRow> {
    let row = |line: &ContractLine| {
        let tally = tallies.get(&line.number).cloned().unwrap_or_default();
        let state = match (tally.passed, tally.skipped, tally.failed) {
            (passed, 0, 0) if passed == runs => LineState::Passed,
            (_, 1.., 0) => LineState::Skipped,
            (_, 0, 0) => LineState::Missing,
            _ => LineState::Failed,
        };
        ContractRow {
            number: line.number,
            state,
            sentence: shortened(&line.sentence),
            passed: tally.passed,
            ran: tally.passed + tally.skipped + tally.failed,
            time: tally.time,
        }
    };
    lines.iter().map(row).collect()
}

pub fn render(rows: &[ContractRow], runs: u32) -> String {
    let mut text = String::new();
    for row in rows {
        let state = match row.state {
            LineState::Passed => "passed",
            LineState::Failed if row.passed > 0 => "FLAKY",
            LineState::Failed => "FAILED",
            LineState::Skipped => "skipped",
            LineState::Missing => "missing",
        };
        let runs = if runs > 1 { format!(" {:>2}/{runs}", row.passed) } else { String::new() };
        let time = match row.ran {
            0 => " ".repeat(9),
            _ => format!("{:>7.2} s", row.time.as_secs_f64()),
        };
        writeln!(text, "{:02}  {state:<7}{runs} {time}  {}", row.number, row.sentence)
            .expect("a string takes all text");
    }
    text
}

fn shortened(sentence: &str) -> String {
    if sentence.chars().count() <= SENTENCE_CHARS_MAX {
        return sentence.to_owned();
    }
    let head: String = sentence.chars().take(SENTENCE_CHARS_MAX - 3).collect();
    format!("{}...", head.trim_end())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_line_is_passed_failed_flaky_skipped_or_missing() {
        let line = |number, sentence: &str| ContractLine { number, sentence: sentence.to_owned() };
        let lines = [
            line(1, "First."),
            line(2, "Second."),
            line(3, "Third."),
            line(4, "Fourth."),
            line(50, "Later."),
        ];
        let tally = |passed, skipped, failed| Tally {
            passed,
            skipped,
            failed,
            time: Duration::from_millis(1200),
            ..Tally::default()
        };
        let tallies =
            [(1, tally(5, 0, 0)), (2, tally(4, 0, 1)), (3, tally(0, 0, 5)), (4, tally(4, 1, 0))]
                .into();
        let text = render(&rows(&lines, &tallies, 5), 5);
        expect![[r"
            01  passed   5/5    1.20 s  First.
            02  FLAKY    4/5    1.20 s  Second.
            03  FAILED   0/5    1.20 s  Third.
            04  skipped  4/5    1.20 s  Fourth.
            50  missing  0/5            Later.
        "]]
        .assert_eq(&text);
    }
}

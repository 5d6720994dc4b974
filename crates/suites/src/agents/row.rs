//! The result of one check of one client, and the table of all results.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::ClientUnderTest;

#[derive(Debug, Serialize)]
pub struct CheckRow {
    pub client: ClientUnderTest,
    pub version: &'static str,
    pub check: String,
    pub passed: bool,
    /// What was found instead of the expected. Empty if the check passed.
    pub words: String,
    pub seconds: f64,
}

impl CheckRow {
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }

    pub fn complaint(&self) -> String {
        format!("failed: {} {}: {}: {}", self.client, self.version, self.check, self.words)
    }
}

/// All checks of a run in their order. The columns are as wide as their longest text.
pub fn table(rows: &[CheckRow], took: Duration) -> String {
    let mut text = String::new();
    let width = rows.iter().map(|row| row.check.chars().count()).max().unwrap_or(0);
    for row in rows {
        let state = if row.passed { "passed" } else { "FAILED" };
        let client = format!("{} {}", row.client, row.version);
        let _ = writeln!(text, "{client:<24} {:<width$} {state} {:>6.1} s", row.check, row.seconds);
    }
    let failed = rows.iter().filter(|row| !row.passed).count();
    let _ = writeln!(text, "took {:.1} s", took.as_secs_f64());
    let _ = writeln!(text, "{} passed, {failed} failed", rows.len() - failed);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_which_check_failed_and_how_many() {
        let row = |check: &str, passed| CheckRow {
            client: ClientUnderTest::Codex,
            version: "1.2.3",
            check: check.to_owned(),
            passed,
            words: "saw 41".to_owned(),
            seconds: 1.25,
        };
        let rows = [row("a", true), row("longer", false)];
        assert_eq!(
            table(&rows, Duration::from_secs(3)),
            "codex 1.2.3              a      passed    1.2 s\n\
             codex 1.2.3              longer FAILED    1.2 s\n\
             took 3.0 s\n1 passed, 1 failed\n"
        );
        assert_eq!(rows[1].complaint(), "failed: codex 1.2.3: longer: saw 41");
    }
}

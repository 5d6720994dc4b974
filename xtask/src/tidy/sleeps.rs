//! Sleeps: code that ships waits for an event, not for time to pass. `xtask/sleeps.txt` lists the exceptions
//! with reasons.

use anyhow::Result;

use super::exceptions::{self, Exceptions};
use super::finding::Finding;
use crate::workspace::SourceFile;

/// The list of exceptions: `path reason`, one per line. `#` starts a comment.
const LIST: &str = "xtask/sleeps.txt";

/// Calls of sleep functions in code.
const SLEEPS: &[&str] = &["thread::sleep", "time::sleep", "time.sleep"];

/// Imports of sleep functions.
const GROUPS: &[&str] = &["thread::{", "time::{"];

pub fn check(sources: &[SourceFile]) -> Result<Vec<Finding>> {
    Ok(check_against(sources, &exceptions::read(LIST)?))
}

fn check_against(sources: &[SourceFile], list: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let question = "why must this code wait for time to pass?";
    let mut allowed = Exceptions::parse(LIST, list, question, &mut findings);
    for source in sources.iter().filter(|source| ships(&source.path)) {
        let sleeps = source.lines().filter(|(_, line)| sleeps_in(line));
        for (number, _) in sleeps {
            if !allowed.allow(&source.path) {
                findings.push(Finding::error(
                    &source.path,
                    number,
                    "sleeps",
                    format!("wait for an event with a deadline, or give the reason in {LIST}"),
                ));
            }
        }
    }
    allowed.report_unused("does not sleep", &mut findings);
    findings
}

/// Whether the file ships: no tests, no tools.
fn ships(path: &str) -> bool {
    let in_crate = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
    let in_src = in_crate.is_some_and(|(name, rest)| name != "suites" && rest.starts_with("src/"));
    in_src || (path.starts_with("workers/") && !path.contains("/tests/"))
}

fn sleeps_in(line: &str) -> bool {
    let code = line.trim_start();
    if code.starts_with("//") || code.starts_with('#') {
        return false;
    }
    SLEEPS.iter().any(|sleep| ends_a_name_in(code, sleep)) || imports_sleep(code)
}

/// `time::sleep_until` waits for a deadline, so it does not count.
fn ends_a_name_in(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let after = code[at + name.len()..].chars().next();
        !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// `use tokio::time::{sleep, timeout}`.
fn imports_sleep(code: &str) -> bool {
    let mut groups = GROUPS.iter().filter_map(|group| code.split_once(group));
    groups.any(|(_, names)| {
        let names = names.split('}').next().unwrap_or_default();
        names.split(',').any(|name| name.trim() == "sleep")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, list: &str) -> Vec<String> {
        let source = SourceFile { path: path.to_owned(), text: text.to_owned() };
        let findings = check_against(&[source], list);
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn a_sleep_in_shipped_code_needs_a_reason() {
        let path = "crates/node/src/a.rs";
        let text = "//! A.\n// thread::sleep is not code here\nstd::thread::sleep(x);\n";
        assert_eq!(check(path, text, ""), ["crates/node/src/a.rs:3"]);
        assert_eq!(
            check(path, text, "crates/node/src/a.rs\n"),
            ["xtask/sleeps.txt:1", "crates/node/src/a.rs:3"]
        );
        assert_eq!(
            check(path, text, "crates/node/src/a.rs a clock tick is what it shows\n"),
            [""; 0]
        );
        let import = "use tokio::time::{sleep, timeout};\n";
        assert_eq!(check(path, import, ""), ["crates/node/src/a.rs:1"]);
        assert_eq!(check("crates/node/tests/a.rs", text, ""), [""; 0]);
    }

    #[test]
    fn an_entry_that_allows_nothing_is_removed() {
        let list = "crates/node/src/a.rs once it did\n";
        assert_eq!(
            check("crates/node/src/a.rs", "time::sleep_until(x)", list),
            ["xtask/sleeps.txt:1"]
        );
    }
}

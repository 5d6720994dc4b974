//! Sleeps: code that ships waits for a fact, not for time to pass. The few places where time is
//! the fact are listed with their reason in `xtask/sleeps.txt`.

use std::fs;

use anyhow::{Context, Result};

use super::Finding;
use crate::workspace::{self, Source};

/// The allow-list: `path reason`, one a line; `#` starts a comment.
const LIST: &str = "xtask/sleeps.txt";

/// How a sleep looks in code.
const SLEEPS: &[&str] = &["thread::sleep", "time::sleep", "time.sleep"];

/// How its import may look otherwise.
const GROUPS: &[&str] = &["thread::{", "time::{"];

pub fn check(sources: &[Source]) -> Result<Vec<Finding>> {
    let list = workspace::root().join(LIST);
    let list = fs::read_to_string(&list).with_context(|| format!("cannot read {LIST}"))?;
    Ok(check_against(sources, &list))
}

fn check_against(sources: &[Source], list: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut allowed = Vec::new();
    for (index, line) in list.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once(' ') {
            Some((path, reason)) if !reason.trim().is_empty() => allowed.push((path, index + 1)),
            _ => findings.push(Finding::error(
                LIST,
                index + 1,
                "an entry without a reason",
                "write `path reason`: why is time itself what the code waits for?",
            )),
        }
    }
    for source in sources.iter().filter(|source| ships(&source.path)) {
        let sleeps = source.lines().filter(|(_, line)| sleeps_in(line));
        let listed = allowed.iter().position(|(path, _)| *path == source.path);
        for (number, _) in sleeps {
            match listed {
                Some(entry) => allowed[entry].1 = 0,
                None => findings.push(Finding::error(
                    &source.path,
                    number,
                    "sleeps",
                    format!("wait for an event with a deadline, or give the reason in {LIST}"),
                )),
            }
        }
    }
    // An entry that allows nothing would allow the next sleep without a word.
    for (path, line) in allowed.iter().filter(|(_, line)| *line != 0) {
        let what = format!("{path} does not sleep");
        findings.push(Finding::error(LIST, *line, what, "remove the entry"));
    }
    findings
}

/// Code that runs at a user's: not tests, not tools.
fn ships(path: &str) -> bool {
    let in_crate = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
    let in_src = in_crate.is_some_and(|(_, rest)| rest.starts_with("src/"));
    in_src || (path.starts_with("workers/") && !path.contains("/tests/"))
}

fn sleeps_in(line: &str) -> bool {
    let code = line.trim_start();
    if code.starts_with("//") || code.starts_with('#') {
        return false;
    }
    SLEEPS.iter().any(|sleep| ends_a_name_in(code, sleep)) || imports_sleep(code)
}

/// `time::sleep_until` waits for a deadline, and is not a sleep.
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
        let source = Source { path: path.to_owned(), text: text.to_owned() };
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

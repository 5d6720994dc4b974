//! Environment variables: each variable that code names is in the table of `crates/protocol/src/variables.rs`,
//! from which `docs/reference/environment.md` is written, and code names each variable of the table.

use std::collections::BTreeSet;

use windlass_protocol::variables::{PREFIX, VARIABLES};

use super::finding::Finding;
use crate::workspace::SourceFile;

const TABLE: &str = "crates/protocol/src/variables.rs";

/// Variables of the test suites, which `CONTRIBUTING.md` describes. Only code that ships must name them in the
/// table.
const OF_TESTS: [&str; 2] = ["WINDLASS_TEST_", "WINDLASS_CHAOS_"];

pub fn check(sources: &[SourceFile]) -> Vec<Finding> {
    check_against(sources, &VARIABLES.map(|variable| variable.name))
}

fn check_against(sources: &[SourceFile], table: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for source in sources.iter().filter(|source| is_code(&source.path)) {
        for (number, line) in source.lines() {
            for name in names_in(line) {
                used.insert(name);
                let of_tests = OF_TESTS.iter().any(|prefix| name.starts_with(prefix));
                if !table.contains(&name) && (ships(&source.path) || !of_tests) {
                    findings.push(Finding::error(
                        &source.path,
                        number,
                        format!("the variable {name} is not in the table"),
                        format!("add it to {TABLE}, then run `cargo xtask reference`"),
                    ));
                }
            }
        }
    }
    for name in table.iter().filter(|name| !used.contains(*name)) {
        findings.push(Finding::error(
            TABLE,
            1,
            format!("no code names the variable {name}"),
            "remove it from the table, then run `cargo xtask reference`",
        ));
    }
    findings
}

/// Whether the file is code that ships, or a tool of the workspace. Tests may set any variable.
fn is_code(path: &str) -> bool {
    // Their lists of variables name more than code reads.
    if ["xtask/src/tidy/variables.rs", "crates/windlass/src/commands/reference.rs"].contains(&path)
    {
        return false;
    }
    ships(path) || path.starts_with("xtask/src/") || path.starts_with("crates/suites/src/")
}

fn ships(path: &str) -> bool {
    if path == TABLE {
        return false;
    }
    let in_crate = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
    let in_src = in_crate.is_some_and(|(name, rest)| {
        !["suites", "testkit"].contains(&name) && rest.starts_with("src/")
    });
    let in_worker = path.starts_with("workers/") && !path.contains("/tests/");
    let in_sdk = path.starts_with("sdk/") && path.contains("/src/");
    in_src || in_worker || in_sdk || path.starts_with("packaging/")
}

/// The names of variables in a line. The prefix alone is not a name.
fn names_in(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices(PREFIX).filter_map(|(at, _)| {
        let rest = &line[at..];
        let is_part =
            |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
        let end = rest.find(|letter: char| !is_part(letter)).unwrap_or(rest.len());
        let name = rest[..end].trim_end_matches('_');
        (name.len() > PREFIX.len()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str, table: &[&str]) -> usize {
        let source = SourceFile { path: path.to_owned(), text: text.to_owned() };
        check_against(&[source], table).len()
    }

    #[test]
    fn a_variable_that_only_one_side_names_is_found() {
        let (code, read) = ("crates/node/src/a.rs", "env(\"WINDLASS_A\")");
        assert_eq!(found(code, read, &["WINDLASS_A"]), 0);
        assert_eq!(found(code, read, &[]), 1);
        assert_eq!(found(code, "startsWith('WINDLASS_')", &[]), 0);
        assert_eq!(found(code, "", &["WINDLASS_A"]), 1);
        assert_eq!(found("crates/node/tests/a.rs", read, &[]), 0);
        assert_eq!(found("xtask/src/a.rs", "WINDLASS_TEST_A", &[]), 0);
        assert_eq!(found(code, "WINDLASS_TEST_A", &[]), 1);
    }
}

//! File length. clippy checks the length of Rust functions (`too_many_lines`), and [`super::python`] that of
//! Python functions.

use super::finding::{Finding, Severity};
use crate::workspace::SourceFile;

/// A longer file is a warning.
const LINES_WARN: usize = 500;

/// A longer file is an error.
const LINES_MAX: usize = 600;

/// The limit for files of tests, which have long tables.
const TEST_LINES_MAX: usize = 800;

/// `cargo xtask api` writes this file, so it has no limit.
const WRITTEN: &str = "sdk/python/src/windlass/_api.py";

pub fn check(sources: &[SourceFile]) -> Vec<Finding> {
    let code = sources.iter().filter(|source| source.is_rust() || source.is_python());
    let code = code.filter(|source| source.path != WRITTEN);
    code.filter_map(|source| judge(&source.path, source.text.lines().count())).collect()
}

fn judge(path: &str, lines: usize) -> Option<Finding> {
    let is_test = path.split('/').any(|part| part == "tests" || part == "tests.rs");
    let max = if is_test { TEST_LINES_MAX } else { LINES_MAX };
    if lines <= LINES_WARN {
        return None;
    }
    let severity = if lines > max { Severity::Error } else { Severity::Warning };
    Some(Finding {
        severity,
        path: path.to_owned(),
        line: lines,
        what: format!("{lines} lines; a file has about {LINES_WARN} and at most {max}"),
        remedy: "split it where a second idea starts".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_warns_and_a_longer_one_fails() {
        let severity = |path: &str, lines| judge(path, lines).map(|finding| finding.severity);
        assert_eq!(severity("crates/node/src/a.rs", 500), None);
        assert_eq!(severity("crates/node/src/a.rs", 501), Some(Severity::Warning));
        assert_eq!(severity("crates/node/src/a.rs", 601), Some(Severity::Error));
        assert_eq!(severity("crates/node/tests/a.rs", 601), Some(Severity::Warning));
        assert_eq!(severity("crates/node/src/a/tests.rs", 801), Some(Severity::Error));
    }
}

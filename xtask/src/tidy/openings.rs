//! Openings: every Rust file starts with `//!`, which says what it owns and what it never does.

use super::finding::Finding;
use crate::workspace::SourceFile;

pub fn check(sources: &[SourceFile]) -> Vec<Finding> {
    let rust = sources.iter().filter(|source| source.is_rust());
    rust.filter(|source| !opens(&source.text))
        .map(|source| {
            Finding::error(
                &source.path,
                1,
                "does not open with `//!`",
                "say in its first lines what the file owns and what it never does",
            )
        })
        .collect()
}

fn opens(text: &str) -> bool {
    let first = text.lines().find(|line| !line.starts_with("#!"));
    first.and_then(|line| line.strip_prefix("//!")).is_some_and(|said| !said.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_is_the_first_thing_said_and_says_something() {
        for good in ["//! Owns a.\nfn b() {}", "#![no_main]\n//! Owns a."] {
            assert!(opens(good), "{good:?}");
        }
        for bad in ["", "fn a() {}", "//!\n", "// not it", "\n//! late"] {
            assert!(!opens(bad), "{bad:?}");
        }
    }
}

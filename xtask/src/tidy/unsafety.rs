//! Unsafe code: only `crates/confine`, `crates/procs` and `crates/worker-r` may have it. The lint `unsafe_code` forbids it
//! elsewhere. This check ensures that every other crate uses the workspace's lints and that no file disables
//! the lint.

use super::finding::Finding;
use crate::workspace::SourceFile;

/// The crates that may use unsafe code.
const HOMES: [&str; 3] = ["crates/confine/", "crates/procs/", "crates/worker-r/"];

/// Code that starts an unsafe block or item.
const STARTS: &[&str] = &["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe trait"];

pub fn check(sources: &[SourceFile]) -> Vec<Finding> {
    let elsewhere =
        sources.iter().filter(|source| !HOMES.iter().any(|home| source.path.starts_with(home)));
    elsewhere.flat_map(check_file).collect()
}

fn check_file(source: &SourceFile) -> Vec<Finding> {
    let is_member = source.path.starts_with("crates/") || source.path.starts_with("xtask/");
    if is_member && source.path.ends_with("/Cargo.toml") && !takes_workspace_lints(&source.text) {
        return vec![Finding::error(
            &source.path,
            1,
            "the crate does not use the workspace's lints",
            "add `[lints]` with `workspace = true`",
        )];
    }
    // This file contains the words that it looks for.
    if !source.is_rust() || source.path.ends_with("tidy/unsafety.rs") {
        return Vec::new();
    }
    let lines = source.lines().filter(|(_, line)| is_unsafe(line));
    lines
        .map(|(number, _)| {
            Finding::error(
                &source.path,
                number,
                "unsafe code outside crates/confine, crates/procs and crates/worker-r",
                "add a safe function to one of them and call it",
            )
        })
        .collect()
}

fn takes_workspace_lints(manifest: &str) -> bool {
    let after = manifest.split("[lints]").nth(1).unwrap_or_default();
    after.trim_start().starts_with("workspace = true")
}

fn is_unsafe(line: &str) -> bool {
    let code = line.trim_start();
    !code.starts_with("//")
        && (STARTS.iter().any(|start| code.contains(start)) || code.contains("(unsafe_code"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&[SourceFile { path: path.to_owned(), text: text.to_owned() }]).len()
    }

    #[test]
    fn unsafe_code_has_one_home() {
        assert_eq!(findings("crates/confine/src/a.rs", "unsafe { b() }"), 0);
        assert_eq!(findings("crates/keeper/src/a.rs", "unsafe { b() }"), 1);
        assert_eq!(findings("crates/keeper/src/a.rs", "#![expect(unsafe_code)]"), 1);
        assert_eq!(findings("crates/keeper/src/a.rs", "// unsafe { } is a comment here"), 0);
    }

    #[test]
    fn every_member_takes_the_lints() {
        assert_eq!(findings("crates/node/Cargo.toml", "[lints]\nworkspace = true\n"), 0);
        assert_eq!(findings("crates/node/Cargo.toml", "[lints.rust]\n"), 1);
    }
}

//! Paths: node and keeper run with the user's rights. So they access files that a session can write only by
//! descriptor, beneath a root, without following links (`windlass_beneath`). `xtask/paths.txt` lists the
//! files of code that use paths, with reasons.

use anyhow::Result;

use super::exceptions::{self, Exceptions};
use super::finding::Finding;
use crate::workspace::SourceFile;

/// The list of exceptions: `path reason`, one per line. `#` starts a comment.
const LIST: &str = "xtask/paths.txt";

/// The directories that the rule applies to.
const TRUSTED: [&str; 3] = ["crates/node/src/", "crates/files/src/", "crates/keeper/src/"];

/// Code that accesses a file by its path.
const BY_PATH: &[&str] = &[
    "tokio::fs",
    "File::open",
    "File::create",
    "OpenOptions",
    "DirBuilder",
    "unix::fs::symlink",
    "unix::fs::chown",
    ".canonicalize(",
    ".exists(",
    ".try_exists(",
    ".is_dir(",
    ".is_file(",
    ".is_symlink(",
    ".metadata(",
    ".symlink_metadata(",
    // With an argument it is a method of windlass_beneath.
    ".read_link()",
    ".read_dir(",
    "Path::canonicalize",
    "Path::exists",
    "Path::is_dir",
    "Path::is_file",
    "Path::metadata",
    "Path::read_link",
];

/// Functions of rustix that take a path without the descriptor of a directory.
const RUSTIX: &[&str] = &[
    "CWD", "access", "chmod", "chown", "link", "lstat", "mkdir", "open", "readlink", "rename",
    "rmdir", "stat", "statfs", "statvfs", "symlink", "unlink",
];

pub fn check(sources: &[SourceFile]) -> Result<Vec<Finding>> {
    Ok(check_against(sources, &exceptions::read(LIST)?))
}

fn check_against(sources: &[SourceFile], list: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let question = "why can no session change what these paths lead to?";
    let mut allowed = Exceptions::parse(LIST, list, question, &mut findings);
    for source in sources.iter().filter(|source| is_trusted(&source.path)) {
        for (number, what) in by_path(source) {
            if !allowed.allow(&source.path) {
                findings.push(Finding::error(
                    &source.path,
                    number,
                    format!("`{what}` accesses a file by its path"),
                    format!("use windlass_beneath, or give the reason in {LIST}"),
                ));
            }
        }
    }
    allowed.report_unused("reaches nothing by its path", &mut findings);
    findings
}

fn is_trusted(path: &str) -> bool {
    TRUSTED.iter().any(|root| path.starts_with(root)) && !path.ends_with("/tests.rs")
}

/// The lines of shipped code that access a file by path, each with the call.
fn by_path(source: &SourceFile) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut imports_rustix = false;
    for (number, line) in source.lines() {
        // Tests are at the end of a file, so the check stops there.
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        found.extend(BY_PATH.iter().find(|what| code.contains(*what)).map(|what| (number, *what)));
        if uses_std_fs(code) {
            found.push((number, "std::fs"));
        }
        let called = RUSTIX.iter().find(|name| code.contains(&format!("rustix::fs::{name}(")));
        found.extend(called.map(|name| (number, *name)));
        imports_rustix |= code.contains("use rustix::fs::{");
        if imports_rustix {
            let names = code.rsplit('{').next().unwrap_or_default();
            let names = names.split(['}', ',']).map(str::trim);
            found.extend(
                names
                    .filter_map(|name| RUSTIX.iter().find(|call| **call == name))
                    .map(|name| (number, *name)),
            );
            imports_rustix = !code.contains("};");
        }
    }
    found
}

/// `std::fs::File` alone is the type of an open file.
fn uses_std_fs(code: &str) -> bool {
    code.match_indices("std::fs").any(|(at, name)| {
        let rest = &code[at + name.len()..];
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_type =
            rest.strip_prefix("::File").is_some_and(|rest| ends(rest) && !rest.starts_with("::"));
        ends(rest) && !is_type
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
    fn what_goes_by_path_needs_a_reason() {
        let path = "crates/node/src/a.rs";
        for code in [
            "std::fs::remove_dir_all(path)",
            "use std::fs;",
            "use std::fs::{self, File};",
            "let file = File::open(path);",
            "if path.is_dir() {",
            "let real = path.canonicalize()?;",
            "paths.filter(|path| path.exists())",
            "let fd = rustix::fs::open(path, flags, mode)?;",
            "use rustix::fs::{Mode, open};",
            "use rustix::fs::{\n    Mode,\n    stat,\n};",
        ] {
            let found = check(path, code, "");
            assert_eq!(found.len(), 1, "{code}");
            let listed = "crates/node/src/a.rs the state directory: no session can write it\n";
            assert_eq!(check(path, code, listed), [""; 0], "{code}");
            assert_eq!(check("crates/journal/src/a.rs", code, ""), [""; 0], "{code}");
            assert_eq!(check("crates/node/src/a/tests.rs", code, ""), [""; 0], "{code}");
            let in_test = format!("#[cfg(test)]\nmod tests {{\n{code}\n}}");
            assert_eq!(check(path, &in_test, ""), [""; 0], "{code}");
        }
        for code in [
            "use std::fs::File;",
            "fn read(file: &std::fs::File) {}",
            "// std::fs is not code here",
            "use std::os::unix::fs::MetadataExt;",
            "use rustix::fs::{Mode, openat, statat};",
            "let fd = rustix::fs::openat(dir, name, flags, mode)?;",
        ] {
            assert_eq!(check(path, code, ""), [""; 0], "{code}");
        }
    }

    #[test]
    fn an_entry_without_a_reason_or_a_use_is_an_error() {
        let path = "crates/keeper/src/a.rs";
        assert_eq!(check(path, "", "crates/keeper/src/a.rs\n"), ["xtask/paths.txt:1"]);
        assert_eq!(check(path, "", "crates/keeper/src/a.rs once\n"), ["xtask/paths.txt:1"]);
    }
}

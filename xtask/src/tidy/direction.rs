//! Crate direction: who may depend on whom, and that `lifecycle` can reach neither a clock nor
//! I/O. The table here is the one place that allows an edge.

use anyhow::Result;

use super::finding::Finding;
use crate::workspace::{self, Dependency, Metadata, Source};

/// For each package the workspace packages it may depend on. One that is not listed is an error:
/// a new crate needs a row, and a sentence in docs/ARCHITECTURE.md for the boundary it holds.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        "windlass",
        &[
            "windlass-node",
            "windlass-mcp",
            "windlass-client",
            "windlass-keeper",
            CONFINE,
            PROCS,
            PROTOCOL,
        ],
    ),
    (
        "windlass-node",
        &[
            "windlass-client",
            "windlass-egress",
            "windlass-files",
            "windlass-lifecycle",
            "windlass-journal",
            BENEATH,
            CONFINE,
            PROCS,
            "windlass-tools",
            PROTOCOL,
        ],
    ),
    ("windlass-egress", &[PROTOCOL]),
    ("windlass-files", &[BENEATH, PROTOCOL]),
    ("windlass-tools", &[PROTOCOL]),
    ("windlass-keeper", &["windlass-lifecycle", BENEATH, CONFINE, PROCS, PROTOCOL]),
    ("windlass-mcp", &["windlass-client", PROTOCOL]),
    ("windlass-client", &[PROTOCOL]),
    ("windlass-lifecycle", &[PROTOCOL]),
    ("windlass-journal", &[PROTOCOL]),
    (BENEATH, &[]),
    (CONFINE, &[BENEATH, PROCS, PROTOCOL]),
    (PROCS, &[PROTOCOL]),
    (PROTOCOL, &[]),
    (TESTKIT, &["windlass-client", PROCS, PROTOCOL]),
    (SUITES, &["windlass-client", TESTKIT, PROTOCOL]),
    ("xtask", &["windlass-client", SUITES, TESTKIT, PROTOCOL]),
];

const BENEATH: &str = "windlass-beneath";
const CONFINE: &str = "windlass-confine";
const PROCS: &str = "windlass-procs";
const PROTOCOL: &str = "windlass-protocol";
const SUITES: &str = "windlass-suites";
const TESTKIT: &str = "windlass-testkit";

/// Libraries that bring a runtime, a clock or the operating system into what must stay pure.
const IMPURE: &[&str] = &[
    "async-io",
    "chrono",
    "getrandom",
    "hyper",
    "jiff",
    "libc",
    "mio",
    "nix",
    "polling",
    "rand",
    "rusqlite",
    "rustix",
    "socket2",
    "time",
    "tokio",
];

/// The same from the standard library, as it is written in code. `std::time::Duration` is fine.
const IMPURE_STD: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
];

pub fn check(metadata: &Metadata) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let manifest = manifest_of(&package.name);
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            findings.push(Finding::error(
                &manifest,
                1,
                format!("package {} has no row in the table of allowed edges", package.name),
                "add it to ALLOWED in xtask/src/tidy/direction.rs and to docs/ARCHITECTURE.md",
            ));
            continue;
        };
        let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
        for dependency in ours.filter(|dependency| !is_allowed(dependency, allowed)) {
            findings.push(Finding::error(
                &manifest,
                1,
                format!("{} may not depend on {}", package.name, dependency.name),
                "move the code to where the direction allows it (docs/ARCHITECTURE.md, Crates)",
            ));
        }
    }
    findings.extend(impure_dependencies(&cargo_tree("windlass-lifecycle")?));
    Ok(findings)
}

fn is_allowed(dependency: &Dependency, allowed: &[&str]) -> bool {
    // Tests may use the testkit anywhere; what ships may not.
    let for_tests = dependency.name == TESTKIT && dependency.kind.as_deref() == Some("dev");
    for_tests || allowed.contains(&dependency.name.as_str())
}

fn manifest_of(package: &str) -> String {
    match package.strip_prefix("windlass-") {
        Some(name) => format!("crates/{name}/Cargo.toml"),
        None if package == "windlass" => "crates/windlass/Cargo.toml".to_owned(),
        None => format!("{package}/Cargo.toml"),
    }
}

/// Everything that an ordinary build of the package links, by name.
fn cargo_tree(package: &str) -> Result<String> {
    workspace::output_of(workspace::cargo().args([
        "tree",
        "--package",
        package,
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]))
}

fn impure_dependencies(tree: &str) -> Vec<Finding> {
    let mut names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    names.sort_unstable();
    names.dedup();
    let impure = names.into_iter().filter(|name| IMPURE.contains(name));
    impure
        .map(|name| {
            Finding::error(
                "crates/lifecycle/Cargo.toml",
                1,
                format!("lifecycle links {name}, and so could read a clock or do I/O"),
                "find the way with `cargo tree -p windlass-lifecycle -e normal -i` and cut it",
            )
        })
        .collect()
}

/// That `lifecycle` names nothing of the standard library that acts or looks at the world.
pub fn check_purity(sources: &[Source]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/lifecycle/src/")) {
        for (number, line) in source.lines() {
            let code = line.split("//").next().unwrap_or_default();
            for name in IMPURE_STD.iter().filter(|name| names_it(code, name)) {
                findings.push(Finding::error(
                    &source.path,
                    number,
                    format!("lifecycle uses {name}"),
                    "make it an event that comes in or an effect that goes out",
                ));
            }
        }
    }
    Ok(findings)
}

/// Whether `name` stands in `code` as a path of its own and not as part of a longer word.
fn names_it(code: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + name.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Package;

    fn package(name: &str, dependency: &str, kind: Option<&str>) -> Package {
        let dependency = Dependency {
            name: dependency.to_owned(),
            kind: kind.map(str::to_owned),
            path: Some("somewhere".into()),
        };
        Package { name: name.to_owned(), dependencies: vec![dependency] }
    }

    fn allowed(package: &Package) -> bool {
        let row = ALLOWED.iter().find(|(name, _)| *name == package.name);
        row.is_some_and(|(_, allowed)| is_allowed(&package.dependencies[0], allowed))
    }

    #[test]
    fn edges_go_down_and_never_up_or_across() {
        assert!(allowed(&package("windlass-node", "windlass-journal", None)));
        assert!(!allowed(&package("windlass-journal", "windlass-node", None)));
        assert!(!allowed(&package("windlass-keeper", "windlass-node", None)));
        assert!(!allowed(&package("windlass-protocol", "windlass-lifecycle", None)));
    }

    #[test]
    fn the_testkit_is_for_tests_only() {
        assert!(allowed(&package("windlass-node", TESTKIT, Some("dev"))));
        assert!(!allowed(&package("windlass-node", TESTKIT, None)));
    }

    #[test]
    fn a_linked_clock_is_found_and_a_proc_macro_is_not() {
        let tree = "windlass-lifecycle v0.1.0\nquote v1.0.47\ntokio v1.54.0\ntokio v1.54.0 (*)\n";
        assert_eq!(impure_dependencies(tree).len(), 1);
    }

    #[test]
    fn a_name_inside_a_longer_word_is_another_name() {
        assert!(names_it("use std::fs;", "std::fs"));
        assert!(!names_it("struct InstantReply;", "Instant"));
        assert!(!names_it("std::future::ready(())", "std::fs"));
    }
}

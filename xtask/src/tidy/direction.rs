//! Crate direction: which crate may depend on which, and that `lifecycle` can use neither a clock nor I/O.
//! The table in this file is the only place that allows a dependency.

use anyhow::Result;

use super::finding::Finding;
use crate::workspace::{self, Dependency, Metadata, SourceFile};

/// For each package the workspace packages that it may depend on. A package without a row is an error: a new
/// crate needs a row here, and a sentence in docs/ARCHITECTURE.md about the boundary that it keeps.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        "windlass",
        &[
            AUDIT,
            "windlass-node",
            "windlass-fleet",
            "windlass-mcp",
            "windlass-client",
            "windlass-keeper",
            KERNELSPECS,
            "windlass-worker-check",
            CONFINE,
            PROCS,
            PROTOCOL,
        ],
    ),
    (
        "windlass-node",
        &[
            AUDIT,
            "windlass-client",
            "windlass-console",
            "windlass-egress",
            "windlass-files",
            "windlass-fleet",
            "windlass-lifecycle",
            "windlass-journal",
            KERNELSPECS,
            BENEATH,
            CONFINE,
            PROCS,
            "windlass-telemetry",
            "windlass-tools",
            PROTOCOL,
        ],
    ),
    (AUDIT, &[]),
    ("windlass-console", &[]),
    ("windlass-egress", &[PROTOCOL]),
    ("windlass-worker-check", &[PROTOCOL]),
    ("windlass-workers", &[CONFINE, KERNELSPECS, PROCS, PROTOCOL, WORKER_KIT, "windlass-worker-r"]),
    ("windlass-worker-r", &[PROCS, WORKER_KIT]),
    (WORKER_KIT, &[PROCS, PROTOCOL]),
    (KERNELSPECS, &[]),
    ("windlass-files", &[BENEATH, PROTOCOL]),
    ("windlass-telemetry", &[PROTOCOL]),
    ("windlass-tools", &[PROTOCOL]),
    ("windlass-keeper", &["windlass-lifecycle", BENEATH, CONFINE, PROCS, PROTOCOL]),
    ("windlass-mcp", &["windlass-client", PROTOCOL]),
    ("windlass-client", &[PROTOCOL]),
    ("windlass-lifecycle", &[PROTOCOL]),
    ("windlass-journal", &[PROTOCOL]),
    ("windlass-fleet", &["windlass-lifecycle", PROTOCOL]),
    (BENEATH, &[]),
    (CONFINE, &[BENEATH, PROCS, PROTOCOL]),
    (PROCS, &[PROTOCOL]),
    (PROTOCOL, &[]),
    (TESTKIT, &["windlass-client", PROCS, PROTOCOL]),
    (SUITES, &["windlass-client", "windlass-fleet", "windlass-lifecycle", TESTKIT, PROTOCOL]),
    ("xtask", &["windlass-client", SUITES, TESTKIT, PROTOCOL]),
];

const AUDIT: &str = "windlass-audit";
const BENEATH: &str = "windlass-beneath";
const CONFINE: &str = "windlass-confine";
const KERNELSPECS: &str = "windlass-kernelspecs";
const PROCS: &str = "windlass-procs";
const PROTOCOL: &str = "windlass-protocol";
const SUITES: &str = "windlass-suites";
const TESTKIT: &str = "windlass-testkit";
const WORKER_KIT: &str = "windlass-worker-kit";

/// Libraries with a runtime, a clock or access to the operating system. `lifecycle` must not link them.
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

/// Names of the standard library that `lifecycle` must not use. `std::time::Duration` is allowed.
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
    // Every crate may use the testkit and the suites in its tests, but not in code that ships.
    let for_tests = [TESTKIT, SUITES].contains(&dependency.name.as_str())
        && dependency.kind.as_deref() == Some("dev");
    for_tests || allowed.contains(&dependency.name.as_str())
}

fn manifest_of(package: &str) -> String {
    match package.strip_prefix("windlass-") {
        Some(name) => format!("crates/{name}/Cargo.toml"),
        None if package == "windlass" => "crates/windlass/Cargo.toml".to_owned(),
        None => format!("{package}/Cargo.toml"),
    }
}

/// The output of `cargo tree`: all packages that a normal build of the package links.
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
                format!("lifecycle links {name}, which can read a clock or do I/O"),
                "find the way with `cargo tree -p windlass-lifecycle -e normal -i` and cut it",
            )
        })
        .collect()
}

/// Checks that `lifecycle` uses no name of the standard library that does I/O or reads a clock.
pub fn check_purity(sources: &[SourceFile]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/lifecycle/src/")) {
        for (number, line) in source.lines() {
            let code = line.split("//").next().unwrap_or_default();
            for name in IMPURE_STD.iter().filter(|name| names_it(code, name)) {
                findings.push(Finding::error(
                    &source.path,
                    number,
                    format!("lifecycle uses {name}"),
                    "pass it in as an event, or return it as an effect",
                ));
            }
        }
    }
    Ok(findings)
}

/// Whether `code` contains `name` as a path and not as a part of a longer word.
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
    use crate::workspace::CargoPackage;

    fn package(name: &str, dependency: &str, kind: Option<&str>) -> CargoPackage {
        let dependency = Dependency {
            name: dependency.to_owned(),
            kind: kind.map(str::to_owned),
            path: Some("somewhere".into()),
        };
        CargoPackage { name: name.to_owned(), dependencies: vec![dependency] }
    }

    fn allowed(package: &CargoPackage) -> bool {
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
    fn the_testkit_and_the_suites_are_for_tests_only() {
        for helper in [TESTKIT, SUITES] {
            assert!(allowed(&package("windlass-node", helper, Some("dev"))));
            assert!(!allowed(&package("windlass-node", helper, None)));
        }
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

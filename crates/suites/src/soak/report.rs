//! Compares the census before and after a soak run: a resource that grew by more than its allowance is a
//! leak.

use std::collections::BTreeMap;

use serde::Serialize;

use super::census::Census;
use crate::start::StartMethod;

/// Allowed growth of the node's memory: what the allocator keeps after busy times, and what the node
/// remembers of each ended session.
const NODE_GROWTH_MIB: f64 = 16.0;
const NODE_GROWTH_MIB_PER_SESSION: f64 = 2.0 / 1024.0;

/// Allowed growth of the memory of all processes below the node together.
const OTHER_GROWTH_MIB: f64 = 8.0;

/// Directories that stay after a session has ended: its journal and its workspace.
const KEPT_PER_SESSION: usize = 2;

/// One resource, before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GrowthRow {
    pub what: &'static str,
    pub before: f64,
    pub after: f64,
    /// Allowed growth.
    pub allowed: f64,
}

/// What is left after the node has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Leftovers {
    pub processes: usize,
    pub cgroups: usize,
}

#[derive(Debug, Serialize)]
pub struct SoakReport {
    pub sessions: usize,
    pub start: StartMethod,
    /// The number of sessions by start method, as the node reports it.
    pub started: BTreeMap<String, usize>,
    pub seconds: f64,
    pub rows: Vec<GrowthRow>,
    pub left: Leftovers,
}

pub fn compare(before: &Census, after: &Census, sessions: usize) -> Vec<GrowthRow> {
    let count = |what, before: usize, after: usize, allowed: usize| GrowthRow {
        what,
        before: before as f64,
        after: after as f64,
        allowed: allowed as f64,
    };
    let none = |what, before, after| count(what, before, after, 0);
    let mib = |what, before, after, allowed| GrowthRow { what, before, after, allowed };
    let node_growth = NODE_GROWTH_MIB + NODE_GROWTH_MIB_PER_SESSION * sessions as f64;
    vec![
        none("processes", before.processes, after.processes),
        none("zombies", before.zombies, after.zombies),
        none("threads of the node", before.node.threads, after.node.threads),
        none("threads of others", before.others.threads, after.others.threads),
        none("descriptors of the node", before.node.descriptors, after.node.descriptors),
        none("descriptors of others", before.others.descriptors, after.others.descriptors),
        none("cgroups", before.cgroups, after.cgroups),
        none("namespaces", before.namespaces, after.namespaces),
        none("mounts", before.mounts, after.mounts),
        none("files", before.files, after.files),
        count(
            "kept directories",
            before.kept_directories,
            after.kept_directories,
            KEPT_PER_SESSION * sessions,
        ),
        mib("MiB of the node", before.node.mib, after.node.mib, node_growth),
        mib("MiB of others", before.others.mib, after.others.mib, OTHER_GROWTH_MIB),
    ]
}

impl GrowthRow {
    pub fn leaked(&self) -> bool {
        self.after > self.before + self.allowed
    }

    fn line(&self) -> String {
        let word = if self.leaked() { "LEAK" } else { "ok" };
        let (before, after, allowed) = (shown(self.before), shown(self.after), shown(self.allowed));
        format!("{:<26} {before:>10} {after:>10} {allowed:>12}  {word}", self.what)
    }
}

/// Prints whole numbers (counts) without a fraction and others (memory) with one digit.
pub fn shown(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") }
}

impl SoakReport {
    pub fn leaks(&self) -> bool {
        self.rows.iter().any(GrowthRow::leaked)
            || self.left != Leftovers { processes: 0, cgroups: 0 }
    }

    pub fn table(&self) -> String {
        let started: Vec<String> =
            self.started.iter().map(|(by, sessions)| format!("{sessions} by {by}")).collect();
        let mut lines =
            vec![format!("{:<26} {:>10} {:>10} {:>12}", "what", "before", "after", "may grow by")];
        lines.extend(self.rows.iter().map(GrowthRow::line));
        lines.push(format!(
            "after the node has ended: {} processes, {} cgroups",
            self.left.processes, self.left.cgroups
        ));
        lines.push(format!(
            "{} sessions ({}) in {:.1} s, {:.1} a second: {}",
            self.sessions,
            started.join(", "),
            self.seconds,
            self.sessions as f64 / self.seconds,
            if self.leaks() { "LEAKS" } else { "no leak" }
        ));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::super::census::ProcessUsage;
    use super::*;

    const BEFORE: Census = Census {
        processes: 1,
        zombies: 0,
        node: ProcessUsage { threads: 4, descriptors: 20, mib: 20.0 },
        others: ProcessUsage { threads: 0, descriptors: 0, mib: 0.0 },
        cgroups: 0,
        namespaces: 8,
        mounts: 20,
        files: 40,
        kept_directories: 128,
    };

    fn node_of(mib: f64) -> ProcessUsage {
        ProcessUsage { mib, ..BEFORE.node }
    }

    fn leaks(after: &Census) -> Vec<&'static str> {
        let rows = compare(&BEFORE, after, 100);
        rows.into_iter().filter(GrowthRow::leaked).map(|row| row.what).collect()
    }

    #[test]
    fn a_thing_that_stays_is_a_leak_and_a_journal_is_not() {
        assert_eq!(leaks(&BEFORE), [""; 0]);
        assert_eq!(
            leaks(&Census { kept_directories: 328, node: node_of(30.0), ..BEFORE }),
            [""; 0]
        );
        assert_eq!(leaks(&Census { zombies: 1, ..BEFORE }), ["zombies"]);
        assert_eq!(
            leaks(&Census { kept_directories: 329, files: 41, ..BEFORE }),
            ["files", "kept directories"]
        );
        assert_eq!(leaks(&Census { node: node_of(37.0), ..BEFORE }), ["MiB of the node"]);
    }

    #[test]
    fn what_outlives_the_node_is_a_leak() {
        let report = |left| SoakReport {
            sessions: 100,
            start: StartMethod::Exec,
            started: BTreeMap::from([("exec".to_owned(), 100)]),
            seconds: 10.0,
            rows: compare(&BEFORE, &BEFORE, 100),
            left,
        };
        assert!(!report(Leftovers { processes: 0, cgroups: 0 }).leaks());
        assert!(report(Leftovers { processes: 1, cgroups: 0 }).leaks());
        let table = report(Leftovers { processes: 0, cgroups: 3 }).table();
        assert!(table.ends_with("100 sessions (100 by exec) in 10.0 s, 10.0 a second: LEAKS"));
    }
}

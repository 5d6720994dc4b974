//! Before and after, side by side, and how much each may have grown.

use std::collections::BTreeMap;

use serde::Serialize;

use super::census::Census;
use crate::start::StartBy;

/// What the allocator may keep of busy times, and what the node remembers of each session that has
/// ended.
const NODE_GROWTH_MIB: f64 = 16.0;
const NODE_GROWTH_MIB_PER_SESSION: f64 = 2.0 / 1024.0;

/// The same for all processes below it together.
const OTHER_GROWTH_MIB: f64 = 8.0;

/// Directories that stay of a session: its journal and its workspace.
const KEPT_PER_SESSION: usize = 2;

/// One thing that was counted twice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub what: &'static str,
    pub before: f64,
    pub after: f64,
    /// How much more there may be after.
    pub allowed: f64,
}

/// What there still was when the node had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Left {
    pub processes: usize,
    pub cgroups: usize,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub sessions: usize,
    pub start: StartBy,
    /// How they say that they were started.
    pub started: BTreeMap<String, usize>,
    pub seconds: f64,
    pub rows: Vec<Row>,
    pub left: Left,
}

pub fn compare(before: &Census, after: &Census, sessions: usize) -> Vec<Row> {
    let count = |what, before: usize, after: usize, allowed: usize| Row {
        what,
        before: before as f64,
        after: after as f64,
        allowed: allowed as f64,
    };
    let none = |what, before, after| count(what, before, after, 0);
    let mib = |what, before, after, allowed| Row { what, before, after, allowed };
    let node_growth = NODE_GROWTH_MIB + NODE_GROWTH_MIB_PER_SESSION * sessions as f64;
    vec![
        none("processes", before.processes, after.processes),
        none("zombies", before.zombies, after.zombies),
        none("threads of the node", before.node_threads, after.node_threads),
        none("threads of others", before.other_threads, after.other_threads),
        none("descriptors of the node", before.node_descriptors, after.node_descriptors),
        none("descriptors of others", before.other_descriptors, after.other_descriptors),
        none("cgroups", before.cgroups, after.cgroups),
        none("namespaces", before.namespaces, after.namespaces),
        none("mounts", before.mounts, after.mounts),
        none("files", before.files, after.files),
        count("kept directories", before.kept, after.kept, KEPT_PER_SESSION * sessions),
        mib("MiB of the node", before.node_mib, after.node_mib, node_growth),
        mib("MiB of others", before.other_mib, after.other_mib, OTHER_GROWTH_MIB),
    ]
}

impl Row {
    pub fn leaked(&self) -> bool {
        self.after > self.before + self.allowed
    }

    fn line(&self) -> String {
        let word = if self.leaked() { "LEAK" } else { "ok" };
        let (before, after, allowed) = (shown(self.before), shown(self.after), shown(self.allowed));
        format!("{:<26} {before:>10} {after:>10} {allowed:>12}  {word}", self.what)
    }
}

/// Counts without a fraction, memory with one.
pub fn shown(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") }
}

impl Report {
    pub fn leaks(&self) -> bool {
        self.rows.iter().any(Row::leaked) || self.left != Left { processes: 0, cgroups: 0 }
    }

    pub fn table(&self) -> String {
        let started: Vec<String> =
            self.started.iter().map(|(by, sessions)| format!("{sessions} by {by}")).collect();
        let mut lines =
            vec![format!("{:<26} {:>10} {:>10} {:>12}", "what", "before", "after", "may grow by")];
        lines.extend(self.rows.iter().map(Row::line));
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
    use super::*;

    const BEFORE: Census = Census {
        processes: 1,
        zombies: 0,
        node_threads: 4,
        other_threads: 0,
        node_descriptors: 20,
        other_descriptors: 0,
        cgroups: 0,
        namespaces: 8,
        mounts: 20,
        files: 40,
        kept: 128,
        node_mib: 20.0,
        other_mib: 0.0,
    };

    fn leaks(after: &Census) -> Vec<&'static str> {
        let rows = compare(&BEFORE, after, 100);
        rows.into_iter().filter(Row::leaked).map(|row| row.what).collect()
    }

    #[test]
    fn a_thing_that_stays_is_a_leak_and_a_journal_is_not() {
        assert_eq!(leaks(&BEFORE), [""; 0]);
        assert_eq!(leaks(&Census { kept: 328, node_mib: 30.0, ..BEFORE }), [""; 0]);
        assert_eq!(leaks(&Census { zombies: 1, ..BEFORE }), ["zombies"]);
        assert_eq!(
            leaks(&Census { kept: 329, files: 41, ..BEFORE }),
            ["files", "kept directories"]
        );
        assert_eq!(leaks(&Census { node_mib: 37.0, ..BEFORE }), ["MiB of the node"]);
    }

    #[test]
    fn what_outlives_the_node_is_a_leak() {
        let report = |left| Report {
            sessions: 100,
            start: StartBy::Exec,
            started: BTreeMap::from([("exec".to_owned(), 100)]),
            seconds: 10.0,
            rows: compare(&BEFORE, &BEFORE, 100),
            left,
        };
        assert!(!report(Left { processes: 0, cgroups: 0 }).leaks());
        assert!(report(Left { processes: 1, cgroups: 0 }).leaks());
        let table = report(Left { processes: 0, cgroups: 3 }).table();
        assert!(table.ends_with("100 sessions (100 by exec) in 10.0 s, 10.0 a second: LEAKS"));
    }
}

//! Counts the resources of the machine that a node uses at one moment: everything that a session allocates
//! and must release.

use std::fs;
use std::path::{Path, PathBuf};

use windlass_testkit::processes;

use crate::machine::{self, Tree};
use crate::start::MeasuredNode;

/// Directories below the state directory in which the node keeps one directory for each ended session, until
/// its retention removes them. They are no leak.
const KEPT: [&str; 2] = ["sessions", "workspaces"];

const KIB_PER_MIB: f64 = 1024.0;

/// The node to count, and where its resources are.
#[derive(Debug)]
pub struct NodeProbe {
    node: u32,
    base: PathBuf,
    state: PathBuf,
    cgroup_prefix: Option<String>,
}

/// The counts at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Census {
    pub processes: usize,
    pub zombies: usize,
    /// The node itself. Its memory is the resident set size.
    pub node: ProcessUsage,
    /// All processes below the node: nursery, zygotes, keepers, inits, workers. Their memory is the
    /// proportional set size.
    pub others: ProcessUsage,
    pub cgroups: usize,
    pub namespaces: usize,
    pub mounts: usize,
    /// Entries below the node's directories, without those of [`KEPT`].
    pub files: usize,
    /// Directories of [`KEPT`].
    pub kept_directories: usize,
}

/// What one process, or a group of processes, uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    pub threads: usize,
    pub descriptors: usize,
    pub mib: f64,
}

impl NodeProbe {
    pub fn of(node: &MeasuredNode, cgroup_prefix: Option<String>) -> Self {
        Self {
            node: node.node.pid(),
            base: node.node.base().to_owned(),
            state: node.node.dirs().state.clone(),
            cgroup_prefix,
        }
    }

    pub fn census(&self) -> Census {
        let all = Tree::now().whole(self.node);
        let others = &all[1..];
        let descriptors = |pid: &u32| processes::descriptors(*pid).unwrap_or_default();
        let kept = |name: &str| fs::read_dir(self.state.join(name)).map_or(0, Iterator::count);
        let without = KEPT.iter().map(|name| self.state.join(name));
        let without: Vec<PathBuf> = without.collect();
        Census {
            processes: all.len(),
            zombies: all.iter().map(|pid| zombies_of(*pid)).sum(),
            node: ProcessUsage {
                threads: machine::threads(self.node),
                descriptors: descriptors(&self.node),
                mib: processes::rss_bytes(self.node).unwrap_or_default() as f64
                    / (KIB_PER_MIB * KIB_PER_MIB),
            },
            others: ProcessUsage {
                threads: others.iter().map(|pid| machine::threads(*pid)).sum(),
                descriptors: others.iter().map(descriptors).sum(),
                // A process that has ended since the list was made counts as 0.
                mib: others
                    .iter()
                    .fold(0.0, |sum, pid| sum + machine::pss_mib(*pid).unwrap_or_default()),
            },
            cgroups: self.cgroup_prefix.as_deref().map_or(0, machine::cgroups),
            namespaces: machine::namespaces(&all),
            mounts: machine::mounts(&all),
            files: files_below(&self.base, &without),
            kept_directories: KEPT.iter().map(|name| kept(name)).sum(),
        }
    }
}

impl Census {
    /// Whether all counts are equal. Memory sizes are ignored, because they always differ.
    pub fn same_counts(&self, other: &Self) -> bool {
        let without_memory = |usage: ProcessUsage| ProcessUsage { mib: 0.0, ..usage };
        let counts = |one: &Self| Self {
            node: without_memory(one.node),
            others: without_memory(one.others),
            ..one.clone()
        };
        counts(self) == counts(other)
    }
}

/// Finds the prefix of a node's cgroups, such as `windlass-3c786591-`, in the text of `/proc/PID/cgroup`.
pub fn prefix_in(membership: &str) -> Option<String> {
    membership.lines().find_map(|line| {
        let name = line.rsplit('/').next()?;
        let node = name.strip_prefix(machine::CGROUP)?.split('-').next()?;
        let prefix = format!("{}{node}-", machine::CGROUP);
        name.starts_with(&prefix).then_some(prefix)
    })
}

fn zombies_of(pid: u32) -> usize {
    processes::children(pid).into_iter().filter(|child| !processes::alive(*child)).count()
}

/// The number of entries of any kind below a directory, without those below a directory of `left_out`.
fn files_below(directory: &Path, left_out: &[PathBuf]) -> usize {
    if left_out.iter().any(|one| one == directory) {
        return 0;
    }
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let entries = entries.filter_map(Result::ok);
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => 1 + files_below(&entry.path(), left_out),
            _ => 1,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_a_nodes_cgroups_is_found_at_a_session() {
        let lines = "8:pids:/windlass-3c786591-s1\n4:memory:/a/b/windlass-3c786591-s1\n0::/\n";
        assert_eq!(prefix_in(lines).as_deref(), Some("windlass-3c786591-"));
        // The cgroup of a keeper has a number and no session.
        assert_eq!(prefix_in("0::/windlass-1234\n"), None);
        assert_eq!(prefix_in("0::/\n"), None);
    }

    #[test]
    fn files_are_counted_without_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["state/sessions/a", "state/tmp", "run"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        fs::write(directory.path().join("state/sessions/a/log"), "").unwrap();
        fs::write(directory.path().join("run/lock"), "").unwrap();
        let kept = [directory.path().join("state/sessions")];
        assert_eq!(files_below(directory.path(), &kept), 5);
        assert_eq!(files_below(directory.path(), &[]), 7);
    }
}

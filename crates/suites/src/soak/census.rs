//! What a node holds of the machine at one moment: everything that a session takes and must give back.

use std::fs;
use std::path::{Path, PathBuf};

use windlass_testkit::processes;

use crate::machine::{self, Tree};
use crate::start::StartNode;

/// What is kept of every session that has ended, by design: below the state directory, one directory
/// for each, until the node's retention removes it.
const KEPT: [&str; 2] = ["sessions", "workspaces"];

const KIB_PER_MIB: f64 = 1024.0;

/// Where to look.
#[derive(Debug)]
pub struct Place {
    node: u32,
    base: PathBuf,
    state: PathBuf,
    cgroup_prefix: Option<String>,
}

/// What was there.
#[derive(Debug, Clone, PartialEq)]
pub struct Census {
    pub processes: usize,
    pub zombies: usize,
    pub node_threads: usize,
    /// Of all other processes of the node: nursery, zygotes, keepers, inits, workers.
    pub other_threads: usize,
    pub node_descriptors: usize,
    pub other_descriptors: usize,
    pub cgroups: usize,
    pub namespaces: usize,
    pub mounts: usize,
    /// Below the node's directories, without what is kept.
    pub files: usize,
    pub kept: usize,
    pub node_mib: f64,
    /// Shared pages by their share.
    pub other_mib: f64,
}

impl Place {
    pub fn of(node: &StartNode, cgroup_prefix: Option<String>) -> Self {
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
            node_threads: machine::threads(self.node),
            other_threads: others.iter().map(|pid| machine::threads(*pid)).sum(),
            node_descriptors: descriptors(&self.node),
            other_descriptors: others.iter().map(descriptors).sum(),
            cgroups: self.cgroup_prefix.as_deref().map_or(0, machine::cgroups),
            namespaces: machine::namespaces(&all),
            mounts: machine::mounts(&all),
            files: files_below(&self.base, &without),
            kept: KEPT.iter().map(|name| kept(name)).sum(),
            node_mib: processes::rss_bytes(self.node).unwrap_or_default() as f64
                / (KIB_PER_MIB * KIB_PER_MIB),
            // One may have ended since it was listed; then it takes nothing.
            other_mib: others
                .iter()
                .fold(0.0, |sum, pid| sum + machine::pss_mib(*pid).unwrap_or_default()),
        }
    }
}

impl Census {
    /// Whether all that can be counted is the same; memory never is.
    pub fn same_counts(&self, other: &Self) -> bool {
        let counts = |one: &Self| Self { node_mib: 0.0, other_mib: 0.0, ..one.clone() };
        counts(self) == counts(other)
    }
}

/// `windlass-3c786591-` out of the lines of `/proc/PID/cgroup`.
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

/// Entries of any kind below a directory, without those that lie below one of `left_out`.
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
        // A keeper's own, which has a number and no session, is not a session's.
        assert_eq!(prefix_in("0::/windlass-1234\n"), None);
        assert_eq!(prefix_in("0::/\n"), None);
    }

    #[test]
    fn files_are_counted_without_what_is_kept() {
        let place = tempfile::tempdir().unwrap();
        for path in ["state/sessions/a", "state/tmp", "run"] {
            fs::create_dir_all(place.path().join(path)).unwrap();
        }
        fs::write(place.path().join("state/sessions/a/log"), "").unwrap();
        fs::write(place.path().join("run/lock"), "").unwrap();
        let kept = [place.path().join("state/sessions")];
        assert_eq!(files_below(place.path(), &kept), 5);
        assert_eq!(files_below(place.path(), &[]), 7);
    }
}

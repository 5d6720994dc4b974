//! Moves the worker into its cgroups. Another process does the move while the worker's program starts. The
//! worker gets no turn before the worker and all processes that it has started meanwhile are in the cgroups.

use std::path::PathBuf;

use windlass_procs::process_file;

use crate::process_scope::ProcessScope;
use crate::watch::ProcessList;
use crate::worker::{ReadyMessage, Worker};

/// Maximum number of rounds that look for processes outside of the cgroups. A process that a round moves can
/// have started others before. If processes are still outside after so many rounds, the start fails.
const ROUNDS_MAX: usize = 8;

/// The index of the flags in `/proc/PID/stat`, counted from the field after the name.
const STAT_FLAGS: usize = 6;

/// Set by the kernel when a process begins to end.
const PF_EXITING: u64 = 0x4;

/// The state of a worker's move into its cgroups.
#[derive(Debug)]
pub(crate) enum CgroupJoin {
    /// The move is not done, or was done before.
    Pending,
    /// The worker and its processes are in the cgroups. Holds its `worker_ready` message if that has come
    /// already.
    Done(Option<ReadyMessage>),
    Failed,
}

impl CgroupJoin {
    /// Checks whether the processes that move the worker have ended.
    pub fn check(
        worker: &mut Worker,
        ended: &[(u32, String)],
        groups: &[PathBuf],
        scope: &ProcessScope,
    ) -> Self {
        let (movers, _): (Vec<_>, Vec<_>) =
            ended.iter().partition(|(pid, _)| worker.joining.contains(pid));
        if movers.is_empty() {
            return CgroupJoin::Pending;
        }
        worker.joining.retain(|joining| !movers.iter().any(|(pid, _)| pid == joining));
        let moved = movers.iter().all(|(_, how)| how == "exit code 0");
        if moved && !worker.joining.is_empty() {
            return CgroupJoin::Pending;
        }
        let ready = worker.said_ready.take();
        let below = || match scope.subset() {
            None => ProcessList::below_this().numbers().collect(),
            Some(processes) => processes.below_root(),
        };
        if moved && gather(groups, below) { CgroupJoin::Done(ready) } else { CgroupJoin::Failed }
    }
}

/// Moves processes that were started before their parent was in the cgroups. Returns whether all are in.
fn gather(groups: &[PathBuf], below: impl Fn() -> Vec<u32>) -> bool {
    for _ in 0..ROUNDS_MAX {
        let outside: Vec<u32> = below().into_iter().filter(|pid| !is_in(*pid, groups)).collect();
        if outside.is_empty() {
            return true;
        }
        for pid in outside {
            for group in groups {
                // A process that has ended meanwhile is not listed in the next round.
                let _ = std::fs::write(group.join("cgroup.procs"), pid.to_string());
            }
        }
    }
    false
}

/// Whether a process is in all the cgroups, which have the same name. A process that is exiting counts as in.
fn is_in(pid: u32, groups: &[PathBuf]) -> bool {
    let name = groups.first().and_then(|group| group.file_name()?.to_str());
    let (Some(name), Ok(said)) = (name, process_file::read(pid, "cgroup")) else {
        return true;
    };
    said.lines().filter(|line| line.ends_with(name)).count() >= groups.len()
        || process_file::read(pid, "stat").is_ok_and(|stat| is_ending(&stat))
}

/// Whether a process is exiting: then the kernel does not move it any more. This can last for a while,
/// because the init of a pid namespace waits for all other processes of the namespace.
fn is_ending(stat: &str) -> bool {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let flags = after_name.split_ascii_whitespace().nth(STAT_FLAGS);
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & PF_EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ending_by_its_flags() {
        let stat = |flags: u64| format!("7 (a) R 1 (b)) S 1 7 7 0 -1 {flags} 0 0 0");
        assert!(is_ending(&stat(0x0040_0000 | PF_EXITING)));
        assert!(!is_ending(&stat(0x0040_0100)));
        assert!(!is_ending(""));
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(!is_ending(&own), "{own}");
    }
}

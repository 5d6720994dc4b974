//! The worker's way into its cgroups: another process moves it while its program starts, and no turn
//! is given to it before it is in, with everything that it may have started meanwhile.

use std::path::PathBuf;

use windlass_procs::process_file;

use crate::family::Family;
use crate::watch::Processes;
use crate::worker::SaidReady;
use crate::worker_side::WorkerSide;

/// Rounds of looking for what was started before the worker was in. Each process that a round moves
/// can have started others; one that keeps ahead of so many is not let through.
const ROUNDS_MAX: usize = 8;

/// Where a process's flags are in its `stat`, counted from behind its name.
const STAT_FLAGS: usize = 6;

/// Set by the kernel when a process begins to end.
const PF_EXITING: u64 = 0x4;

/// How far a worker's move into its cgroups is.
#[derive(Debug)]
pub(crate) enum Joining {
    /// Nothing new, or not all is done.
    GoesOn,
    /// The worker is in, with all that it may have started. If it was ready before, this is its word.
    Done(Option<SaidReady>),
    Failed,
}

impl WorkerSide {
    /// Looks whether the processes that move the worker have ended.
    pub fn note_joined(
        &mut self,
        ended: &[(u32, String)],
        groups: &[PathBuf],
        family: &Family,
    ) -> Joining {
        let Some(worker) = &mut self.process else { return Joining::GoesOn };
        let (movers, _): (Vec<_>, Vec<_>) =
            ended.iter().partition(|(pid, _)| worker.joining.contains(pid));
        if movers.is_empty() {
            return Joining::GoesOn;
        }
        worker.joining.retain(|joining| !movers.iter().any(|(pid, _)| pid == joining));
        let moved = movers.iter().all(|(_, how)| how == "exit code 0");
        if moved && !worker.joining.is_empty() {
            return Joining::GoesOn;
        }
        let ready = worker.said_ready.take();
        let below = || match family.own.part() {
            None => Processes::below_this().numbers().collect(),
            Some(part) => part.below_root(),
        };
        if moved && gather(groups, below) { Joining::Done(ready) } else { Joining::Failed }
    }
}

/// Moves whatever was started before its parent was in; whether all are in.
fn gather(groups: &[PathBuf], below: impl Fn() -> Vec<u32>) -> bool {
    for _ in 0..ROUNDS_MAX {
        let outside: Vec<u32> = below().into_iter().filter(|pid| !is_in(*pid, groups)).collect();
        if outside.is_empty() {
            return true;
        }
        for pid in outside {
            for group in groups {
                // One that has ended meanwhile is gone in the next round.
                let _ = std::fs::write(group.join("cgroup.procs"), pid.to_string());
            }
        }
    }
    false
}

/// Whether a process is in all of the groups, which have one name; one that ends counts as in.
fn is_in(pid: u32, groups: &[PathBuf]) -> bool {
    let name = groups.first().and_then(|group| group.file_name()?.to_str());
    let (Some(name), Ok(said)) = (name, process_file::read(pid, "cgroup")) else {
        return true;
    };
    said.lines().filter(|line| line.ends_with(name)).count() >= groups.len()
        || process_file::read(pid, "stat").is_ok_and(|stat| is_ending(&stat))
}

/// Whether a process is on its way out, when the kernel moves it nowhere any more. It may be so for
/// a while: the first process of a pid namespace waits for all others of it.
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

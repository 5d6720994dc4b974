//! Kills what is left of the fleet, and waits for its end within a time limit: the kernel does not end a process that
//! waits for a disk or for a network file system.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use windlass_procs::tree;

/// How long killed processes may take to end.
pub(super) const KILL_WAIT: Duration = Duration::from_secs(5);

/// Killed processes that have not ended in time. The kernel ends each of them when what it waits for is over.
#[derive(Debug, thiserror::Error)]
#[error(
    "processes of the fleet have not ended within {} s of SIGKILL: {}; they wait for a disk or another device, and \
     end when it answers",
    KILL_WAIT.as_secs(),
    listed(.pids)
)]
pub(super) struct ProcessesLeft {
    pids: Vec<u32>,
}

/// Kills and reaps every process below this one, which is a subreaper. Returns how many it has killed.
pub(super) fn kill_all_below() -> Result<usize, ProcessesLeft> {
    in_time(KILL_WAIT, tree::kill_all_below)
        .ok_or_else(|| ProcessesLeft { pids: tree::child_pids() })
}

/// What `kill` returns, unless it takes longer. Then its thread stays until this process ends, which is soon.
fn in_time(limit: Duration, kill: fn() -> usize) -> Option<usize> {
    let (done, end) = mpsc::channel();
    let killing = thread::Builder::new().spawn(move || {
        // Nobody waits for the result if it comes late.
        let _ = done.send(kill());
    });
    match killing {
        Ok(_) => end.recv_timeout(limit).ok(),
        // A machine that is out of threads: to kill matters more than to be in time.
        Err(_) => Some(kill()),
    }
}

fn listed(pids: &[u32]) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    pids.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> usize {
        loop {
            thread::park();
        }
    }

    #[test]
    fn a_process_that_does_not_end_is_reported_and_not_waited_for() {
        assert_eq!(in_time(Duration::from_secs(60), || 3), Some(3));
        assert_eq!(in_time(Duration::from_millis(20), never), None);
        let left = ProcessesLeft { pids: vec![41, 7] }.to_string();
        assert!(left.contains("within 5 s of SIGKILL: 41, 7;"), "{left}");
    }
}

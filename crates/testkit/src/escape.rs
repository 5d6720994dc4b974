//! A program that tries everything to outlive its session, and a way to find its processes. A test runs the
//! program as a turn of a session.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::processes;

/// Python for one turn. When the turn ends, [`ESCAPES`] processes are running that only SIGKILL ends and that
/// the worker no longer knows.
pub const ESCAPE: &str = r#"
import ctypes, os, signal, subprocess, sys, time

def stay():
    while True:
        time.sleep(600)

def daemon(body):
    """The classic double fork, deaf to every polite signal."""
    told, tell = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                for name in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                    signal.signal(name, signal.SIG_IGN)
                os.close(told)
                body(tell)
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(first, 0)
    assert os.read(told, 1) == b"x", "the daemon did not come up"
    os.close(told)

def silent(tell):
    os.write(tell, b"x")
    os.closerange(0, 256)
    stay()

def stopped(tell):
    os.write(tell, b"x")
    os.kill(os.getpid(), signal.SIGSTOP)
    stay()

def reaper(tell):
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    daemon(silent)
    os.write(tell, b"x")
    stay()

def hopper(tell):
    """Never the same process for long."""
    os.write(tell, b"x")
    while True:
        if os.fork():
            os._exit(0)
        time.sleep(0.02)

mark = os.environ["WINDLASS_TEST_MARK"]
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.run("nohup sleep 600 >/dev/null 2>&1 &", shell=True, check=True)
subprocess.Popen(["env", "-i", sys.executable, "-c", "import time; time.sleep(600)", mark])
for body in (silent, stopped, reaper, hopper):
    daemon(body)
"#;

/// Number of processes that [`ESCAPE`] leaves running.
pub const ESCAPES: usize = 9;

/// The environment variable that marks every process of a session.
pub const MARK_VARIABLE: &str = "WINDLASS_TEST_MARK";

/// A unique mark for the processes of one session.
#[derive(Debug, Clone)]
pub struct ProcessMark {
    text: String,
    /// Pid namespaces of the session. They find forked processes that have not called exec, whose environment
    /// in `/proc` does not show the mark.
    namespaces: BTreeSet<u64>,
}

/// Number of scans over all processes for one result.
const SCANS: usize = 8;

impl ProcessMark {
    pub fn new(name: &str) -> Self {
        let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let at = at.map_or(0, |since| since.as_nanos());
        let text = format!("windlass-mark-{name}-{}-{at}", std::process::id());
        Self { text, namespaces: BTreeSet::new() }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Also marks the descendants of a keeper by their pid namespaces, if they are in separate ones.
    pub fn follow(&mut self, keeper: u32) {
        let ours = processes::pid_namespace(std::process::id());
        let all = processes::descendants(keeper).into_iter().filter_map(processes::pid_namespace);
        self.namespaces.extend(all.filter(|theirs| Some(*theirs) != ours));
    }

    /// All processes with the mark in their environment or arguments, or in the marked namespaces, except
    /// Windlass processes. Scans several times, because a process that forks all the time changes its pid.
    pub fn alive(&self) -> Vec<u32> {
        let is_within = |pid| {
            processes::pid_namespace(pid).is_some_and(|space| self.namespaces.contains(&space))
                && processes::name(pid).is_some_and(|name| !name.starts_with("windlass"))
        };
        let marked = |process: &processes::ProcessInfo| {
            processes::mentions(process.pid, self.text.as_bytes()) || is_within(process.pid)
        };
        let found: BTreeSet<u32> = (0..SCANS)
            .flat_map(|_| processes::all())
            .filter(marked)
            .map(|process| process.pid)
            .collect();
        found.into_iter().collect()
    }

    /// Waits until no marked process runs, up to `deadline`. Returns the processes that are left.
    pub fn left_at(&self, deadline: Instant) -> Vec<u32> {
        loop {
            let mut alive = self.alive();
            // Some processes end while `alive` scans for all of them.
            alive.retain(|pid| processes::alive(*pid));
            let left = deadline.saturating_duration_since(Instant::now());
            if alive.is_empty() || left == Duration::ZERO {
                return alive;
            }
            for pid in alive {
                processes::wait_gone(pid, deadline.saturating_duration_since(Instant::now()));
            }
        }
    }
}

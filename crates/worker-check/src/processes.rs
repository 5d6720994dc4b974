//! The worker's process, and every process below it: starting, finding, ending. The processes of a worker are
//! found by their parents in `/proc`; those whose parent has ended become children of the check, which is a
//! subreaper.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, waitpid,
};
use windlass_protocol::worker::FD_VARIABLE;

/// How a worker is started.
#[derive(Debug, Clone)]
pub(crate) struct StartCommand {
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
}

/// A started worker and its process group.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    child: Child,
    pid: Pid,
    pub pidfd: OwnedFd,
    /// The inode of the worker's end of the protocol socket.
    socket_inode: u64,
}

/// The worker's ends of its socket and pipes.
#[derive(Debug)]
pub(crate) struct TheirEnds {
    pub socket: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// Maximum time until killed processes are gone.
const END_TIME: Duration = Duration::from_secs(10);

/// The live workers of this process. The lock is also held while a worker is started: no other worker may
/// inherit its socket.
static WORKERS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn workers() -> MutexGuard<'static, BTreeSet<i32>> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerProcess {
    pub fn start(command: &StartCommand, directory: &Path, ends: TheirEnds) -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let socket_inode = rustix::fs::fstat(&ends.socket)?.st_ino;
        let (program, arguments) =
            command.argv.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
        let mut workers = workers();
        rustix::io::fcntl_setfd(&ends.socket, FdFlags::empty())?;
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(command.environment.iter().map(|(name, value)| (name, value)))
            .env(FD_VARIABLE, ends.socket.as_raw_fd().to_string())
            .current_dir(directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(ends.stdout)
            .stderr(ends.stderr)
            .spawn()?;
        drop(ends.socket);
        let pid = Pid::from_child(&child);
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(errno.into());
            }
        };
        workers.insert(pid.as_raw_nonzero().get());
        Ok(Self { child, pid, pidfd, socket_inode })
    }

    /// Sends a signal to the process group.
    pub fn signal_group(&self, signal: Signal) {
        // The group may have ended already; the case learns that from the pipes.
        let _ = kill_process_group(self.pid, signal);
    }

    pub fn nudge(&self) {
        let _ = kill_process(self.pid, Signal::URG);
    }

    /// The exit status, if the worker has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The processes below the worker.
    pub fn descendants(&self) -> Vec<Pid> {
        descendants(self.pid)
    }

    /// Whether a process holds the worker's end of the protocol socket.
    pub fn reaches_socket(&self, pid: Pid) -> bool {
        let name = format!("socket:[{}]", self.socket_inode);
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        descriptors
            .filter_map(Result::ok)
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .any(|target| target.as_os_str() == name.as_str())
    }

    /// Kills the worker and everything that it has started. Returns the command names of processes that
    /// could not be ended.
    pub fn end(mut self) -> Vec<String> {
        let below = descendants(self.pid);
        // The pid is not reused until the worker is reaped, so the group is the worker's.
        self.signal_group(Signal::KILL);
        let until = Instant::now() + END_TIME;
        let mut left: Vec<String> =
            below.into_iter().filter(|pid| !is_ended(*pid, until)).map(name_of).collect();
        let _ = self.child.kill();
        let _ = self.child.wait();
        workers().remove(&self.pid.as_raw_nonzero().get());
        // A process that was forked meanwhile has lost its parent, and belongs to the check now.
        loop {
            let orphans = orphans();
            if orphans.is_empty() || Instant::now() >= until {
                return left;
            }
            for orphan in orphans {
                for process in [vec![orphan], descendants(orphan)].concat() {
                    if !is_ended(process, until) {
                        left.push(name_of(process));
                    }
                }
                let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
            }
        }
    }
}

/// Kills a process and waits until it has ended. It may stay as a zombie.
fn is_ended(pid: Pid, until: Instant) -> bool {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: 0 };
    let mut wait = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut wait, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// The children of this process that it did not start as workers.
fn orphans() -> Vec<Pid> {
    let own = getpid();
    let workers = workers();
    parents()
        .into_iter()
        .filter(|(pid, parent)| *parent == own && !workers.contains(&pid.as_raw_nonzero().get()))
        .map(|(pid, _)| pid)
        .collect()
}

fn descendants(root: Pid) -> Vec<Pid> {
    let parents = parents();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.remove(0);
    found
}

/// Every process, with its parent.
fn parents() -> Vec<(Pid, Pid)> {
    let Ok(entries) = fs::read_dir("/proc") else { return vec![] };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name is in parentheses and may contain any character.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((Pid::from_raw(pid)?, Pid::from_raw(parent)?))
        })
        .collect()
}

fn name_of(pid: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{pid} ({})", name.trim())
}

/// The value of a variable in the environment that a process was started with.
pub(crate) fn has_variable(pid: Pid, name: &str) -> io::Result<bool> {
    let environment = fs::read(format!("/proc/{pid}/environ"))?;
    let prefix = format!("{name}=");
    Ok(environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(prefix.as_bytes())))
}

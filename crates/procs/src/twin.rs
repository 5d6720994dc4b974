//! Holds a twin: a worker that another worker has forked, so its keeper is not its parent. The twin's keeper
//! is a fork of the original's keeper. It tracks the twin by a pidfd and by the twin's cgroups.
//!
//! All keepers of twins are children of the keeper of the family's first session, whichever keeper forked
//! them. So no keeper of a twin ends because another one ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, set_child_subreaper,
};
use windlass_protocol::link::Hold;

use crate::cgroup::joining;
use crate::hold::HeldTree;
use crate::{INIT_NAME, process_file, tree};

/// Maximum number of tracked processes of a session. Each takes a descriptor.
const TRACKED_MAX: usize = 256;

/// Maximum number of processes in one listing.
const LISTED_MAX: usize = 65_536;

/// Maximum number of rounds in which the processes of a session without a keeper are listed and killed.
const END_ROUNDS: usize = 64;

/// How long a round waits for one killed process before the next listing.
const END_WAIT: Duration = Duration::from_millis(100);

/// The result of [`fork_keeper`], which returns in two processes.
#[derive(Debug)]
pub enum KeeperFork {
    /// This process is the original keeper. It gets a handle on the new keeper.
    Original(TwinKeeper),
    /// This process is the new keeper. It holds the processes that it will start.
    Twin(HeldTree),
}

/// Another keeper's handle on the keeper of a twin.
#[derive(Debug)]
pub struct TwinKeeper {
    pid: u32,
    handle: OwnedFd,
}

impl TwinKeeper {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A pidfd: it becomes readable when the keeper has ended.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub fn has_ended(&self) -> bool {
        has_ended(&self.handle)
    }

    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

/// Forks a keeper for a twin from this process: the keeper that holds `held` and has one thread.
pub fn fork_keeper(held: &HeldTree) -> io::Result<KeeperFork> {
    let mut flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    if held.is_of_twin() {
        // The new keeper becomes a sibling of this keeper: the family's first keeper is the parent of both.
        flags |= libc::CLONE_PARENT;
    }
    let mut handle: libc::c_int = -1;
    // SAFETY: the caller has one thread, and the child gets a copy of its memory and stack, as from a fork.
    // The kernel writes one descriptor to `handle`, in the caller only.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, &raw mut handle, 0, 0)
    };
    match u32::try_from(pid) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(0) => {
            // Orphans below the new keeper become its children. After its end they become children of the
            // family's first keeper.
            if set_child_subreaper(Pid::from_raw(1)).is_err() {
                give_up();
            }
            // Leave the process group of the original keeper: signals to that group are not for this keeper.
            let _ = rustix::process::setpgid(None, None);
            Ok(KeeperFork::Twin(HeldTree::of_twin()))
        }
        Ok(pid) => {
            // SAFETY: the kernel has just created the descriptor for this call.
            let handle = unsafe { OwnedFd::from_raw_fd(handle) };
            Ok(KeeperFork::Original(TwinKeeper { pid, handle }))
        }
    }
}

/// Exits at once, without destructors or exit handlers: for a forked keeper whose start failed.
pub fn give_up() -> ! {
    // SAFETY: ends the process without running code of the caller.
    unsafe { libc::_exit(1) }
}

/// The keepers among the children of this process that are not in `known`: keepers of twins have forked them.
pub fn other_keepers(known: &[u32]) -> Vec<TwinKeeper> {
    let ours = std::fs::read_link("/proc/self/exe").ok();
    let is_keeper = |pid: &u32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let name = process_file::read(*pid, "comm").unwrap_or_default();
        ours.is_some() && program == ours && Some(name.trim_end()) != INIT_NAME.to_str().ok()
    };
    let children = tree::child_pids().into_iter();
    let others = children.filter(|pid| !known.contains(pid)).filter(is_keeper);
    // A child's process id is not reused before this process reaps the child.
    let handle =
        |pid: &u32| pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok();
    others.filter_map(|pid| Some(TwinKeeper { pid, handle: handle(&pid)? })).collect()
}

/// Kills inits of sessions whose keeper has ended: all children of this process that are named like an init
/// and are not in `known`.
pub fn end_other_inits(known: &[u32]) {
    let others = tree::children().into_iter().filter(|pid| {
        let number = pid.as_raw().unsigned_abs();
        let name = process_file::read(number, "comm").unwrap_or_default();
        !known.contains(&number) && Some(name.trim_end()) == INIT_NAME.to_str().ok()
    });
    for init in others {
        let _ = nix::sys::signal::kill(init, nix::sys::signal::Signal::SIGKILL);
    }
}

/// Kills the processes that a session without a keeper has left in its cgroups.
pub fn kill_leftovers(cgroups: &[PathBuf]) {
    let Some(group) = cgroups.first() else { return };
    for group in cgroups {
        // No process in the cgroup can fork any more, so a listing is complete.
        let _ = std::fs::write(group.join("pids.max"), "0");
    }
    let processes = group.join("cgroup.procs");
    let left = || listed(&processes);
    for _ in 0..END_ROUNDS {
        let handle = |pid: u32| {
            let number = Pid::from_raw(pid.cast_signed())?;
            Some((pid, pidfd_open(number, PidfdFlags::empty()).ok()?))
        };
        let handles: Vec<(u32, OwnedFd)> = left().into_iter().filter_map(handle).collect();
        // A process id that is listed again after its pidfd was opened still belongs to the same process.
        let still = left();
        if still.is_empty() {
            return;
        }
        let mut waited = None;
        for (_, handle) in handles.iter().filter(|(pid, _)| still.contains(pid)) {
            let _ = pidfd_send_signal(handle, Signal::KILL);
            waited = waited.or(Some(handle));
        }
        if let Some(handle) = waited {
            wait_for_end(handle, END_WAIT);
        }
    }
}

/// Sends SIGKILL to all children of this process that are not in `spared`. Returns whether there were any.
pub fn kill_children_but(spared: &[u32]) -> bool {
    let children = tree::children();
    let mut any = false;
    for child in children {
        if !spared.contains(&child.as_raw().unsigned_abs()) {
            let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
            any = true;
        }
    }
    any
}

/// The processes of one session of a family: the processes in the session's cgroups or, without cgroups, the
/// root process (the worker) and its descendants.
#[derive(Debug)]
pub struct SessionProcesses {
    root: u32,
    /// A pidfd of the root: process ids are reused, a pidfd is not.
    handle: OwnedFd,
    cgroups: Vec<PathBuf>,
    /// Processes that were below the root at some time. When their parent ends, they get another parent and
    /// are not found below the root any more.
    tracked: Mutex<Vec<TrackedProcess>>,
}

#[derive(Debug)]
struct TrackedProcess {
    pid: u32,
    handle: OwnedFd,
}

impl TrackedProcess {
    fn has_ended(&self) -> bool {
        has_ended(&self.handle)
    }
}

impl SessionProcesses {
    /// The processes in `cgroups` or, if there are none, `root` and its descendants.
    pub fn of(root: u32, cgroups: &[PathBuf]) -> io::Result<Self> {
        let pid = Pid::from_raw(root.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { root, handle, cgroups: cgroups.to_vec(), tracked: Mutex::default() })
    }

    pub fn root(&self) -> u32 {
        self.root
    }

    /// A pidfd: it becomes readable when the root has ended.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub fn root_ended(&self) -> bool {
        has_ended(&self.handle)
    }

    /// Starts a process that moves the root into its cgroups, and returns its id. That process exits with 0
    /// when the move is done. Without cgroups the result is `None`.
    pub fn join(&self) -> io::Result<Option<u32>> {
        if self.cgroups.is_empty() {
            return Ok(None);
        }
        let root = nix::unistd::Pid::from_raw(self.root.cast_signed());
        let mover = joining::start(&joining::open(&self.cgroups)?, root)?;
        Ok(Some(mover.as_raw().unsigned_abs()))
    }

    /// The ids of the session's processes that have not ended.
    pub fn members(&self) -> Vec<u32> {
        let mut found = match self.cgroups.first() {
            Some(group) => listed(&group.join("cgroup.procs")),
            None => self.below_tracked(),
        };
        if !self.root_ended() && !found.contains(&self.root) {
            found.insert(0, self.root);
        }
        found
    }

    /// The descendants of the root, and the tracked processes that are alive with their descendants.
    fn below_tracked(&self) -> Vec<u32> {
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        tracked.retain(|process| !process.has_ended());
        let mut found = below(self.root);
        for process in tracked.iter() {
            if !found.contains(&process.pid) {
                found.push(process.pid);
                let more = below(process.pid).into_iter().filter(|pid| !found.contains(pid));
                let more: Vec<u32> = more.collect();
                found.extend(more);
            }
        }
        add(&mut tracked, &found);
        found
    }

    /// Adds processes that belong to this session although they are no longer below its root.
    pub fn track(&self, processes: &[u32]) {
        if self.cgroups.is_empty() {
            add(&mut self.tracked.lock().unwrap_or_else(PoisonError::into_inner), processes);
        }
    }

    /// Stops tracking a twin, which was below the root when it was forked, and the twin's descendants.
    pub fn untrack(&self, twin: u32) {
        let not_own = below(twin);
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        tracked.retain(|process| process.pid != twin && !not_own.contains(&process.pid));
    }

    /// The current descendants of the root.
    pub fn below_root(&self) -> Vec<u32> {
        below(self.root)
    }

    /// Sends SIGKILL to each process of the session that is not in `spared`. Returns a pidfd of one of them:
    /// the caller waits for it and calls again. The result is `None` when no process is left.
    pub fn kill(&self, spared: &[u32]) -> Option<OwnedFd> {
        if let Some(group) = self.cgroups.first().filter(|_| spared.is_empty()) {
            // Kernels with `cgroup.kill` kill all at once, also processes that fork faster than they are
            // listed.
            let _ = std::fs::write(group.join("cgroup.kill"), "1");
        }
        let mut left = None;
        // The processes that were started last are killed first. The caller repeats until none is left.
        let ending = self.members().into_iter().rev().filter(|pid| !spared.contains(pid));
        for pid in ending {
            let Some(pid) = Pid::from_raw(pid.cast_signed()) else { continue };
            let handle = pidfd_open(pid, PidfdFlags::empty()).ok();
            let _ = kill_process(pid, Signal::KILL);
            left = left.or(handle);
        }
        left
    }
}

fn add(tracked: &mut Vec<TrackedProcess>, processes: &[u32]) {
    for pid in processes {
        if tracked.len() == TRACKED_MAX {
            return;
        }
        if tracked.iter().any(|process| process.pid == *pid) {
            continue;
        }
        let number = Pid::from_raw(pid.cast_signed());
        let handle = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        tracked.extend(handle.map(|handle| TrackedProcess { pid: *pid, handle }));
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec::default();
    !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(0))
}

fn wait_for_end(process: &OwnedFd, longest: Duration) {
    let longest = Timespec::try_from(longest).unwrap_or_default();
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&longest));
}

impl HeldTree {
    /// The tree of a twin's keeper. The keeper is a subreaper for the processes that it starts itself. The
    /// twin is tracked by [`SessionProcesses`].
    fn of_twin() -> Self {
        Self::new(Hold::Subreaper, 0)
    }

    /// Whether this is the keeper of a twin.
    fn is_of_twin(&self) -> bool {
        self.pid() == 0
    }
}

fn listed(file: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let numbers = text.lines().filter_map(|line| line.parse().ok());
    // A process of another pid namespace is listed as 0.
    numbers.filter(|pid| *pid != 0 && !is_zombie(*pid)).take(LISTED_MAX).collect()
}

/// All descendants of a process.
pub(crate) fn below(root: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        if found.len() == LISTED_MAX || is_zombie(pid) {
            continue;
        }
        found.push(pid);
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    found.retain(|pid| *pid != root);
    found
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Whether a process is a zombie or does not exist. A process whose first thread has ended also has the state
/// of a zombie, but it is alive if it has other threads.
fn is_zombie(pid: u32) -> bool {
    let stat = match process_file::read(pid, "stat") {
        Ok(stat) => stat,
        // Any other read error does not mean that the process has ended.
        Err(error) => return is_gone(&error),
    };
    let first_has_ended = stat
        .rfind(')')
        .is_none_or(|end| stat[end..].starts_with(") Z") || stat[end..].starts_with(") X"));
    first_has_ended && !has_other_threads(pid)
}

fn has_other_threads(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A Python process that prints `up` and then waits until it is killed.
    fn python(code: &str) -> Child {
        let code = format!("import os, sys, threading\n{code}");
        let mut command = Command::new("python3");
        let command = command.arg("-c").arg(code).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        child
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_ended_too() {
        let mut child = python(
            "import ctypes\n\
             pid = os.fork()\n\
             def other():\n\
             \twhile open('/proc/self/stat').read().split()[2] != 'Z': os.sched_yield()\n\
             \tprint('up', flush=True); sys.stdin.read()\n\
             if pid == 0:\n\
             \tthreading.Thread(target=other).start()\n\
             \tctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\n\
             os.waitpid(pid, 0)",
        );
        let part = SessionProcesses::of(child.id(), &[]).unwrap();
        let members = part.members();
        assert_eq!(members.len(), 2, "{members:?}");
        let inner = *members.iter().find(|pid| **pid != child.id()).unwrap();
        assert!(!is_zombie(inner));
        let inner = SessionProcesses::of(inner, &[]).unwrap();
        while part.kill(&[]).is_some() && !inner.root_ended() {}
        child.wait().unwrap();
        assert!(inner.root_ended() && part.members().is_empty());
    }
}

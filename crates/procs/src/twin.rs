//! Holding a twin: a worker that was forked by another worker, so its keeper is not its parent. The
//! twin's keeper is a fork of the original's keeper. It knows the twin by a handle on the process and by
//! its control groups. All twins' keepers are children of the keeper of the family's first session,
//! whichever of them made them: the end of one is not the end of another.

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
use crate::hold::Held;
use crate::{INIT_NAME, process_file, tree};

/// Processes of a session that are remembered, each by a descriptor.
const SEEN_MAX: usize = 256;

/// Processes that one listing takes in.
const LISTED_MAX: usize = 65_536;

/// Times that the processes of a lost session are listed and killed.
const END_ROUNDS: usize = 64;

/// How long one of them is waited for before they are listed again.
const END_WAIT: Duration = Duration::from_millis(100);

/// What a fork of the keeper is.
#[derive(Debug)]
pub enum Forked {
    /// Still the keeper that was forked.
    Original(TwinKeeper),
    /// The new keeper, which holds what it starts from now on.
    Twin(Held),
}

/// A keeper of a twin, seen by another keeper.
#[derive(Debug)]
pub struct TwinKeeper {
    pid: u32,
    handle: OwnedFd,
}

impl TwinKeeper {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Can be read from once it has ended.
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

/// Forks this process, the keeper that has `held` and has one thread, into itself and a keeper for a twin.
pub fn fork_keeper(held: &Held) -> io::Result<Forked> {
    let mut flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    if held.is_of_twin() {
        // A sister of this keeper, not a child: the family's first keeper is the parent of both.
        flags |= libc::CLONE_PARENT;
    }
    let mut handle: libc::c_int = -1;
    // SAFETY: the caller has one thread and the child gets a copy of its memory and stack, as from a fork; the
    // kernel writes one descriptor to `handle`, in the caller only.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, &raw mut handle, 0, 0)
    };
    match u32::try_from(pid) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(0) => {
            // What it starts comes back to it, and to the family's first keeper only when it is gone.
            if set_child_subreaper(Pid::from_raw(1)).is_err() {
                give_up();
            }
            // Of the same group as the family's: a signal to that is not for this one.
            let _ = rustix::process::setpgid(None, None);
            Ok(Forked::Twin(Held::of_twin()))
        }
        Ok(pid) => {
            // SAFETY: the kernel has just made it for this call.
            let handle = unsafe { OwnedFd::from_raw_fd(handle) };
            Ok(Forked::Original(TwinKeeper { pid, handle }))
        }
    }
}

/// Ends this process as it is, without what an ordinary end runs: for a keeper that could not begin.
pub fn give_up() -> ! {
    // SAFETY: ends the process without running anything of the caller's.
    unsafe { libc::_exit(1) }
}

/// The keepers among the children of this process but the `known`: those that a twin's keeper has made.
pub fn other_keepers(known: &[u32]) -> Vec<TwinKeeper> {
    let ours = std::fs::read_link("/proc/self/exe").ok();
    let is_keeper = |pid: &u32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let name = process_file::read(*pid, "comm").unwrap_or_default();
        ours.is_some() && program == ours && Some(name.trim_end()) != INIT_NAME.to_str().ok()
    };
    let children = tree::children().into_iter().map(|pid| pid.as_raw().unsigned_abs());
    let others = children.filter(|pid| !known.contains(pid)).filter(is_keeper);
    // A child's number is its own until this process reaps it.
    let handle =
        |pid: &u32| pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok();
    others.filter_map(|pid| Some(TwinKeeper { pid, handle: handle(&pid)? })).collect()
}

/// Ends the first processes of namespaces that have come to this process as the keeper that held them went: all
/// children of that name but the `known`.
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

/// Ends what a session without a keeper has left in its control groups.
pub fn end_left(cgroups: &[PathBuf]) {
    let Some(group) = cgroups.first() else { return };
    for group in cgroups {
        // Nothing forks any more, so a listing is whole.
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
        // Listed after its handle was opened: the number was not given to somebody else meanwhile.
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

/// SIGKILL to the children of this process but the `spared`; whether there were any.
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

/// The processes of one session among those of a family.
#[derive(Debug)]
pub struct Part {
    root: u32,
    /// Tells when the root has ended, and is surely it.
    handle: OwnedFd,
    cgroups: Vec<PathBuf>,
    /// Processes that were seen below the root. When it ends, those that it started go to somebody else.
    seen: Mutex<Vec<Seen>>,
}

#[derive(Debug)]
struct Seen {
    pid: u32,
    handle: OwnedFd,
}

impl Seen {
    fn has_ended(&self) -> bool {
        has_ended(&self.handle)
    }
}

impl Part {
    /// What is at and below `root`, or in the control groups where there are any.
    pub fn of(root: u32, cgroups: &[PathBuf]) -> io::Result<Self> {
        let pid = Pid::from_raw(root.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { root, handle, cgroups: cgroups.to_vec(), seen: Mutex::default() })
    }

    pub fn root(&self) -> u32 {
        self.root
    }

    /// Can be read from once the root has ended.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub fn root_ended(&self) -> bool {
        has_ended(&self.handle)
    }

    /// Moves the root into its control groups, by a process that ends with 0 when that is done;
    /// nothing where there are none.
    pub fn join(&self) -> io::Result<Option<u32>> {
        if self.cgroups.is_empty() {
            return Ok(None);
        }
        let root = nix::unistd::Pid::from_raw(self.root.cast_signed());
        let mover = joining::start(&joining::open(&self.cgroups)?, root)?;
        Ok(Some(mover.as_raw().unsigned_abs()))
    }

    /// The numbers of its processes that have not ended.
    pub fn members(&self) -> Vec<u32> {
        let mut found = match self.cgroups.first() {
            Some(group) => listed(&group.join("cgroup.procs")),
            None => self.below_what_was_seen(),
        };
        if !self.root_ended() && !found.contains(&self.root) {
            found.insert(0, self.root);
        }
        found
    }

    /// What is below the root, and what was once and still lives, with all below that.
    fn below_what_was_seen(&self) -> Vec<u32> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|process| !process.has_ended());
        let mut found = below(self.root);
        for process in seen.iter() {
            if !found.contains(&process.pid) {
                found.push(process.pid);
                let more = below(process.pid).into_iter().filter(|pid| !found.contains(pid));
                let more: Vec<u32> = more.collect();
                found.extend(more);
            }
        }
        add(&mut seen, &found);
        found
    }

    /// Adds processes that belong to this part although they are no longer below its root.
    pub fn remember(&self, processes: &[u32]) {
        if self.cgroups.is_empty() {
            add(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner), processes);
        }
    }

    /// Removes a twin, which was below the root when it was forked, and everything below that twin.
    pub fn forget(&self, twin: u32) {
        let not_own = below(twin);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|process| process.pid != twin && !not_own.contains(&process.pid));
    }

    /// What the root has started, and is still below it.
    pub fn below_root(&self) -> Vec<u32> {
        below(self.root)
    }

    /// SIGKILL to each of them but the `spared`; a handle on one that is still there, to wait for
    /// before it is called again. Nothing when none is left.
    pub fn kill(&self, spared: &[u32]) -> Option<OwnedFd> {
        if let Some(group) = self.cgroups.first().filter(|_| spared.is_empty()) {
            // Where the kernel can do it at once, also to what forks faster than it can be listed.
            let _ = std::fs::write(group.join("cgroup.kill"), "1");
        }
        let mut left = None;
        // Those that were started last come first: nobody is left who would start them again.
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

fn add(seen: &mut Vec<Seen>, processes: &[u32]) {
    for pid in processes {
        if seen.len() == SEEN_MAX {
            return;
        }
        if seen.iter().any(|process| process.pid == *pid) {
            continue;
        }
        let number = Pid::from_raw(pid.cast_signed());
        let handle = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        seen.extend(handle.map(|handle| Seen { pid: *pid, handle }));
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

impl Held {
    /// Of a keeper whose twin is held from outside, and what it starts itself by being a subreaper.
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
    // One of another namespace shows as 0.
    numbers.filter(|pid| *pid != 0 && !is_zombie(*pid)).take(LISTED_MAX).collect()
}

/// A process and all that it has started and that is still below it.
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

/// Whether a process has ended and was not reaped, or is none. One whose first thread has ended looks like that
/// and is alive.
fn is_zombie(pid: u32) -> bool {
    let stat = match process_file::read(pid, "stat") {
        Ok(stat) => stat,
        // What cannot be read for another reason may well be alive.
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

    /// Python that says when it is up and then waits until it is killed.
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
        let part = Part::of(child.id(), &[]).unwrap();
        let members = part.members();
        assert_eq!(members.len(), 2, "{members:?}");
        let inner = *members.iter().find(|pid| **pid != child.id()).unwrap();
        assert!(!is_zombie(inner));
        let inner = Part::of(inner, &[]).unwrap();
        while part.kill(&[]).is_some() && !inner.root_ended() {}
        child.wait().unwrap();
        assert!(inner.root_ended() && part.members().is_empty());
    }
}

//! Holding a twin: a worker that was forked by another worker, so its keeper is not its parent. The
//! twin's keeper is forked from the keeper of the family. It knows the twin by a handle on the
//! process and by its control groups.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::unistd::{ForkResult, fork};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, set_child_subreaper};
use windlass_protocol::link::Hold;

use crate::hold::Held;
use crate::spawn::{INIT_NAME, SpawnError, start_joining};
use crate::{process_file, tree};

/// Processes of a session that are remembered, each by a descriptor.
const SEEN_MAX: usize = 256;

/// Processes that one listing takes in.
const LISTED_MAX: usize = 65_536;

/// What a fork of the keeper is.
#[derive(Debug)]
pub enum Forked {
    /// Still the keeper of the family; the new one has this number.
    Parent(u32),
    /// The new keeper, which holds what it starts from now on.
    Child(Held),
}

/// Forks this process, which has one thread, into itself and a keeper for a twin.
pub fn fork_keeper() -> io::Result<Forked> {
    // SAFETY: the caller has one thread, so the child may do anything a process may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Forked::Parent(child.as_raw().unsigned_abs())),
        ForkResult::Child => {
            // What it starts comes back to it, and to the family's keeper only when it is gone.
            set_child_subreaper(Pid::from_raw(1))?;
            // Of the same group as the family's: a signal to that is not for this one.
            let _ = rustix::process::setpgid(None, None);
            Ok(Forked::Child(Held::of_twin()))
        }
    }
}

/// Ends this process as it is, without what an ordinary end runs: for a keeper that could not begin.
pub fn give_up() -> ! {
    // SAFETY: ends the process without running anything of the caller's.
    unsafe { libc::_exit(1) }
}

/// The keepers among the children of this process: its own forks, and those that have come to it as
/// the keeper that had made them went.
pub fn keepers() -> Vec<u32> {
    let ours = std::fs::read_link("/proc/self/exe").ok();
    let is_keeper = |pid: &u32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let name = process_file::read(*pid, "comm").unwrap_or_default();
        ours.is_some() && program == ours && name.trim_end() != INIT_NAME
    };
    let children = tree::children().into_iter().map(|pid| pid.as_raw().unsigned_abs());
    children.filter(is_keeper).collect()
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
    pub fn join(&self) -> Result<Option<u32>, SpawnError> {
        if self.cgroups.is_empty() {
            return Ok(None);
        }
        start_joining(&self.cgroups, self.root).map(Some)
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
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec::default();
    !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(0))
}

impl Held {
    /// Of a keeper whose twin is held from outside, and what it starts itself by being a subreaper.
    fn of_twin() -> Self {
        Self::new(Hold::Subreaper, 0)
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

/// Whether a process has ended and was not reaped, or is none.
fn is_zombie(pid: u32) -> bool {
    let stat = match process_file::read(pid, "stat") {
        Ok(stat) => stat,
        // What cannot be read for another reason may well be alive.
        Err(error) => return is_gone(&error),
    };
    stat.rfind(')')
        .is_none_or(|end| stat[end..].starts_with(") Z") || stat[end..].starts_with(") X"))
}

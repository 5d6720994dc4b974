//! The processes that keepers were started as: the node learns a keeper's pid from its first
//! answer, and until then this knows which process to end. Owns their reaping, since a pid is
//! surely somebody's only as long as nobody has reaped it.
//!
//! A keeper's first process starts a process session of its own and forks. Either it stays above
//! the keeper (a guard), or it exits and the keeper comes to us as an orphan of that session. No
//! other process is ever in it before the keeper has answered. While the keeper lives, nobody else
//! gets the first one's number: it is its session's.
//!
//! The first process is ours, or the nursery's, who reaps it without telling us: so one that has
//! exited is found out when it matters.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getsid, pidfd_open, pidfd_send_signal, wait,
};
use tokio::sync::Notify;
use windlass_protocol::SessionId;

use crate::nursery::Born;

/// How long a killed process may take to be gone.
const GONE_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// See the module's first lines.
#[derive(Debug, Default)]
pub(crate) struct Starting {
    /// Locked while a process is started, and while processes are reaped: so a new process cannot
    /// get the number of one that is still looked for.
    keepers: Mutex<HashMap<SessionId, Process>>,
    /// Told when a start is over: what could not be reaped meanwhile can be.
    started: Notify,
}

#[derive(Debug)]
enum Process {
    /// The one that was started; it may have exited since.
    First { pid: Pid, handle: OwnedFd },
    /// The first one has exited, and left this one to us.
    Keeper { handle: OwnedFd },
    /// The keeper has answered, and the first one is still there: it guards the keeper, or is about
    /// to exit.
    Guard { pid: Pid, handle: OwnedFd },
}

/// A keeper that has not answered, and that nobody else knows any more.
#[derive(Debug)]
pub(crate) struct Unanswered(Process);

impl Starting {
    /// Starts a session's keeper.
    pub fn spawn(&self, session: &SessionId, command: &mut Command) -> io::Result<()> {
        let mut keepers = self.lock();
        // Reaped here, like every keeper that comes to us as an orphan.
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => insert(&mut keepers, session, Born { pid, handle }),
            Err(error) => tracing::warn!(%session, %error, "a keeper's process has no handle"),
        }
        drop(keepers);
        self.started.notify_one();
        Ok(())
    }

    /// Knows a session's keeper that the nursery has forked, by its first process.
    pub fn adopt(&self, session: &SessionId, first: Born) {
        insert(&mut self.lock(), session, first);
    }

    /// A keeper that was started under one name has another from now on.
    pub fn rename(&self, from: &SessionId, to: &SessionId) {
        let mut keepers = self.lock();
        if let Some(process) = keepers.remove(from) {
            keepers.insert(to.clone(), process);
        }
    }

    /// Runs `start`, which starts a process, while none is reaped.
    pub fn without_reaping<T>(&self, start: impl FnOnce() -> T) -> T {
        let keepers = self.lock();
        let started = start();
        drop(keepers);
        self.started.notify_one();
        started
    }

    /// The keeper has answered: its link knows the rest.
    pub fn answered(&self, session: &SessionId) {
        let mut keepers = self.lock();
        if let Some(Process::First { pid, handle }) = keepers.remove(session)
            && alive(&handle)
        {
            keepers.insert(session.clone(), Process::Guard { pid, handle });
        }
    }

    /// The session is over. What its keeper left is its guard's to end, which must not stay
    /// stopped if somebody has stopped it.
    pub fn forget(&self, session: &SessionId) {
        match self.lock().remove(session) {
            Some(Process::First { handle, .. } | Process::Guard { handle, .. }) => wake(&handle),
            Some(Process::Keeper { .. }) | None => {}
        }
    }

    /// Ends a keeper that has not answered. May wait a little for a process to be gone.
    pub fn end(&self, session: &SessionId) {
        if let Some(unanswered) = self.take(session) {
            self.end_taken(unanswered);
        }
    }

    /// Takes out a keeper that has not answered, for [`Self::end_taken`].
    pub fn take(&self, session: &SessionId) -> Option<Unanswered> {
        self.lock().remove(session).map(Unanswered)
    }

    /// Ends a keeper that was taken out. May wait a little for a process to be gone.
    pub fn end_taken(&self, Unanswered(process): Unanswered) {
        let _keepers = self.lock();
        match process {
            Process::Guard { handle, .. } => wake(&handle),
            Process::Keeper { handle } => kill(&handle),
            Process::First { pid, handle } => end_first(pid, &handle),
        }
    }

    /// Reaps whatever has ended; later, when a process is being started just now.
    pub fn reap(&self) {
        let mut keepers = match self.keepers.try_lock() {
            Ok(keepers) => keepers,
            Err(TryLockError::Poisoned(keepers)) => keepers.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        while let Ok(Some((ended, _))) = wait(WaitOptions::NOHANG) {
            let of_it = keepers.iter().find(|(_, process)| process.is_first(ended));
            let Some(session) = of_it.map(|(session, _)| session.clone()) else { continue };
            if let Some(Process::First { pid, .. }) = keepers.remove(&session)
                && let Some(handle) = orphan_of(pid)
            {
                keepers.insert(session, Process::Keeper { handle });
            }
        }
    }

    /// Waits until a start is over.
    pub async fn started(&self) {
        self.started.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Process>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert(keepers: &mut HashMap<SessionId, Process>, session: &SessionId, first: Born) {
    let Born { pid, handle } = first;
    // Who had this number before has left no keeper.
    keepers.retain(|_, process| !process.is_first(pid));
    keepers.insert(session.clone(), Process::First { pid, handle });
}

impl Process {
    fn is_first(&self, ended: Pid) -> bool {
        match self {
            Self::First { pid, .. } | Self::Guard { pid, .. } => *pid == ended,
            Self::Keeper { .. } => false,
        }
    }
}

/// What the first process `first`, which has exited, has left to us.
fn orphan_of(first: Pid) -> Option<OwnedFd> {
    let ours = children("/proc/self/task");
    let of_first = |child: &Pid| *child != first && getsid(Some(*child)) == Ok(first);
    // The newest come last.
    let keeper = ours.into_iter().rev().find(of_first)?;
    // A child of ours that we have not reaped: the number is its own.
    pidfd_open(keeper, PidfdFlags::empty()).ok()
}

/// Ends a first process and the keeper below it, if it has come to that. A guard then sees to what
/// the keeper leaves, so it must not be ended, nor stay stopped.
fn end_first(pid: Pid, first: &OwnedFd) {
    let below = children(&format!("/proc/{}/task", pid.as_raw_nonzero()));
    let mut ended = false;
    for child in below {
        // Whoever has this number once we have a handle on it and is alive after it was looked at
        // had it all the time.
        if let Ok(handle) = pidfd_open(child, PidfdFlags::empty())
            && getsid(Some(child)) == Ok(pid)
            && alive(&handle)
        {
            kill(&handle);
            ended = true;
        }
    }
    if ended {
        wake(first);
        return;
    }
    kill(first);
    // It may have forked just before, or long ago: then the keeper comes to us when it is gone.
    let _ = poll(&mut [PollFd::new(first, PollFlags::IN)], Some(&GONE_WAIT));
    if let Some(keeper) = orphan_of(pid) {
        kill(&keeper);
    }
}

/// Lets a stopped process go on. One that has ended needs nothing.
fn wake(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::CONT);
}

fn kill(process: &OwnedFd) {
    if let Err(error) = pidfd_send_signal(process, Signal::KILL) {
        tracing::debug!(%error, "the keeper had ended already");
    }
}

/// A process's handle can be read from once it has ended.
fn alive(process: &OwnedFd) -> bool {
    let now = Timespec::default();
    matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(0))
}

/// The children of all threads below `tasks`.
fn children(tasks: &str) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(tasks) else { return Vec::new() };
    let lists =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let numbers = list.split_ascii_whitespace();
            numbers.filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect::<Vec<_>>()
        })
        .collect()
}

//! The first process of each keeper. The node learns a keeper's pid from its first answer; until then
//! this module knows which process to kill. It also owns the reaping, because a pid identifies a process
//! only until the process is reaped.
//!
//! A keeper's first process starts a new process session (`setsid`) and forks. Either it stays as the
//! parent of the keeper (a guard), or it exits and the keeper becomes an orphan that the node inherits. No
//! other process is in that process session before the keeper has answered. While the keeper lives, no
//! other process can get the pid of the first process, because it is the id of the process session.
//!
//! The first process is a child of the node or of the nursery. The nursery reaps without a notice, so
//! this module checks whether a first process has exited only when it needs to know.

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

use crate::nursery::NurseryChild;

/// Maximum time to wait for a killed process to be gone.
const GONE_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The keeper processes of all sessions.
#[derive(Debug, Default)]
pub(crate) struct KeeperProcesses {
    /// Locked while a process is started and while processes are reaped, so that a new process cannot get
    /// the pid of a process that is still searched for.
    keepers: Mutex<HashMap<SessionId, KeeperProcess>>,
    /// Notified when a start is complete, because reaping was not possible during the start.
    started: Notify,
}

#[derive(Debug)]
enum KeeperProcess {
    /// The first process; it may have exited since.
    First { pid: Pid, handle: OwnedFd },
    /// The first process has exited, and the node has inherited the keeper.
    Keeper { handle: OwnedFd },
    /// The keeper has answered, and the first process still runs: it is a guard, or is about to exit.
    Guard { pid: Pid, handle: OwnedFd },
}

/// A keeper that has not answered and was taken out of the table.
#[derive(Debug)]
pub(crate) struct UnansweredKeeper(KeeperProcess);

impl KeeperProcesses {
    /// Starts a session's keeper as a program.
    pub fn spawn(&self, session: &SessionId, command: &mut Command) -> io::Result<()> {
        let mut keepers = self.lock();
        // `reap` reaps this child, like every inherited keeper.
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => insert(&mut keepers, session, NurseryChild { pid, handle }),
            Err(error) => {
                tracing::warn!(%session, %error, "cannot open a pidfd of a keeper's process")
            }
        }
        drop(keepers);
        self.started.notify_one();
        Ok(())
    }

    /// Adds the first process of a keeper that the nursery has forked.
    pub fn adopt(&self, session: &SessionId, first: NurseryChild) {
        insert(&mut self.lock(), session, first);
    }

    /// Gives a keeper another session id: a pooled worker got its session.
    pub fn rename(&self, from: &SessionId, to: &SessionId) {
        let mut keepers = self.lock();
        if let Some(process) = keepers.remove(from) {
            keepers.insert(to.clone(), process);
        }
    }

    /// Runs `start`, which starts a process, while no process is reaped.
    pub fn without_reaping<T>(&self, start: impl FnOnce() -> T) -> T {
        let keepers = self.lock();
        let started = start();
        drop(keepers);
        self.started.notify_one();
        started
    }

    /// Notes that the keeper has answered, so its link knows its pid.
    pub fn answered(&self, session: &SessionId) {
        let mut keepers = self.lock();
        if let Some(KeeperProcess::First { pid, handle }) = keepers.remove(session)
            && alive(&handle)
        {
            keepers.insert(session.clone(), KeeperProcess::Guard { pid, handle });
        }
    }

    /// Forgets a session that has ended. The guard kills what the keeper left, so a stopped guard (SIGSTOP)
    /// is continued.
    pub fn forget(&self, session: &SessionId) {
        match self.lock().remove(session) {
            Some(KeeperProcess::First { handle, .. } | KeeperProcess::Guard { handle, .. }) => {
                wake(&handle)
            }
            Some(KeeperProcess::Keeper { .. }) | None => {}
        }
    }

    /// Kills a keeper that has not answered. May block for a moment until a process is gone.
    pub fn end(&self, session: &SessionId) {
        if let Some(unanswered) = self.take(session) {
            self.end_taken(unanswered);
        }
    }

    /// Removes a keeper that has not answered from the table, for [`Self::end_taken`].
    pub fn take(&self, session: &SessionId) -> Option<UnansweredKeeper> {
        self.lock().remove(session).map(UnansweredKeeper)
    }

    /// Kills a keeper that was taken out. May block for a moment until a process is gone.
    pub fn end_taken(&self, UnansweredKeeper(process): UnansweredKeeper) {
        let _keepers = self.lock();
        match process {
            KeeperProcess::Guard { handle, .. } => wake(&handle),
            KeeperProcess::Keeper { handle } => kill(&handle),
            KeeperProcess::First { pid, handle } => end_first(pid, &handle),
        }
    }

    /// Reaps all ended children. Does nothing while a process is being started; `started` tells when to
    /// retry.
    pub fn reap(&self) {
        let mut keepers = match self.keepers.try_lock() {
            Ok(keepers) => keepers,
            Err(TryLockError::Poisoned(keepers)) => keepers.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        while let Ok(Some((ended, _))) = wait(WaitOptions::NOHANG) {
            let of_it = keepers.iter().find(|(_, process)| process.is_first(ended));
            let Some(session) = of_it.map(|(session, _)| session.clone()) else { continue };
            if let Some(KeeperProcess::First { pid, .. }) = keepers.remove(&session)
                && let Some(handle) = orphan_of(pid)
            {
                keepers.insert(session, KeeperProcess::Keeper { handle });
            }
        }
    }

    /// Waits until a start is complete.
    pub async fn started(&self) {
        self.started.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, KeeperProcess>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert(
    keepers: &mut HashMap<SessionId, KeeperProcess>,
    session: &SessionId,
    first: NurseryChild,
) {
    let NurseryChild { pid, handle } = first;
    // An earlier process with this pid is gone, and its keeper too.
    keepers.retain(|_, process| !process.is_first(pid));
    keepers.insert(session.clone(), KeeperProcess::First { pid, handle });
}

impl KeeperProcess {
    fn is_first(&self, ended: Pid) -> bool {
        match self {
            Self::First { pid, .. } | Self::Guard { pid, .. } => *pid == ended,
            Self::Keeper { .. } => false,
        }
    }
}

/// The keeper that the node inherited when the process `first` exited.
fn orphan_of(first: Pid) -> Option<OwnedFd> {
    let ours = children("/proc/self/task");
    let of_first = |child: &Pid| *child != first && getsid(Some(*child)) == Ok(first);
    // The newest children come last.
    let keeper = ours.into_iter().rev().find(of_first)?;
    // An unreaped child of the node, so the pid is its own.
    pidfd_open(keeper, PidfdFlags::empty()).ok()
}

/// Kills a first process and the keeper below it, if the keeper exists already. A guard cleans up after the
/// keeper, so a guard is not killed, and is continued if it is stopped.
fn end_first(pid: Pid, first: &OwnedFd) {
    let below = children(&format!("/proc/{}/task", pid.as_raw_nonzero()));
    let mut ended = false;
    for child in below {
        // If the process is alive after the check, the pid belonged to it during the whole check.
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
    // The first process may have forked just before. Then the node inherits the keeper.
    let _ = poll(&mut [PollFd::new(first, PollFlags::IN)], Some(&GONE_WAIT));
    if let Some(keeper) = orphan_of(pid) {
        kill(&keeper);
    }
}

/// Continues a stopped process. An error means that the process has ended.
fn wake(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::CONT);
}

fn kill(process: &OwnedFd) {
    if let Err(error) = pidfd_send_signal(process, Signal::KILL) {
        tracing::debug!(%error, "the keeper had ended already");
    }
}

/// Whether a process runs: a pidfd becomes readable when its process has ended.
fn alive(process: &OwnedFd) -> bool {
    let now = Timespec::default();
    matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(0))
}

/// The children of all threads in a `/proc/PID/task` directory.
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

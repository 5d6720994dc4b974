//! Which processes belong to this session. A session without twins owns every process below its keeper. In a
//! family the session owns only a subset, and the keeper kills only that subset.

use std::os::fd::{AsFd, BorrowedFd};

use windlass_procs::HeldTree;
use windlass_procs::twin::{SessionProcesses, kill_children_but};

use crate::family::Family;
use crate::watch::ProcessList;

/// The processes that belong to the session.
#[derive(Debug, Default)]
pub(crate) enum ProcessScope {
    /// Every process below this keeper.
    #[default]
    AllBelow,
    /// The worker is a child of this keeper, and there are twins.
    OwnWorker(SessionProcesses),
    /// The worker is a twin: it is not a child of this keeper.
    TwinWorker(SessionProcesses),
}

impl ProcessScope {
    /// The session's processes, if they are not all processes below the keeper.
    pub fn subset(&self) -> Option<&SessionProcesses> {
        match self {
            Self::AllBelow => None,
            Self::OwnWorker(processes) | Self::TwinWorker(processes) => Some(processes),
        }
    }
}

impl Family {
    /// Sends SIGKILL to every process of this session.
    pub fn kill_session(&mut self, held: &HeldTree) {
        match self.scope.subset() {
            None => held.kill_all(),
            Some(processes) => self.killed = processes.kill(&self.spared()),
        }
        if let ProcessScope::TwinWorker(_) = self.scope {
            // Children of a twin's keeper are the remains of a worker that could not be started.
            kill_children_but(&self.keepers());
        }
    }

    /// Whether no process of this session is left. `no_child` says that this keeper has no child; that is
    /// enough if every process below the keeper belongs to the session.
    pub fn none_left(&self, no_child: bool) -> bool {
        match self.scope.subset() {
            None => no_child,
            Some(processes) => {
                let spared = self.spared();
                processes.members().iter().all(|pid| spared.contains(pid))
            }
        }
    }

    /// The processes of this session.
    pub fn listed(&self) -> ProcessList {
        match self.scope.subset() {
            None => ProcessList::below_this(),
            Some(processes) => {
                let spared = self.spared();
                ProcessList::of(processes.members().into_iter().filter(|pid| !spared.contains(pid)))
            }
        }
    }

    /// The pidfd of a worker that is a twin: the keeper is not its parent and gets no SIGCHLD for it.
    pub fn twin_handle(&self, worker: u32) -> Option<BorrowedFd<'_>> {
        let ProcessScope::TwinWorker(processes) = &self.scope else { return None };
        (worker == processes.root()).then(|| processes.handle())
    }

    /// The pidfd of a killed process that the keeper waits for.
    pub fn killed_handle(&self) -> Option<BorrowedFd<'_>> {
        self.killed.as_ref().map(AsFd::as_fd)
    }
}

//! Which of the processes around are this session's. Alone, that is everything below the keeper; in a
//! family it is a part, and nothing else is ever ended for it.

use std::os::fd::{AsFd, BorrowedFd};

use windlass_procs::HeldTree;
use windlass_procs::twin::{SessionProcesses, kill_children_but};

use crate::family::Family;
use crate::watch::ProcessList;

/// What belongs to the session.
#[derive(Debug, Default)]
pub(crate) enum ProcessScope {
    /// All that this keeper has started.
    #[default]
    AllBelow,
    /// Its worker is a child of ours, and there are twins.
    OwnWorker(SessionProcesses),
    /// Its worker is a twin: somebody else's child.
    TwinWorker(SessionProcesses),
}

impl ProcessScope {
    pub fn subset(&self) -> Option<&SessionProcesses> {
        match self {
            Self::AllBelow => None,
            Self::OwnWorker(processes) | Self::TwinWorker(processes) => Some(processes),
        }
    }
}

impl Family {
    /// Sends SIGKILL to everything of this session.
    pub fn kill_session(&mut self, held: &HeldTree) {
        match self.scope.subset() {
            None => held.kill_all(),
            Some(processes) => self.killed = processes.kill(&self.spared()),
        }
        if let ProcessScope::TwinWorker(_) = self.scope {
            // What is left of a worker that could not be started.
            kill_children_but(&self.keepers());
        }
    }

    /// Whether nothing of this session is left. `no_child`: this keeper has no child, which is the same
    /// where all that it started is the session's.
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

    /// What tells of the end of this worker, where no signal does.
    pub fn twin_handle(&self, worker: u32) -> Option<BorrowedFd<'_>> {
        let ProcessScope::TwinWorker(processes) = &self.scope else { return None };
        (worker == processes.root()).then(|| processes.handle())
    }

    /// What was killed and is waited for.
    pub fn killed_handle(&self) -> Option<BorrowedFd<'_>> {
        self.killed.as_ref().map(AsFd::as_fd)
    }
}

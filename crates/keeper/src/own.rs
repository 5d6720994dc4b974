//! Which of the processes around are this session's. Alone, that is everything below the keeper; in a
//! family it is a part, and nothing else is ever ended for it.

use std::os::fd::{AsFd, BorrowedFd};

use windlass_sandbox::twin::{Part, kill_children_but};

use crate::keeper::Keeper;
use crate::watch::Processes;

/// What belongs to the session.
#[derive(Debug)]
pub(crate) enum Own {
    /// All that this keeper has started.
    Everything,
    /// Its worker is a child of ours, and there are twins.
    Child(Part),
    /// Its worker is a twin: somebody else's child.
    Twin(Part),
}

impl Own {
    pub fn part(&self) -> Option<&Part> {
        match self {
            Self::Everything => None,
            Self::Child(part) | Self::Twin(part) => Some(part),
        }
    }
}

/// How a twin's end is told: only its parent could say more.
const TWIN_ENDED: &str = "its process has ended";

impl Keeper {
    /// Sends SIGKILL to everything of this session.
    pub(crate) fn kill_own(&mut self) {
        match self.own.part() {
            None => self.held.kill_all(),
            Some(part) => self.waited = part.kill(&self.family.spared()),
        }
        if let Own::Twin(_) = self.own {
            // What is left of a worker that could not be started.
            kill_children_but(&self.family.keepers());
        }
    }

    /// Whether nothing of this session is left. `no_child`: this keeper has no child, which is the same
    /// where all that it started is the session's.
    pub(crate) fn none_left(&self, no_child: bool) -> bool {
        match self.own.part() {
            None => no_child,
            Some(part) => {
                let spared = self.family.spared();
                part.members().iter().all(|pid| spared.contains(pid))
            }
        }
    }

    /// The processes of this session.
    pub(crate) fn listed(&self) -> Processes {
        match self.own.part() {
            None => Processes::below_this(),
            Some(part) => {
                let spared = self.family.spared();
                Processes::of(part.members().into_iter().filter(|pid| !spared.contains(pid)))
            }
        }
    }

    /// What tells of the worker's end where no signal does.
    pub(crate) fn twin_handle(&self) -> Option<BorrowedFd<'_>> {
        let Own::Twin(part) = &self.own else { return None };
        let worker = self.worker.as_ref()?;
        (worker.pid == part.root()).then(|| part.handle())
    }

    /// What was killed and is waited for.
    pub(crate) fn waited_handle(&self) -> Option<BorrowedFd<'_>> {
        self.waited.as_ref().map(AsFd::as_fd)
    }

    /// The twin that this keeper holds has ended.
    pub(crate) fn twin_ended(&mut self) {
        self.worker_ended(TWIN_ENDED.to_owned());
        self.reap();
    }
}

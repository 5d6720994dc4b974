//! Which of the processes around are this session's. Alone, that is everything below the keeper; in a
//! family it is a part, and nothing else is ever ended for it.

use std::os::fd::{AsFd, BorrowedFd};

use windlass_procs::Held;
use windlass_procs::twin::{Part, kill_children_but};

use crate::family::Family;
use crate::watch::Processes;

/// What belongs to the session.
#[derive(Debug, Default)]
pub(crate) enum Own {
    /// All that this keeper has started.
    #[default]
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

impl Family {
    /// Sends SIGKILL to everything of this session.
    pub fn kill_own(&mut self, held: &Held) {
        match self.own.part() {
            None => held.kill_all(),
            Some(part) => self.killed = part.kill(&self.spared()),
        }
        if let Own::Twin(_) = self.own {
            // What is left of a worker that could not be started.
            kill_children_but(&self.keepers());
        }
    }

    /// Whether nothing of this session is left. `no_child`: this keeper has no child, which is the same
    /// where all that it started is the session's.
    pub fn none_left(&self, no_child: bool) -> bool {
        match self.own.part() {
            None => no_child,
            Some(part) => {
                let spared = self.spared();
                part.members().iter().all(|pid| spared.contains(pid))
            }
        }
    }

    /// The processes of this session.
    pub fn listed(&self) -> Processes {
        match self.own.part() {
            None => Processes::below_this(),
            Some(part) => {
                let spared = self.spared();
                Processes::of(part.members().into_iter().filter(|pid| !spared.contains(pid)))
            }
        }
    }

    /// What tells of the end of this worker, where no signal does.
    pub fn twin_handle(&self, worker: u32) -> Option<BorrowedFd<'_>> {
        let Own::Twin(part) = &self.own else { return None };
        (worker == part.root()).then(|| part.handle())
    }

    /// What was killed and is waited for.
    pub fn killed_handle(&self) -> Option<BorrowedFd<'_>> {
        self.killed.as_ref().map(AsFd::as_fd)
    }
}

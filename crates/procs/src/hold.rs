//! Holding a process tree: after [`enter`], whatever is started below the calling process ends
//! with it, however it tries to get away. Decides which way is used; the ways are in
//! `namespace` and `guard`.

use std::io;

use windlass_protocol::link::Hold;

use crate::cgroup::Cgroup;
use crate::{guard, memory, namespace, tree};

/// Which way of holding the caller wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wanted {
    /// A pid namespace where the machine allows it, else a subreaper.
    #[default]
    Auto,
    PidNamespace,
    Subreaper,
}

impl Wanted {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::PidNamespace => "pid-namespace",
            Self::Subreaper => "subreaper",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Auto, Self::PidNamespace, Self::Subreaper]
            .into_iter()
            .find(|wanted| wanted.as_str() == text)
    }
}

/// Why a tree cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    #[error("this machine refuses a new pid namespace")]
    NamespaceRefused(#[source] io::Error),
    #[error("cannot {act}")]
    Failed {
        act: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// The tree below this process, held.
#[derive(Debug)]
pub struct Held {
    hold: Hold,
    pid: u32,
    /// With a subreaper, where the machine lets us make one.
    cgroup: Option<Cgroup>,
}

impl Held {
    pub(crate) fn new(hold: Hold, pid: u32) -> Self {
        Self { hold, pid, cgroup: None }
    }

    /// A holder that has started nothing, for fuzzing.
    #[doc(hidden)]
    pub fn of_nothing() -> Self {
        Self::new(Hold::Subreaper, 0)
    }

    pub fn hold(&self) -> Hold {
        self.hold
    }

    /// This process's id as its parent sees it; inside a pid namespace it calls itself 1. 0 for the
    /// keeper of a twin, which cannot know it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Starts processes so that they are held. The caller has one thread.
    pub fn around<T>(&self, start: impl FnOnce() -> T) -> T {
        match &self.cgroup {
            Some(cgroup) => cgroup.around(start),
            None => start(),
        }
    }

    /// Leaves nothing of the holding itself behind. For when nothing is held any more.
    pub fn let_go(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// Sends SIGKILL to everything below this process. What has ended is then reaped with
    /// [`crate::reap_all`]; until that says nothing is left, call this again after each reaping,
    /// since orphans come to us as their parents die.
    pub fn kill_all(&self) {
        match self.hold {
            Hold::PidNamespace => namespace::kill_everyone_else(),
            Hold::Subreaper => {
                if let Some(cgroup) = &self.cgroup {
                    cgroup.kill();
                }
                tree::kill_children();
            }
        }
    }
}

/// Makes the calling process the holder of all that it will start. It forks: the caller goes on in
/// the child, and the parent ends (or stays as the guard) without returning.
///
/// Must be called while the process has one thread.
pub fn enter(wanted: Wanted) -> Result<Held, HoldError> {
    memory::note_heap();
    if wanted != Wanted::Subreaper {
        match namespace::enter() {
            Ok(pid) => return Ok(Held { hold: Hold::PidNamespace, pid, cgroup: None }),
            Err(HoldError::NamespaceRefused(_)) if wanted == Wanted::Auto => {}
            Err(error) => return Err(error),
        }
    }
    let (pid, cgroup) = guard::enter()?;
    Ok(Held { hold: Hold::Subreaper, pid, cgroup })
}

//! Holds a process tree: after [`enter`], every process that is started below the calling process ends
//! when the calling process ends, even if it daemonizes. This module chooses the mechanism; `namespace` and
//! `guard` implement the two mechanisms.

use std::io;

use windlass_protocol::link::Hold;

use crate::cgroup::KillCgroup;
use crate::{guard, memory, namespace, tree};

/// The mechanism that the caller requests for holding its process tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HoldMode {
    /// A pid namespace if the machine allows one, else a subreaper.
    #[default]
    Auto,
    PidNamespace,
    Subreaper,
}

impl HoldMode {
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
            .find(|mode| mode.as_str() == text)
    }
}

/// Why a process tree cannot be held.
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

/// The process tree below the calling process, which is its holder.
#[derive(Debug)]
pub struct HeldTree {
    hold: Hold,
    pid: u32,
    /// Only with a subreaper, and only if the machine allows this process to create a cgroup.
    cgroup: Option<KillCgroup>,
}

impl HeldTree {
    pub(crate) fn new(hold: Hold, pid: u32) -> Self {
        Self { hold, pid, cgroup: None }
    }

    /// A tree without processes, for fuzzing.
    #[doc(hidden)]
    pub fn empty() -> Self {
        Self::new(Hold::Subreaper, 0)
    }

    pub fn hold(&self) -> Hold {
        self.hold
    }

    /// The holder's process id outside of its pid namespace; inside, its id is 1. The keeper of a twin
    /// cannot know its id outside, so the value is 0 there.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Runs `start`, which starts processes, so that they belong to this tree. The caller has one thread.
    pub fn start_held<T>(&self, start: impl FnOnce() -> T) -> T {
        match &self.cgroup {
            Some(cgroup) => cgroup.start_inside(start),
            None => start(),
        }
    }

    /// Removes the cgroup, if there is one. Call it when no process of the tree is left.
    pub fn release(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// Sends SIGKILL to every process of the tree. Then reap with [`crate::reap_all`], and repeat both calls
    /// until no child is left: orphans become children of the holder when their parents die.
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

/// Makes the calling process the holder of all processes that it will start. This function forks: it returns
/// in the child only. The parent exits, or stays as the guard.
///
/// Must be called while the process has one thread.
pub fn enter(mode: HoldMode) -> Result<HeldTree, HoldError> {
    memory::mark_heap();
    if mode != HoldMode::Subreaper {
        match namespace::enter() {
            Ok(pid) => return Ok(HeldTree { hold: Hold::PidNamespace, pid, cgroup: None }),
            Err(HoldError::NamespaceRefused(_)) if mode == HoldMode::Auto => {}
            Err(error) => return Err(error),
        }
    }
    let (pid, cgroup) = guard::enter()?;
    Ok(HeldTree { hold: Hold::Subreaper, pid, cgroup })
}

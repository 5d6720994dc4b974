//! Which processes belong to this session. A session without twins owns every process below its keeper. In a
//! family the session owns only a subset, and the keeper kills only that subset.

use windlass_procs::twin::SessionProcesses;

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

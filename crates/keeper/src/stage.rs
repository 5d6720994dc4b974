//! Where a worker process is in its life. A pure machine: it starts, kills and reaps no process, and reads
//! no clock. The keeper performs the effects.

#[cfg(test)]
mod tests;

use std::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WorkerStage {
    /// There is no worker: before the launch, or after it ended by itself.
    #[default]
    Down,
    /// The worker was started, and has not said that it is ready.
    Starting {
        until: Instant,
    },
    Up,
    /// The worker is asked to finish; it is killed at `until`.
    Finishing {
        until: Instant,
    },
    /// Everything below was killed and is being reaped.
    Clearing {
        left: ToReap,
        then: AfterClear,
    },
}

/// What is still to be reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToReap {
    Worker,
    /// Processes that it has started, perhaps.
    Others,
}

/// What follows when everything is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterClear {
    StartAfresh,
    StayDown,
    Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageEvent {
    /// A worker was started, and must be ready by then.
    Started {
        until: Instant,
    },
    /// No worker could be started.
    NotStarted,
    /// The worker can take turns.
    Ready,
    /// The session ends: the worker may finish until then. Without a time it may not.
    FinishAsked {
        until: Option<Instant>,
    },
    /// Everything is to be killed.
    ClearAsked {
        then: AfterClear,
    },
    /// The worker process is reaped.
    WorkerEnded,
    /// Everything that had ended is reaped, and nothing of the session is left.
    NoneLeft,
    /// Everything that had ended is reaped, and other processes of the session are left.
    OthersLeft,
    TimePassed {
        now: Instant,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageEffect {
    /// The node is told that the worker is ready.
    TellReady,
    /// The node is told that the worker has not become ready in time.
    TellLate,
    /// The node is told how the worker ended.
    TellEnded,
    /// The worker is asked to finish until then.
    AskToFinish {
        until: Instant,
    },
    /// Everything below is killed and reaped.
    Kill,
    /// Orphans that came to the keeper since are killed, too.
    KillOrphans,
    Start,
}

impl WorkerStage {
    #[must_use]
    pub fn step(self, event: StageEvent) -> (Self, Vec<StageEffect>) {
        match (self, event) {
            (Self::Down | Self::Clearing { .. }, StageEvent::Started { until }) => {
                (Self::Starting { until }, vec![])
            }
            (Self::Down | Self::Clearing { .. }, StageEvent::NotStarted) => (Self::Down, vec![]),
            (Self::Starting { .. }, StageEvent::Ready) => (Self::Up, vec![StageEffect::TellReady]),
            (Self::Up, StageEvent::FinishAsked { until: Some(until) }) => {
                (Self::Finishing { until }, vec![StageEffect::AskToFinish { until }])
            }
            // A worker that is not up has nothing to finish.
            (_, StageEvent::FinishAsked { .. }) => self.clear(AfterClear::Exit),
            (_, StageEvent::ClearAsked { then }) => self.clear(then),
            (Self::Starting { until }, StageEvent::TimePassed { now }) if now >= until => {
                let (stage, mut effects) = self.clear(AfterClear::StayDown);
                effects.insert(0, StageEffect::TellLate);
                (stage, effects)
            }
            (Self::Finishing { until }, StageEvent::TimePassed { now }) if now >= until => {
                self.clear(AfterClear::Exit)
            }
            (_, StageEvent::WorkerEnded) => self.worker_ended(),
            (Self::Clearing { left: ToReap::Others, .. }, StageEvent::OthersLeft) => {
                (self, vec![StageEffect::KillOrphans])
            }
            (Self::Clearing { left: ToReap::Others, then }, StageEvent::NoneLeft) => match then {
                AfterClear::StartAfresh => (self, vec![StageEffect::Start]),
                AfterClear::StayDown => (Self::Down, vec![]),
                // The keeper leaves, or stays for its twins.
                AfterClear::Exit => (self, vec![]),
            },
            // What comes too late or too early changes nothing.
            (
                _,
                StageEvent::Started { .. }
                | StageEvent::NotStarted
                | StageEvent::Ready
                | StageEvent::TimePassed { .. }
                | StageEvent::OthersLeft
                | StageEvent::NoneLeft,
            ) => (self, vec![]),
        }
    }

    /// Everything is killed; `then` follows, unless the keeper is about to exit already.
    fn clear(self, then: AfterClear) -> (Self, Vec<StageEffect>) {
        let (left, then) = match self {
            Self::Down => (ToReap::Others, then),
            Self::Starting { .. } | Self::Up => (ToReap::Worker, then),
            Self::Finishing { .. } => (ToReap::Worker, AfterClear::Exit),
            Self::Clearing { left, then: AfterClear::Exit } => (left, AfterClear::Exit),
            Self::Clearing { left, .. } => (left, then),
        };
        (Self::Clearing { left, then }, vec![StageEffect::Kill])
    }

    fn worker_ended(self) -> (Self, Vec<StageEffect>) {
        match self {
            Self::Down | Self::Clearing { left: ToReap::Others, .. } => (self, vec![]),
            Self::Starting { .. } | Self::Up => (Self::Down, vec![StageEffect::TellEnded]),
            Self::Finishing { .. } => Self::Down.clear(AfterClear::Exit),
            Self::Clearing { left: ToReap::Worker, then } => {
                let effects = match then {
                    AfterClear::StartAfresh | AfterClear::StayDown => vec![StageEffect::TellEnded],
                    // The session is over: the node does not wait for the worker's end.
                    AfterClear::Exit => vec![],
                };
                (Self::Clearing { left: ToReap::Others, then }, effects)
            }
        }
    }

    /// When [`Event::TimePassed`] is due.
    pub fn due(self) -> Option<Instant> {
        match self {
            Self::Starting { until } | Self::Finishing { until } => Some(until),
            Self::Down | Self::Up | Self::Clearing { .. } => None,
        }
    }

    pub fn is_clearing(self) -> bool {
        matches!(self, Self::Clearing { .. })
    }
}

//! The life of a worker process as a pure state machine. It starts, kills and reaps no process, and reads no
//! clock: the keeper performs the effects.

#[cfg(test)]
mod tests;

use std::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WorkerStage {
    /// There is no worker: before the launch, or after the worker has ended.
    #[default]
    Down,
    /// The worker was started and is not ready yet.
    Starting {
        until: Instant,
    },
    Up,
    /// The worker was asked to finish; it is killed at `until`.
    Finishing {
        until: Instant,
    },
    /// All processes of the session were killed and are being reaped.
    Clearing {
        left: ToReap,
        then: AfterClear,
    },
}

/// Which killed processes are not reaped yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToReap {
    Worker,
    /// The worker is reaped. Processes that it has started may be left.
    Others,
}

/// What follows when all processes are reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterClear {
    StartAfresh,
    StayDown,
    Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageEvent {
    /// A worker was started; it must be ready at `until`.
    Started {
        until: Instant,
    },
    /// No worker could be started.
    NotStarted,
    /// The worker can take turns.
    Ready,
    /// The session ends. The worker may finish until `until`; without a time it is killed at once.
    FinishAsked {
        until: Option<Instant>,
    },
    /// All processes of the session must be killed.
    ClearAsked {
        then: AfterClear,
    },
    /// The worker process is reaped.
    WorkerEnded,
    /// Ended processes are reaped, and no process of the session is left.
    NoneLeft,
    /// Ended processes are reaped, and other processes of the session are left.
    OthersLeft,
    TimePassed {
        now: Instant,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageEffect {
    /// Tell the node that the worker is ready.
    TellReady,
    /// Tell the node that the worker was not ready in time.
    TellLate,
    /// Tell the node how the worker ended.
    TellEnded,
    /// Ask the worker to finish until `until`.
    AskToFinish { until: Instant },
    /// Kill and reap all processes of the session.
    Kill,
    /// Kill orphans that have become children of the keeper since the last kill.
    KillOrphans,
    /// Start a new worker.
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
            // A worker that is not ready has nothing to finish.
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
                // The keeper exits, or stays to hold its twins.
                AfterClear::Exit => (self, vec![]),
            },
            // An event that comes too late or too early changes nothing.
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

    /// Kills all processes; `then` follows, unless the keeper is exiting already.
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
                    // The session is over, and the node does not wait for the worker's end.
                    AfterClear::Exit => vec![],
                };
                (Self::Clearing { left: ToReap::Others, then }, effects)
            }
        }
    }

    /// When [`StageEvent::TimePassed`] is due.
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

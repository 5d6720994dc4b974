//! Where a worker process is in its life. A pure machine: it starts, kills and reaps no process, and reads
//! no clock. The keeper performs the effects.

#[cfg(test)]
mod tests;

use std::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
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
        left: Left,
        then: Then,
    },
}

/// What is still to be reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Worker,
    /// Processes that it has started, perhaps.
    Others,
}

/// What follows when everything is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    StartAfresh,
    StayDown,
    Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
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
        then: Then,
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
pub(crate) enum Effect {
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

impl Stage {
    #[must_use]
    pub fn step(self, event: Event) -> (Self, Vec<Effect>) {
        match (self, event) {
            (Self::Down | Self::Clearing { .. }, Event::Started { until }) => {
                (Self::Starting { until }, vec![])
            }
            (Self::Down | Self::Clearing { .. }, Event::NotStarted) => (Self::Down, vec![]),
            (Self::Starting { .. }, Event::Ready) => (Self::Up, vec![Effect::TellReady]),
            (Self::Up, Event::FinishAsked { until: Some(until) }) => {
                (Self::Finishing { until }, vec![Effect::AskToFinish { until }])
            }
            // A worker that is not up has nothing to finish.
            (_, Event::FinishAsked { .. }) => self.clear(Then::Exit),
            (_, Event::ClearAsked { then }) => self.clear(then),
            (Self::Starting { until }, Event::TimePassed { now }) if now >= until => {
                let (stage, mut effects) = self.clear(Then::StayDown);
                effects.insert(0, Effect::TellLate);
                (stage, effects)
            }
            (Self::Finishing { until }, Event::TimePassed { now }) if now >= until => {
                self.clear(Then::Exit)
            }
            (_, Event::WorkerEnded) => self.worker_ended(),
            (Self::Clearing { left: Left::Others, .. }, Event::OthersLeft) => {
                (self, vec![Effect::KillOrphans])
            }
            (Self::Clearing { left: Left::Others, then }, Event::NoneLeft) => match then {
                Then::StartAfresh => (self, vec![Effect::Start]),
                Then::StayDown => (Self::Down, vec![]),
                // The keeper leaves, or stays for its twins.
                Then::Exit => (self, vec![]),
            },
            // What comes too late or too early changes nothing.
            (
                _,
                Event::Started { .. }
                | Event::NotStarted
                | Event::Ready
                | Event::TimePassed { .. }
                | Event::OthersLeft
                | Event::NoneLeft,
            ) => (self, vec![]),
        }
    }

    /// Everything is killed; `then` follows, unless the keeper is about to exit already.
    fn clear(self, then: Then) -> (Self, Vec<Effect>) {
        let (left, then) = match self {
            Self::Down => (Left::Others, then),
            Self::Starting { .. } | Self::Up => (Left::Worker, then),
            Self::Finishing { .. } => (Left::Worker, Then::Exit),
            Self::Clearing { left, then: Then::Exit } => (left, Then::Exit),
            Self::Clearing { left, .. } => (left, then),
        };
        (Self::Clearing { left, then }, vec![Effect::Kill])
    }

    fn worker_ended(self) -> (Self, Vec<Effect>) {
        match self {
            Self::Down | Self::Clearing { left: Left::Others, .. } => (self, vec![]),
            Self::Starting { .. } | Self::Up => (Self::Down, vec![Effect::TellEnded]),
            Self::Finishing { .. } => Self::Down.clear(Then::Exit),
            Self::Clearing { left: Left::Worker, then } => {
                let effects = match then {
                    Then::StartAfresh | Then::StayDown => vec![Effect::TellEnded],
                    // The session is over: the node does not wait for the worker's end.
                    Then::Exit => vec![],
                };
                (Self::Clearing { left: Left::Others, then }, effects)
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

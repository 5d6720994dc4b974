//! Forks in the session machine: a session that is held while its twin is made, and a twin whose worker is
//! not ready yet.

use windlass_protocol::ErrorCode;

use super::{
    FIRST_START, LossNotice, OldWorker, SessionEffect, SessionMachine, SessionPhase, WorkerHistory,
};

/// How a fork involves the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForkState {
    #[default]
    None,
    /// The session is a twin whose worker is not ready yet. That worker holds state from its start.
    Arriving { hold: PendingHold, reset: PendingReset },
    /// A twin of the session is being made. No turn starts meanwhile.
    Held { reset: PendingReset },
}

/// Whether a hold of the session is requested and waits until the worker is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PendingHold {
    #[default]
    None,
    Requested,
}

/// Whether a reset of the session is requested and waits until the worker can be replaced. Turns requested
/// before the reset are already lost. The waiting turns were requested after the reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PendingReset {
    #[default]
    None,
    Requested,
}

pub(super) const ARRIVING: ForkState =
    ForkState::Arriving { hold: PendingHold::None, reset: PendingReset::None };

impl SessionMachine {
    /// A twin of another session, whose worker is starting.
    pub fn twin() -> Self {
        Self { fork: ARRIVING, ..Self::default() }
    }

    pub(super) fn hold_asked(&mut self, effects: &mut Vec<SessionEffect>) {
        match (&mut self.fork, self.phase) {
            (_, SessionPhase::Ended { .. }) => {
                effects.push(SessionEffect::RefuseHold { code: ErrorCode::SessionEnded });
            }
            // A client that knows a twin's id may request a fork of the twin at once.
            (ForkState::Arriving { hold: hold @ PendingHold::None, .. }, _)
                if self.waiting.is_empty() =>
            {
                *hold = PendingHold::Requested;
            }
            (ForkState::None, SessionPhase::Idle(_)) => self.hold(effects),
            _ => effects.push(SessionEffect::RefuseHold { code: ErrorCode::SessionBusy }),
        }
    }

    /// Notes a reset for later if the session is held or its worker is not ready. Returns whether it did. The
    /// reset itself tells the client of lost state, so a notice is no longer owed.
    pub(super) fn defer_reset(&mut self) -> bool {
        match (&mut self.fork, &mut self.phase) {
            (ForkState::None, _) => false,
            // A fresh worker is starting already, so no second one is needed.
            (ForkState::Held { .. }, SessionPhase::Restarting { history, .. }) => {
                history.notice = LossNotice::Given;
                true
            }
            (ForkState::Arriving { reset, .. } | ForkState::Held { reset }, phase) => {
                *reset = PendingReset::Requested;
                if let SessionPhase::Idle(history) = phase {
                    history.notice = LossNotice::Given;
                }
                true
            }
        }
    }

    /// Whether a requested reset is still to come.
    pub fn has_pending_reset(&self) -> bool {
        matches!(
            self.fork,
            ForkState::Arriving { reset: PendingReset::Requested, .. }
                | ForkState::Held { reset: PendingReset::Requested }
        )
    }

    fn hold(&mut self, effects: &mut Vec<SessionEffect>) {
        self.fork = ForkState::Held { reset: PendingReset::None };
        effects.push(SessionEffect::Hold);
    }

    pub(super) fn hold_released(&mut self, effects: &mut Vec<SessionEffect>) {
        match &mut self.fork {
            ForkState::None => {}
            ForkState::Arriving { hold, .. } => *hold = PendingHold::None,
            ForkState::Held { reset } => {
                let reset = *reset;
                self.fork = ForkState::None;
                // Outside of `Idle`, a worker is starting, and it is fresh.
                let SessionPhase::Idle(history) = self.phase else { return };
                match reset {
                    PendingReset::Requested => {
                        self.restart(OldWorker::Leaving, FIRST_START, effects)
                    }
                    PendingReset::None => self.start_next(history, effects),
                }
            }
        }
    }

    /// The worker of a twin is ready. It holds the original's state although no turn ran on it, so a later
    /// loss of that state must be reported.
    pub(super) fn twin_ready(
        &mut self,
        hold: PendingHold,
        reset: PendingReset,
        effects: &mut Vec<SessionEffect>,
    ) {
        self.fork = ForkState::None;
        match (reset, hold) {
            (PendingReset::Requested, hold) => {
                if hold == PendingHold::Requested {
                    effects.push(SessionEffect::RefuseHold { code: ErrorCode::SessionBusy });
                }
                self.restart(OldWorker::Leaving, FIRST_START, effects);
            }
            (PendingReset::None, PendingHold::Requested) => {
                self.phase = SessionPhase::Idle(WorkerHistory::default());
                self.hold(effects);
            }
            (PendingReset::None, PendingHold::None) => {
                self.start_next(WorkerHistory::default(), effects)
            }
        }
    }
}

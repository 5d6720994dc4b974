//! A session while a twin of it is made, and a twin before its worker is up.

use windlass_protocol::ErrorCode;

use super::{
    FIRST_START, LossNotice, OldWorker, SessionEffect, SessionMachine, SessionPhase, WorkerHistory,
};

/// What a fork asks of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForkState {
    #[default]
    None,
    /// The session is a twin, and its worker is not up yet. That worker holds state from its first moment.
    Arriving { hold: PendingHold, reset: PendingReset },
    /// A twin of the session is being made: no turn starts.
    Held { reset: PendingReset },
}

/// Whether somebody wants the session held as soon as it can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PendingHold {
    #[default]
    None,
    Requested,
}

/// Whether somebody wants a fresh worker as soon as there can be one. Turns that were asked before it are
/// lost already, and those that wait were asked after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PendingReset {
    #[default]
    None,
    Requested,
}

pub(super) const ARRIVING: ForkState =
    ForkState::Arriving { hold: PendingHold::None, reset: PendingReset::None };

impl SessionMachine {
    /// A twin of another session, its worker on the way.
    pub fn twin() -> Self {
        Self { fork: ARRIVING, ..Self::default() }
    }

    pub(super) fn hold_asked(&mut self, effects: &mut Vec<SessionEffect>) {
        match (&mut self.fork, self.phase) {
            (_, SessionPhase::Ended { .. }) => {
                effects.push(SessionEffect::RefuseHold { code: ErrorCode::SessionEnded });
            }
            // A client that has a twin's id may ask for a fork of it at once.
            (ForkState::Arriving { hold: hold @ PendingHold::None, .. }, _)
                if self.waiting.is_empty() =>
            {
                *hold = PendingHold::Requested;
            }
            (ForkState::None, SessionPhase::Idle(_)) => self.hold(effects),
            _ => effects.push(SessionEffect::RefuseHold { code: ErrorCode::SessionBusy }),
        }
    }

    /// A reset was asked for: whether it comes later, since the session is held or not up yet. What is owed
    /// to be told is told by the reset.
    pub(super) fn defer_reset(&mut self) -> bool {
        match (&mut self.fork, &mut self.phase) {
            (ForkState::None, _) => false,
            // A fresh worker is on its way.
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

    /// Whether a reset that was asked for is still to come.
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
                // A worker that is on its way is fresh.
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

    /// A twin's worker is up. What nobody ran on it is there all the same: its loss must be told.
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

//! A session while a twin of it is made, and a twin before its worker is up.

use windlass_protocol::ErrorCode;

use super::{Effect, FIRST_OF_ROW, Fresh, Notice, OldWorker, Phase, Session};

/// What a fork asks of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fork {
    #[default]
    None,
    /// The session is a twin, and its worker is not up yet. That worker holds state from its first moment.
    Arriving { hold: HoldWish, reset: ResetWish },
    /// A twin of the session is being made: no turn starts.
    Held { reset: ResetWish },
}

/// Whether somebody wants the session held as soon as it can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HoldWish {
    #[default]
    None,
    Asked,
}

/// Whether somebody wants a fresh worker as soon as there can be one. Turns that were asked before it are
/// lost already, and those that wait were asked after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResetWish {
    #[default]
    None,
    Asked,
}

pub(super) const ARRIVING: Fork = Fork::Arriving { hold: HoldWish::None, reset: ResetWish::None };

impl Session {
    /// A twin of another session, its worker on the way.
    pub fn twin() -> Self {
        Self { fork: ARRIVING, ..Self::default() }
    }

    pub(super) fn hold_asked(&mut self, todo: &mut Vec<Effect>) {
        match (&mut self.fork, self.phase) {
            (_, Phase::Ended { .. }) => {
                todo.push(Effect::RefuseHold { code: ErrorCode::SessionEnded });
            }
            // A client that has a twin's id may ask for a fork of it at once.
            (Fork::Arriving { hold: hold @ HoldWish::None, .. }, _) if self.waiting.is_empty() => {
                *hold = HoldWish::Asked;
            }
            (Fork::None, Phase::Idle(_)) => self.hold(todo),
            _ => todo.push(Effect::RefuseHold { code: ErrorCode::SessionBusy }),
        }
    }

    /// A reset was asked for: whether it comes later, since the session is held or not up yet. What is owed
    /// to be told is told by the reset.
    pub(super) fn resets_later(&mut self) -> bool {
        match (&mut self.fork, &mut self.phase) {
            (Fork::None, _) => false,
            // A fresh worker is on its way.
            (Fork::Held { .. }, Phase::Restarting { fresh, .. }) => {
                fresh.notice = Notice::Given;
                true
            }
            (Fork::Arriving { reset, .. } | Fork::Held { reset }, phase) => {
                *reset = ResetWish::Asked;
                if let Phase::Idle(fresh) = phase {
                    fresh.notice = Notice::Given;
                }
                true
            }
        }
    }

    /// Whether a reset that was asked for is still to come.
    pub fn owes_reset(&self) -> bool {
        matches!(
            self.fork,
            Fork::Arriving { reset: ResetWish::Asked, .. } | Fork::Held { reset: ResetWish::Asked }
        )
    }

    fn hold(&mut self, todo: &mut Vec<Effect>) {
        self.fork = Fork::Held { reset: ResetWish::None };
        todo.push(Effect::Hold);
    }

    pub(super) fn hold_released(&mut self, todo: &mut Vec<Effect>) {
        match &mut self.fork {
            Fork::None => {}
            Fork::Arriving { hold, .. } => *hold = HoldWish::None,
            Fork::Held { reset } => {
                let reset = *reset;
                self.fork = Fork::None;
                // A worker that is on its way is fresh.
                let Phase::Idle(fresh) = self.phase else { return };
                match reset {
                    ResetWish::Asked => self.restart(OldWorker::Leaving, FIRST_OF_ROW, todo),
                    ResetWish::None => self.start_next(fresh, todo),
                }
            }
        }
    }

    /// A twin's worker is up. What nobody ran on it is there all the same: its loss must be told.
    pub(super) fn twin_ready(&mut self, hold: HoldWish, reset: ResetWish, todo: &mut Vec<Effect>) {
        self.fork = Fork::None;
        match (reset, hold) {
            (ResetWish::Asked, hold) => {
                if hold == HoldWish::Asked {
                    todo.push(Effect::RefuseHold { code: ErrorCode::SessionBusy });
                }
                self.restart(OldWorker::Leaving, FIRST_OF_ROW, todo);
            }
            (ResetWish::None, HoldWish::Asked) => {
                self.phase = Phase::Idle(Fresh::default());
                self.hold(todo);
            }
            (ResetWish::None, HoldWish::None) => self.start_next(Fresh::default(), todo),
        }
    }
}

//! A session after its node was gone: how it is made again from what the journal holds, and what
//! a node that died between recording and doing still owes. Reads no journal itself.

use std::collections::VecDeque;

use windlass_protocol::event::{EndReason, StopCause};
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{ErrorCode, EventKind, Outcome, TurnNo};

use super::{Effect, Event, Fresh, KeeperLoss, Loss, OldWorker, Phase, Session};

/// Feeds a session's journal to [`Session::step`], in order.
///
/// Only turns, stops, waits for input, workers and endings matter; output and displays may be
/// left out. Events whose turn is unknown change nothing. A reset between turns is the one
/// decision without a record: after it a death of the worker is told of once more than needed.
#[derive(Debug, Default)]
pub struct Recovery {
    session: Session,
    /// Decided by an event of the journal, and not yet found recorded in it.
    owed: Vec<Effect>,
}

/// Goes on from a session that is known up to some event: what follows it is noted next.
impl From<Session> for Recovery {
    fn from(session: Session) -> Self {
        Self { session, owed: Vec::new() }
    }
}

impl Recovery {
    pub fn note(&mut self, turn: Option<TurnNo>, kind: &EventKind) {
        match (kind, turn) {
            (EventKind::TurnAccepted { more: false, .. }, Some(turn)) => {
                self.feed(Event::TurnAsked { turn });
            }
            (EventKind::InterruptAsked { cause: StopCause::Client }, Some(turn)) => {
                self.feed(Event::InterruptAsked { turn });
            }
            (EventKind::InterruptAsked { cause: StopCause::Deadline }, Some(turn)) => {
                self.feed(Event::DeadlinePassed { turn });
            }
            (EventKind::StdinWait { .. }, Some(turn)) => self.feed(Event::StdinWaited { turn }),
            (EventKind::InputTaken { .. }, Some(turn)) => self.feed(Event::InputTaken { turn }),
            (EventKind::TurnEnded { outcome, error, receipt, .. }, Some(turn)) => {
                let code = error.as_ref().and_then(|error| error.code);
                let loss = if receipt.is_some() { Loss::State } else { Loss::None };
                self.turn_ended(turn, *outcome, code, loss);
            }
            (EventKind::WorkerReady { .. }, _) => self.feed(Event::WorkerReady),
            (EventKind::WorkerEnded { .. }, _) => self.feed(Event::WorkerEnded),
            (EventKind::SessionEnded { reason, .. }, _) => self.session_ended(*reason),
            _ => {}
        }
    }

    /// The session as it was when the last event was recorded, and what must be recorded or done
    /// before anything else: ends of turns and of the session that were decided and then cut off.
    /// What the keeper may have missed is asked for with [`Session::resume`].
    #[must_use]
    pub fn finish(self) -> (Session, Vec<Effect>) {
        (self.session, self.owed)
    }

    fn feed(&mut self, event: Event) {
        let (session, todo) = std::mem::take(&mut self.session).step(event);
        self.session = session;
        self.owed.extend(todo.into_iter().filter(|effect| match effect {
            Effect::Finish { .. } | Effect::StopKeeper | Effect::End { .. } => true,
            // The event was this effect's record, or `resume` finds out whether it was done.
            _ => false,
        }));
    }

    fn turn_ended(&mut self, turn: TurnNo, outcome: Outcome, code: Option<ErrorCode>, loss: Loss) {
        if !self.settle(turn) && self.session.current() == Some(turn) {
            self.feed(cause_of(turn, outcome, code, loss));
            self.settle(turn);
        }
        // Ended without having run, for a cause that leaves no other record.
        self.session.forget_waiting(turn);
    }

    /// Whether the turn's end was owed; it is recorded now.
    fn settle(&mut self, turn: TurnNo) -> bool {
        let before = self.owed.len();
        let is_it = |e: &Effect| matches!(e, Effect::Finish { turn: owed, .. } if *owed == turn);
        self.owed.retain(|effect| !is_it(effect));
        self.owed.len() < before
    }

    fn session_ended(&mut self, reason: EndReason) {
        self.session.phase = Phase::Ended { reason };
        self.session.waiting.clear();
        self.owed.clear();
    }
}

/// What must have happened for a turn in flight to end so.
fn cause_of(turn: TurnNo, outcome: Outcome, code: Option<ErrorCode>, loss: Loss) -> Event {
    match (code, outcome, loss) {
        (Some(ErrorCode::Unstoppable), ..) => Event::GracePassed { turn },
        (Some(ErrorCode::SessionClosed), ..) => Event::CloseAsked,
        (Some(ErrorCode::ProtocolError), ..) => Event::ProtocolBroken,
        (Some(ErrorCode::KeeperLost), ..) => Event::KeeperLost(KeeperLoss::Died),
        (_, _, Loss::State) => Event::ResetAsked,
        (_, Outcome::Ok, _) => Event::TurnDone { turn, outcome: WorkerOutcome::Ok },
        (_, Outcome::Error, _) => Event::TurnDone { turn, outcome: WorkerOutcome::Error },
        _ => Event::TurnDone { turn, outcome: WorkerOutcome::Interrupted },
    }
}

/// What is known of a session where its journal is not read again from the start: an index, say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Turns accepted and not finished, in that order.
    pub open: Vec<TurnNo>,
    /// What the first of them is at, if the worker is up.
    pub first: FirstTurn,
    pub worker: WorkerFact,
    /// Workers asked for after the first.
    pub restarts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstTurn {
    Running,
    AwaitingInput,
    Interrupting(StopCause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerFact {
    /// None has been up yet.
    Starting,
    Up,
    /// The last one is gone, and none has been up since.
    Gone,
}

impl Session {
    /// The session that the facts describe. Nothing is to be done about it but [`Session::resume`].
    #[must_use]
    pub fn recover(facts: Facts) -> Self {
        let mut waiting = VecDeque::from(facts.open);
        let phase = match facts.worker {
            WorkerFact::Starting => Phase::Starting,
            WorkerFact::Gone => {
                Phase::Restarting { old: OldWorker::Gone, fresh: super::FIRST_OF_ROW }
            }
            WorkerFact::Up => match (waiting.pop_front(), facts.first) {
                (None, _) => Phase::Idle(Fresh::default()),
                (Some(turn), FirstTurn::Running) => Phase::Busy { turn },
                (Some(turn), FirstTurn::AwaitingInput) => Phase::AwaitingInput { turn },
                (Some(turn), FirstTurn::Interrupting(cause)) => Phase::Interrupting { turn, cause },
            },
        };
        Self { phase, waiting, restarts: facts.restarts }
    }

    /// What a keeper must be told again by a node that has attached to it, once the events that it
    /// held have been stepped through. `last_turn` is the newest turn that the keeper was given,
    /// `restarts` how many restarts it was told to do. The performer arms the running turn's
    /// deadline and grace itself: only it knows what is left of them.
    #[must_use]
    pub fn resume(&self, last_turn: TurnNo, restarts: u32) -> Vec<Effect> {
        let mut todo = Vec::new();
        if restarts < self.restarts && !self.is_ended() {
            todo.push(Effect::RestartWorker);
        }
        if let Some(turn) = self.current().filter(|&turn| turn > last_turn) {
            todo.push(Effect::Start { turn });
        }
        match self.phase {
            Phase::Interrupting { turn, .. } => todo.push(Effect::InterruptAgain { turn }),
            Phase::Ended { reason: EndReason::KeeperLost | EndReason::NodeGone } => {}
            Phase::Ended { .. } => todo.push(Effect::StopKeeper),
            _ => {}
        }
        todo
    }
}

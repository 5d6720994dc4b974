//! Recovery of a session by a new node: it is rebuilt from the journal's facts, and its keeper gets the
//! commands that it missed. This module reads no journal.

use std::collections::VecDeque;

use windlass_protocol::TurnNo;
use windlass_protocol::event::{EndReason, StopCause};

use super::forks::ARRIVING;
use super::{ForkState, OldWorker, SessionEffect, SessionMachine, SessionPhase, WorkerHistory};

/// The facts that rebuild a session without a replay of its whole journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryFacts {
    /// Turns accepted and not finished, in the order accepted.
    pub open: Vec<TurnNo>,
    /// The state of the first open turn, if the worker is up.
    pub first: FirstTurn,
    pub worker: WorkerFact,
    /// Number of restarts: workers requested after the first.
    pub restarts: u32,
    /// The session is a twin of another session.
    pub is_twin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstTurn {
    Running,
    AwaitingInput,
    Interrupting(StopCause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerFact {
    /// No worker has been ready yet.
    Starting,
    Up,
    /// The last worker has ended, and none has been ready since.
    Gone,
}

impl SessionMachine {
    /// The session that the facts describe. The only follow-up is [`SessionMachine::resume`].
    #[must_use]
    pub fn recover(facts: RecoveryFacts) -> Self {
        let mut waiting = VecDeque::from(facts.open);
        let phase = match facts.worker {
            WorkerFact::Starting => SessionPhase::Starting,
            WorkerFact::Gone => {
                SessionPhase::Restarting { old: OldWorker::Gone, history: super::FIRST_START }
            }
            WorkerFact::Up => match (waiting.pop_front(), facts.first) {
                (None, _) => SessionPhase::Idle(WorkerHistory::default()),
                (Some(turn), FirstTurn::Running) => SessionPhase::Busy { turn },
                (Some(turn), FirstTurn::AwaitingInput) => SessionPhase::AwaitingInput { turn },
                (Some(turn), FirstTurn::Interrupting(cause)) => {
                    SessionPhase::Interrupting { turn, cause }
                }
            },
        };
        // A hold ends with the node that requested it, so a recovered session is never held.
        let is_arriving = facts.is_twin && facts.worker == WorkerFact::Starting;
        let fork = if is_arriving { ARRIVING } else { ForkState::None };
        Self { phase, waiting, restarts: facts.restarts, fork }
    }

    /// The effects that a newly attached node repeats, after it has stepped through the keeper's held
    /// events. `last_turn` is the newest turn that the keeper received, `restarts` the number of restarts it
    /// was told to do. The node arms the running turn's deadline and grace itself, because only the node
    /// knows the remaining time.
    #[must_use]
    pub fn resume(&self, last_turn: TurnNo, restarts: u32) -> Vec<SessionEffect> {
        let mut effects = Vec::new();
        if restarts < self.restarts && !self.is_ended() {
            effects.push(SessionEffect::RestartWorker);
        }
        if let Some(turn) = self.current().filter(|&turn| turn > last_turn) {
            effects.push(SessionEffect::Start { turn });
        }
        match self.phase {
            SessionPhase::Interrupting { turn, .. } => {
                effects.push(SessionEffect::InterruptAgain { turn })
            }
            SessionPhase::Ended { reason: EndReason::KeeperLost | EndReason::NodeGone } => {}
            SessionPhase::Ended { .. } => effects.push(SessionEffect::StopKeeper),
            _ => {}
        }
        effects
    }
}

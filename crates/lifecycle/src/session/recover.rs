//! A session after its node was gone: how it is made again from what the journal knows of it, and
//! what its keeper must be told then. Reads no journal itself.

use std::collections::VecDeque;

use windlass_protocol::TurnNo;
use windlass_protocol::event::{EndReason, StopCause};

use super::forks::ARRIVING;
use super::{ForkState, OldWorker, SessionEffect, SessionMachine, SessionPhase, WorkerHistory};

/// What is known of a session where its journal is not read again from the start: an index, say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryFacts {
    /// Turns accepted and not finished, in that order.
    pub open: Vec<TurnNo>,
    /// What the first of them is at, if the worker is up.
    pub first: FirstTurn,
    pub worker: WorkerFact,
    /// Workers asked for after the first.
    pub restarts: u32,
    /// The session is the twin of another.
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
    /// None has been up yet.
    Starting,
    Up,
    /// The last one is gone, and none has been up since.
    Gone,
}

impl SessionMachine {
    /// The session that the facts describe. Nothing is to be done about it but [`SessionMachine::resume`].
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
        // A hold went with its node.
        let is_arriving = facts.is_twin && facts.worker == WorkerFact::Starting;
        let fork = if is_arriving { ARRIVING } else { ForkState::None };
        Self { phase, waiting, restarts: facts.restarts, fork }
    }

    /// What a keeper must be told again by a node that has attached to it, once the events that it
    /// held have been stepped through. `last_turn` is the newest turn that the keeper was given,
    /// `restarts` how many restarts it was told to do. The performer arms the running turn's
    /// deadline and grace itself: only it knows what is left of them.
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

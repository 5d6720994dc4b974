//! A session after its node was gone: how it is made again from what the journal knows of it, and
//! what its keeper must be told then. Reads no journal itself.

use std::collections::VecDeque;

use windlass_protocol::TurnNo;
use windlass_protocol::event::{EndReason, StopCause};

use super::forks::ARRIVING;
use super::{Effect, Fork, Fresh, OldWorker, Phase, Session};

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
        // A hold went with its node.
        let is_arriving = facts.is_twin && facts.worker == WorkerFact::Starting;
        let fork = if is_arriving { ARRIVING } else { Fork::None };
        Self { phase, waiting, restarts: facts.restarts, fork }
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

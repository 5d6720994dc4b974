//! What a session hears and what it has done about it: two closed enums, no behaviour.

use windlass_protocol::event::{EndReason, StopCause};
use windlass_protocol::policy::Limit;
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{ErrorCode, Outcome, TurnNo};

/// Everything that can happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEvent {
    TurnAsked {
        turn: TurnNo,
    },
    /// By a client.
    InterruptAsked {
        turn: TurnNo,
    },
    DeadlinePassed {
        turn: TurnNo,
    },
    /// The interrupted turn did not stop in time.
    GracePassed {
        turn: TurnNo,
    },
    InputGiven {
        turn: TurnNo,
    },
    /// A fresh worker, on request.
    ResetAsked,
    CloseAsked,
    /// A twin is to be made: no turn starts until the session is released.
    HoldAsked,
    HoldReleased,
    WorkerReady,
    StdinWaited {
        turn: TurnNo,
    },
    InputTaken {
        turn: TurnNo,
    },
    TurnDone {
        turn: TurnNo,
        outcome: WorkerOutcome,
    },
    /// The worker's process is gone.
    WorkerEnded {
        /// The limit that ended it.
        limit: Option<Limit>,
    },
    /// The worker's process is gone because a node had it replaced; the keeper starts the next one.
    WorkerReplaced {
        /// The turn that was running on it.
        running: Option<TurnNo>,
    },
    /// The session has lived as long as it may.
    WallTimePassed,
    /// No client has used the session for as long as its idle timeout.
    IdlePassed,
    /// The worker sent what is not the protocol.
    ProtocolBroken,
    KeeperLost(KeeperLoss),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperLoss {
    Died,
    /// It ended itself, having had no node for longer than its grace.
    NodeGone,
}

/// Everything that can have to be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEffect {
    /// Record the turn; it runs or waits.
    Accept {
        turn: TurnNo,
    },
    Refuse {
        turn: TurnNo,
        code: ErrorCode,
    },
    /// Send the turn to the worker and arm its deadline.
    Start {
        turn: TurnNo,
    },
    /// Record the interrupt, send it and arm the grace.
    Interrupt {
        turn: TurnNo,
        cause: StopCause,
    },
    /// Send the interrupt once more; the grace runs on.
    InterruptAgain {
        turn: TurnNo,
    },
    RefuseInterrupt {
        turn: TurnNo,
        code: ErrorCode,
    },
    /// The session is held: no turn runs, and no turn starts before [`SessionEvent::HoldReleased`].
    Hold,
    RefuseHold {
        code: ErrorCode,
    },
    /// Send the input; the keeper holds it until the code asks.
    GiveInput {
        turn: TurnNo,
    },
    RefuseInput {
        turn: TurnNo,
        code: ErrorCode,
    },
    /// Record the turn's end and disarm its deadline and grace.
    Finish {
        turn: TurnNo,
        outcome: Outcome,
        code: Option<ErrorCode>,
        loss: Loss,
    },
    /// End the worker, if it lives, and start a fresh one.
    RestartWorker,
    StopKeeper,
    /// Record the session's end.
    End {
        reason: EndReason,
    },
}

/// Whether a turn's end tells of a lost state; the performer writes a receipt then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    None,
    State,
}

//! The events that a session takes and the effects that it returns: two closed enums.

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
    /// A client requests the interrupt.
    InterruptAsked {
        turn: TurnNo,
    },
    DeadlinePassed {
        turn: TurnNo,
    },
    /// The interrupted turn did not stop within the grace period.
    GracePassed {
        turn: TurnNo,
    },
    InputGiven {
        turn: TurnNo,
    },
    /// A client requests a fresh worker.
    ResetAsked,
    CloseAsked,
    /// A fork is about to copy the session. No turn starts until the hold is released.
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
    /// The worker's process has ended.
    WorkerEnded {
        /// The limit that ended it, if a limit did.
        limit: Option<Limit>,
    },
    /// The worker's process has ended because a node requested a restart. The keeper starts the next worker.
    WorkerReplaced {
        /// The turn that ran on the worker.
        running: Option<TurnNo>,
    },
    /// The session has reached its wall-time limit.
    WallTimePassed,
    /// The session is so far over its disk limit that it ends.
    DiskPassed,
    /// No client has used the session for as long as its idle timeout.
    IdlePassed,
    /// The worker sent a message that violates the protocol.
    ProtocolBroken,
    /// The node has lost its lease in the fleet.
    FencePassed,
    KeeperLost(KeeperLoss),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperLoss {
    Died,
    /// The keeper ended itself, because no node attached within its grace period.
    NodeGone,
}

impl KeeperLoss {
    pub(super) fn end_reason(self) -> EndReason {
        match self {
            Self::Died => EndReason::KeeperLost,
            Self::NodeGone => EndReason::NodeGone,
        }
    }
}

/// Every effect that a decision can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEffect {
    /// Record the turn as accepted; it runs or waits.
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
    /// Send the interrupt once more. The grace timer keeps running.
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
    /// Send the input. The keeper holds it until the code asks for input.
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

/// Whether the session's state is lost with a turn. If it is, the performer writes a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    None,
    State,
}

/// The code of turns that end because their session ends.
pub(super) fn code_of_turns_at(end: EndReason) -> ErrorCode {
    match end {
        EndReason::WallTime => ErrorCode::LimitWallTime,
        EndReason::Disk => ErrorCode::LimitDisk,
        EndReason::Fenced => ErrorCode::Fenced,
        _ => ErrorCode::SessionClosed,
    }
}

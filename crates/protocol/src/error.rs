//! Stable error codes: what a program may branch on. Messages may change, codes do not.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A failure's name, the same at every door and in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request's form is wrong.
    BadRequest,
    /// A message is over its limit.
    MessageTooLarge,
    /// Too much waits already; try again later.
    Overloaded,
    SessionNotFound,
    SessionExists,
    /// The session lives in another node.
    NotHere,
    /// The session is over and takes no turns.
    SessionEnded,
    /// A turn runs or waits, or a worker starts: what was asked for needs an idle session.
    SessionBusy,
    /// The session cannot be forked.
    ForkRefused,
    /// The session was forked as often as it can be.
    ForkLimit,
    /// The workspace is larger than what is copied.
    WorkspaceTooLarge,
    TurnNotFound,
    /// The turn is not running, so it cannot be given input; or no turn runs to be interrupted.
    TurnNotRunning,
    /// The turn waited behind one that lost the session's state; it never ran.
    StateLost,
    /// The session ran into a limit of its policy.
    LimitMemory,
    LimitProcesses,
    LimitDisk,
    LimitWallTime,
    /// A control that the policy requires cannot be enforced here.
    NotEnforceable,
    /// Who asked may not.
    Unauthorized,
    /// The interpreter or worker could not be started.
    WorkerFailed,
    /// The worker broke the protocol.
    ProtocolError,
    /// The worker died in the turn.
    WorkerDied,
    /// The keeper died in the turn.
    KeeperLost,
    /// The turn's deadline passed.
    DeadlinePassed,
    /// The turn was interrupted and did not stop within the grace.
    Unstoppable,
    /// The session was closed while the turn waited or ran.
    SessionClosed,
    /// The journal has no room, or the workspace has none for a file.
    DiskFull,
    /// No such file in the workspace.
    FileNotFound,
    /// A file is not as the request says it must be; nothing was written.
    FileConflict,
    /// The path leads out of the workspace, is hidden, or is no plain file.
    PathRefused,
    /// No tool of that name is offered to the session.
    ToolNotFound,
    /// The tool itself failed.
    ToolFailed,
    /// A tool call took longer than it may.
    ToolDeadlinePassed,
    /// Who offered the tool went away before it answered.
    ToolHostGone,
    /// The call was given up before it was answered.
    ToolCancelled,
    /// The turn would wait for a call that waits for the turn.
    WouldDeadlock,
    /// Client and node speak different versions.
    VersionMismatch,
    /// The node is about to stop.
    ShuttingDown,
    /// Another node holds the runtime directory.
    AlreadyRunning,
    /// No such page.
    NotFound,
    /// A fault in Windlass itself.
    Internal,
}

impl ErrorCode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::MessageTooLarge => "message_too_large",
            Self::Overloaded => "overloaded",
            Self::SessionNotFound => "session_not_found",
            Self::NotHere => "not_here",
            Self::SessionExists => "session_exists",
            Self::SessionEnded => "session_ended",
            Self::SessionBusy => "session_busy",
            Self::ForkRefused => "fork_refused",
            Self::ForkLimit => "fork_limit",
            Self::WorkspaceTooLarge => "workspace_too_large",
            Self::TurnNotFound => "turn_not_found",
            Self::TurnNotRunning => "turn_not_running",
            Self::StateLost => "state_lost",
            Self::LimitMemory => "limit_memory",
            Self::LimitProcesses => "limit_processes",
            Self::LimitDisk => "limit_disk",
            Self::LimitWallTime => "limit_wall_time",
            Self::NotEnforceable => "not_enforceable",
            Self::Unauthorized => "unauthorized",
            Self::WorkerFailed => "worker_failed",
            Self::ProtocolError => "protocol_error",
            Self::WorkerDied => "worker_died",
            Self::KeeperLost => "keeper_lost",
            Self::DeadlinePassed => "deadline_passed",
            Self::Unstoppable => "unstoppable",
            Self::SessionClosed => "session_closed",
            Self::DiskFull => "disk_full",
            Self::FileNotFound => "file_not_found",
            Self::FileConflict => "file_conflict",
            Self::PathRefused => "path_refused",
            Self::ToolNotFound => "tool_not_found",
            Self::ToolFailed => "tool_failed",
            Self::ToolDeadlinePassed => "tool_deadline_passed",
            Self::ToolHostGone => "tool_host_gone",
            Self::ToolCancelled => "tool_cancelled",
            Self::WouldDeadlock => "would_deadlock",
            Self::VersionMismatch => "version_mismatch",
            Self::ShuttingDown => "shutting_down",
            Self::AlreadyRunning => "already_running",
            Self::NotFound => "not_found",
            Self::Internal => "internal",
        }
    }

    /// Whether the same request may succeed later, unchanged.
    pub fn retryable(self) -> bool {
        matches!(self, Self::Overloaded | Self::SessionBusy | Self::DiskFull | Self::ShuttingDown)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

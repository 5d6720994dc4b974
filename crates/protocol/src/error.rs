//! Stable error codes. A program may branch on a code; messages may change.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The code of a failure. It is the same at every door and in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is malformed.
    BadRequest,
    /// A message exceeds its size limit.
    MessageTooLarge,
    /// A queue is full; try again later.
    Overloaded,
    SessionNotFound,
    SessionExists,
    /// The session lives in another node.
    NotHere,
    /// The session has ended and takes no turns.
    SessionEnded,
    /// A turn runs or waits, or a worker starts. The request needs an idle session.
    SessionBusy,
    /// The session cannot be forked.
    ForkRefused,
    /// The session has reached its maximum number of forks.
    ForkLimit,
    /// The workspace is too large for a fork to copy.
    WorkspaceTooLarge,
    TurnNotFound,
    /// The turn is not running, so it cannot take input or be interrupted.
    TurnNotRunning,
    /// The session's state was lost before the turn could run. The turn never ran.
    StateLost,
    /// The session reached a limit of its policy.
    LimitMemory,
    LimitProcesses,
    LimitDisk,
    LimitWallTime,
    /// A control that the policy requires cannot be enforced on this machine.
    NotEnforceable,
    /// The client is not authorized.
    Unauthorized,
    /// The client's token does not allow this request.
    Forbidden,
    /// The interpreter or the worker could not be started.
    WorkerFailed,
    /// The worker violated the protocol.
    ProtocolError,
    /// The worker died during the turn.
    WorkerDied,
    /// The keeper died during the turn.
    KeeperLost,
    /// The turn's deadline passed.
    DeadlinePassed,
    /// The turn was interrupted and did not stop within the grace period.
    Unstoppable,
    /// The session was closed while the turn waited or ran.
    SessionClosed,
    /// The disk has no space for the journal, or for a file of the workspace.
    DiskFull,
    /// The workspace has no such file.
    FileNotFound,
    /// A file does not meet the condition of the request. Nothing was written.
    FileConflict,
    /// The path leads out of the workspace, is hidden, or is not a regular file.
    PathRefused,
    /// The session has no tool of that name.
    ToolNotFound,
    /// The tool itself failed.
    ToolFailed,
    /// A tool call exceeded its deadline.
    ToolDeadlinePassed,
    /// The tool host disconnected before it answered.
    ToolHostGone,
    /// The call was cancelled before it was answered.
    ToolCancelled,
    /// The turn would wait for a call that itself waits for the turn.
    WouldDeadlock,
    /// Client and node have incompatible API versions.
    VersionMismatch,
    /// The node is stopping.
    ShuttingDown,
    /// Another node uses the runtime directory.
    AlreadyRunning,
    /// The requested resource does not exist.
    NotFound,
    /// The path exists, but not for the method of the request.
    MethodNotAllowed,
    /// A bug in Windlass.
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
            Self::Forbidden => "forbidden",
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
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Internal => "internal",
        }
    }

    /// Whether the same request may succeed later without a change.
    pub fn retryable(self) -> bool {
        matches!(self, Self::Overloaded | Self::SessionBusy | Self::DiskFull | Self::ShuttingDown)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

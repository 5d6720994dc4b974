//! Stable error codes. A program may branch on a code; messages may change.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Defines the codes: for each its meaning, its name in Rust, and the code that programs see. The table in
/// `docs/reference/error-codes.md` is written from it.
macro_rules! error_codes {
    ($(#[doc = $meaning:tt] $name:ident = $code:literal,)*) => {
        /// The code of a failure. It is the same at every door and in the journal.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $(#[doc = $meaning] $name,)*
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// What the code means, in one or two sentences.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning.trim_ascii(),)*
                }
            }
        }
    };
}

error_codes! {
    /// The request is malformed.
    BadRequest = "bad_request",
    /// A message exceeds its size limit.
    MessageTooLarge = "message_too_large",
    /// A queue is full; try again later.
    Overloaded = "overloaded",
    /// The sessions of the client's tenant hold what the tenant may hold on this node.
    QuotaExceeded = "quota_exceeded",
    /// The node has no session of that id.
    SessionNotFound = "session_not_found",
    /// Another session has that id already, or had it.
    SessionExists = "session_exists",
    /// The session lives in another node.
    NotHere = "not_here",
    /// The node takes no new sessions, because a user has cordoned it. Another node may take the session.
    Cordoned = "cordoned",
    /// The node that has the session cannot be reached. The request was not done; try again later.
    NodeUnreachable = "node_unreachable",
    /// The store of the fleet does not answer, or the node has not joined the fleet yet. The request was not done.
    FleetUnavailable = "fleet_unavailable",
    /// The node has lost its lease in the fleet and ends its sessions.
    Fenced = "fenced",
    /// The node that sends the request was removed from the fleet.
    NodeRemoved = "node_removed",
    /// The session is lost with the node that had it.
    SessionLost = "session_lost",
    /// The session has ended and takes no turns.
    SessionEnded = "session_ended",
    /// A turn runs or waits, or a worker starts. The request needs an idle session.
    SessionBusy = "session_busy",
    /// The session cannot be forked.
    ForkRefused = "fork_refused",
    /// The session has reached its maximum number of forks.
    ForkLimit = "fork_limit",
    /// The workspace is too large for a fork to copy.
    WorkspaceTooLarge = "workspace_too_large",
    /// The session has no turn of that id.
    TurnNotFound = "turn_not_found",
    /// The turn is not running, so it cannot take input or be interrupted.
    TurnNotRunning = "turn_not_running",
    /// The session's state was lost before the turn could run. The turn never ran.
    StateLost = "state_lost",
    /// The session reached the memory limit of its policy.
    LimitMemory = "limit_memory",
    /// The session reached the limit of processes of its policy.
    LimitProcesses = "limit_processes",
    /// The session reached the disk limit of its policy.
    LimitDisk = "limit_disk",
    /// The session reached the lifetime that its policy allows.
    LimitWallTime = "limit_wall_time",
    /// A control that the policy requires cannot be enforced on this machine.
    NotEnforceable = "not_enforceable",
    /// The client is not authorized.
    Unauthorized = "unauthorized",
    /// The client's token does not allow this request.
    Forbidden = "forbidden",
    /// A browser sends the request for a page of another site, or for another name of the node's address.
    ForeignSite = "foreign_site",
    /// The interpreter or the worker could not be started.
    WorkerFailed = "worker_failed",
    /// The worker violated the protocol.
    ProtocolError = "protocol_error",
    /// The worker died during the turn.
    WorkerDied = "worker_died",
    /// The keeper died during the turn.
    KeeperLost = "keeper_lost",
    /// The turn's deadline passed.
    DeadlinePassed = "deadline_passed",
    /// The turn was interrupted and did not stop within the grace period.
    Unstoppable = "unstoppable",
    /// The session was closed while the turn waited or ran.
    SessionClosed = "session_closed",
    /// The disk has no space for the journal, or for a file of the workspace.
    DiskFull = "disk_full",
    /// The workspace has no such file.
    FileNotFound = "file_not_found",
    /// A file does not meet the condition of the request. Nothing was written.
    FileConflict = "file_conflict",
    /// The path leads out of the workspace, is hidden, or is not a regular file.
    PathRefused = "path_refused",
    /// The session has no tool of that name.
    ToolNotFound = "tool_not_found",
    /// The tool itself failed.
    ToolFailed = "tool_failed",
    /// A tool call exceeded its deadline.
    ToolDeadlinePassed = "tool_deadline_passed",
    /// The tool host disconnected before it answered.
    ToolHostGone = "tool_host_gone",
    /// The call was cancelled before it was answered.
    ToolCancelled = "tool_cancelled",
    /// The turn would wait for a call that itself waits for the turn.
    WouldDeadlock = "would_deadlock",
    /// Client and node have incompatible API versions.
    VersionMismatch = "version_mismatch",
    /// The node is stopping.
    ShuttingDown = "shutting_down",
    /// Another node uses the runtime directory.
    AlreadyRunning = "already_running",
    /// The requested resource does not exist.
    NotFound = "not_found",
    /// The path exists, but not for the method of the request.
    MethodNotAllowed = "method_not_allowed",
    /// A bug in Windlass.
    Internal = "internal",
}

impl ErrorCode {
    /// Whether the same request may succeed later without a change.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Self::Overloaded
                | Self::SessionBusy
                | Self::DiskFull
                | Self::ShuttingDown
                | Self::NodeUnreachable
                | Self::FleetUnavailable
                | Self::Cordoned
        )
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_written_as_it_is_read() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!(code.meaning().ends_with('.'), "{code}");
        }
    }
}

//! Failures as clients see them: a stable code, a message and a remedy. Details for the operator go to
//! the log where the failure is created.

use std::error::Error;
use std::fmt::Display;
use std::io;

use rustix::io::Errno;
use windlass_protocol::api::ApiError;
use windlass_protocol::{ErrorCode, SessionId};
use windlass_tools::HostRefused;

/// A failure that is reported to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
    pub(crate) subject: FailureSubject,
}

/// What the message of a failure is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureSubject {
    /// The request or what it names.
    Request,
    /// The node or the machine. A client of a tenant does not get this message.
    Node,
}

impl From<HostRefused> for Failure {
    fn from(refusal: HostRefused) -> Self {
        match refusal.code {
            // What the tool hosts of all clients hold together.
            ErrorCode::Overloaded => Self::of_node(refusal.code, refusal.message),
            _ => Self::new(refusal.code, refusal.message),
        }
    }
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), subject: FailureSubject::Request }
    }

    /// A failure whose message tells something about the node or the machine.
    pub(crate) fn of_node(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), subject: FailureSubject::Node }
    }

    /// The failure as a client of a tenant gets it: the same code, and nothing about the node.
    pub(crate) fn for_tenant(self) -> Self {
        match self.subject {
            FailureSubject::Request => self,
            FailureSubject::Node => Self::new(self.code, NODE_FAILURE),
        }
    }

    /// The failure of `what`, if `error` means that the machine lacks descriptors, processes, memory or
    /// disk space. A client can retry such a failure, or a user can fix it.
    pub fn of_machine(what: impl Display, error: &(dyn Error + 'static)) -> Option<Self> {
        let (code, why) = match errno_of(error)? {
            Errno::MFILE => (ErrorCode::Overloaded, NO_DESCRIPTORS),
            Errno::NFILE => (ErrorCode::Overloaded, NO_FILES),
            Errno::AGAIN => (ErrorCode::Overloaded, NO_PROCESSES),
            Errno::NOMEM => (ErrorCode::Overloaded, "the machine has no memory left"),
            Errno::NOSPC => (ErrorCode::DiskFull, "the disk is full"),
            Errno::DQUOT => (ErrorCode::DiskFull, "the user's disk quota is used up"),
            _ => return None,
        };
        tracing::warn!(%what, %error, "the machine lacks a resource");
        Some(Self::of_node(code, format!("{what}: {why}")))
    }

    /// The failure of `what`: a lack of resources, or an internal error.
    pub fn while_making(what: impl Display, error: &(dyn Error + 'static)) -> Self {
        Self::of_machine(&what, error).unwrap_or_else(|| {
            tracing::error!(%what, %error, "a request failed");
            Self::of_node(ErrorCode::Internal, format!("{what}: {error}"))
        })
    }

    /// An unexpected failure.
    pub fn internal(message: &str) -> Self {
        tracing::error!(message);
        Self::of_node(ErrorCode::Internal, message)
    }

    /// The failure of a session whose keeper cannot be reached. A keeper that has ended was killed, or the
    /// machine lacked a resource, so the client may retry.
    pub fn of_keeper(session: &SessionId, error: &io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
        let what = format!("the keeper of session {session}");
        match error.kind() {
            BrokenPipe | ConnectionRefused | ConnectionReset | NotFound => {
                tracing::warn!(%session, %error, "a keeper ended before its session began");
                let message = format!("{what} ended before the session began: {error}");
                Self::new(ErrorCode::Overloaded, message)
            }
            _ => Self::while_making(format_args!("{what} cannot be reached"), error),
        }
    }

    pub fn to_api(&self) -> ApiError {
        ApiError {
            code: self.code,
            message: self.message.clone(),
            remedy: remedy(self.code).to_owned(),
            retryable: self.code.retryable(),
        }
    }

    pub fn status(&self) -> u16 {
        http_status(self.code)
    }
}

/// The status of a reply over HTTP with this code.
pub fn http_status(code: ErrorCode) -> u16 {
    match code {
        ErrorCode::BadRequest | ErrorCode::WorkerFailed | ErrorCode::NotEnforceable => 400,
        ErrorCode::Unauthorized => 401,
        ErrorCode::Forbidden
        | ErrorCode::ForeignSite
        | ErrorCode::PathRefused
        | ErrorCode::NodeRemoved => 403,
        ErrorCode::SessionNotFound
        | ErrorCode::TurnNotFound
        | ErrorCode::ToolNotFound
        | ErrorCode::FileNotFound
        | ErrorCode::NotFound => 404,
        ErrorCode::SessionExists
        | ErrorCode::SessionBusy
        | ErrorCode::ForkRefused
        | ErrorCode::ForkLimit
        | ErrorCode::TurnNotRunning
        | ErrorCode::WouldDeadlock => 409,
        ErrorCode::SessionEnded
        | ErrorCode::SessionClosed
        | ErrorCode::SessionLost
        | ErrorCode::StateLost
        | ErrorCode::WorkerDied
        | ErrorCode::KeeperLost
        | ErrorCode::ProtocolError
        | ErrorCode::DeadlinePassed
        | ErrorCode::Unstoppable
        | ErrorCode::LimitMemory
        | ErrorCode::LimitProcesses
        | ErrorCode::LimitDisk
        | ErrorCode::LimitWallTime
        | ErrorCode::ToolFailed
        | ErrorCode::ToolDeadlinePassed
        | ErrorCode::ToolHostGone
        | ErrorCode::ToolCancelled
        | ErrorCode::AlreadyRunning => 410,
        ErrorCode::MethodNotAllowed => 405,
        ErrorCode::FileConflict => 412,
        ErrorCode::MessageTooLarge | ErrorCode::WorkspaceTooLarge => 413,
        ErrorCode::NotHere => 421,
        ErrorCode::VersionMismatch => 426,
        ErrorCode::Overloaded | ErrorCode::QuotaExceeded => 429,
        ErrorCode::Internal => 500,
        ErrorCode::ShuttingDown
        | ErrorCode::NodeUnreachable
        | ErrorCode::FleetUnavailable
        | ErrorCode::Cordoned
        | ErrorCode::Fenced => 503,
        ErrorCode::DiskFull => 507,
    }
}

/// What a client of a tenant is told instead of a message about the node.
const NODE_FAILURE: &str =
    "the node cannot serve this request now, for a reason that only its owner can see";

const NO_DESCRIPTORS: &str = "the node has no file descriptors left; close sessions or connections, or \
    raise the hard limit (`ulimit -Hn`) and restart the node";
const NO_FILES: &str = "the machine has no open files left; raise the sysctl fs.file-max";
const NO_PROCESSES: &str = "the machine starts no more processes for this user; end some, or raise \
    `ulimit -u`, TasksMax or kernel.pid_max";

/// The first errno in the chain of causes.
fn errno_of(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        if let Some(errno) = io.or_else(|| error.downcast_ref::<Errno>().copied()) {
            return Some(errno);
        }
        next = error.source();
    }
    None
}

const DISK_FULL: &str = "make room on the disk of the state directory, or of the workspace for a \
    file, then send it again";
const FILE_CONFLICT: &str = "get the file again, put the change on top of what it is now, then send \
    it with the new etag";
const PATH_REFUSED: &str = "name a plain file by its path in the workspace: without `..`, not \
    through a link that leads out, not hidden by the policy";

/// What a user can do about each failure.
pub fn remedy(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::BadRequest => "correct the request; GET /v1/openapi.json describes it",
        ErrorCode::MessageTooLarge => MESSAGE_TOO_LARGE,
        ErrorCode::Overloaded => "wait until there is less to do, then send it again",
        ErrorCode::QuotaExceeded => QUOTA_EXCEEDED,
        ErrorCode::NotHere => NOT_HERE,
        ErrorCode::NodeUnreachable => NODE_UNREACHABLE,
        ErrorCode::FleetUnavailable => FLEET_UNAVAILABLE,
        ErrorCode::Cordoned => CORDONED,
        ErrorCode::Fenced => "create a new session: another node may have the name of this one",
        ErrorCode::NodeRemoved => NODE_REMOVED,
        ErrorCode::SessionLost => SESSION_LOST,
        ErrorCode::SessionNotFound => "list the sessions with `windlass ps --all`, or create one",
        ErrorCode::SessionExists => "choose another id, or use the session that has it",
        ErrorCode::SessionEnded => "create a new session; its output can still be read",
        ErrorCode::SessionBusy => "wait until its turns have ended, then ask again",
        ErrorCode::ForkRefused => "see docs/fork.md for what can be forked, or create a session",
        ErrorCode::ForkLimit => FORK_LIMIT,
        ErrorCode::WorkspaceTooLarge => WORKSPACE_TOO_LARGE,
        ErrorCode::TurnNotFound => TURN_NOT_FOUND,
        ErrorCode::TurnNotRunning => "look at the turn: it has ended, or waits behind another",
        ErrorCode::StateLost => "set the state up again, then send the turn again",
        ErrorCode::WorkerFailed => {
            "check that the interpreter exists and runs, or name another; `windlass logs` shows what it said"
        }
        ErrorCode::LimitMemory => LIMIT_MEMORY,
        ErrorCode::LimitProcesses => LIMIT_PROCESSES,
        ErrorCode::LimitDisk => {
            "remove files from the workspace, or allow more: policy.limits.disk_bytes"
        }
        ErrorCode::LimitWallTime => {
            "create a new session, or one that may live longer: policy.limits.wall_s"
        }
        ErrorCode::NotEnforceable => {
            "do what the message says, or do not require the control; `windlass doctor` shows all"
        }
        ErrorCode::Unauthorized => UNAUTHORIZED,
        ErrorCode::ForeignSite => FOREIGN_SITE,
        ErrorCode::Forbidden => {
            "use a token with the scope that the message names: `windlass token create NAME --scope SCOPE` makes one on the node's machine"
        }
        ErrorCode::ProtocolError => PROTOCOL_ERROR,
        ErrorCode::WorkerDied => WORKER_DIED,
        ErrorCode::KeeperLost => "create a new session; its output until then can still be read",
        ErrorCode::DeadlinePassed => "give the turn a longer deadline, or do less in it",
        ErrorCode::Unstoppable => "the session has a fresh worker: set the state up again",
        ErrorCode::SessionClosed => "create a new session",
        ErrorCode::DiskFull => DISK_FULL,
        ErrorCode::FileNotFound => "list what there is: GET /v1/sessions/{session}/files",
        ErrorCode::FileConflict => FILE_CONFLICT,
        ErrorCode::PathRefused => PATH_REFUSED,
        ErrorCode::ToolNotFound => TOOL_NOT_FOUND,
        ErrorCode::ToolFailed => "look at the tool's own message",
        ErrorCode::ToolDeadlinePassed => "allow more: tools(deadline=seconds).name(...)",
        ErrorCode::ToolHostGone => TOOL_HOST_GONE,
        ErrorCode::ToolCancelled => "call again, in a turn that goes on",
        ErrorCode::WouldDeadlock => WOULD_DEADLOCK,
        ErrorCode::VersionMismatch => VERSION_MISMATCH,
        ErrorCode::ShuttingDown => "try again; the next command starts a node",
        ErrorCode::AlreadyRunning => "use the node that runs, or stop it with `windlass down`",
        ErrorCode::NotFound => "GET /v1/openapi.json lists what there is",
        ErrorCode::MethodNotAllowed => {
            "send a method that the header Allow names; GET /v1/openapi.json describes them"
        }
        ErrorCode::Internal => "look at the node's log and report it",
    }
}

const MESSAGE_TOO_LARGE: &str = "send less at once, or put the data into the workspace as a file";

const UNAUTHORIZED: &str = "send the node's token: `windlass token` prints it to the node's own user; a person logs in to the \
    console with `windlass console`, or at a TCP door with a token";

const FOREIGN_SITE: &str = "use the address at which the node listens as the host of the URL; over SSH, forward the same port; other sites cannot use the node";

const LIMIT_MEMORY: &str =
    "use less memory at once, or give the session more: policy.limits.memory_bytes";

const LIMIT_PROCESSES: &str = "start fewer processes, or allow more: policy.limits.processes";

const QUOTA_EXCEEDED: &str = "end a session of the tenant, or name smaller limits: policy.limits; the quota is in [tenants] of \
    the node's config.toml";

const TURN_NOT_FOUND: &str = "check the turn's id; old turns go with their session's retention";

const NOT_HERE: &str = "send the request to the node that the message names";

const NODE_UNREACHABLE: &str =
    "try again; if it stays so, look at that machine and at the network between the nodes";

const FLEET_UNAVAILABLE: &str = "try again; if it stays so, look at the store's servers, and at this node's log, whose path `windlass status` prints";

const CORDONED: &str = "create the session on another node, or let this one take sessions again: `windlass fleet uncordon NODE`";

const NODE_REMOVED: &str =
    "run `windlass fleet leave` on that machine: it is a node on its own then";

const SESSION_LOST: &str = "create a new session, the name is free; GET /v1/sessions/{session}/events has what was copied, until then";

const PROTOCOL_ERROR: &str =
    "report it to the worker's author, who can use `windlass worker check`; create a new session";

const WORKER_DIED: &str = "the session has a fresh worker: set the state up again; look for a crash, os._exit or out of memory";

const VERSION_MISMATCH: &str =
    "restart the node with the same release: `windlass down --keep-sessions`, then `windlass up`";

const FORK_LIMIT: &str = "fork one of its twins: each can be forked as often again as the original could when it was made";

const WORKSPACE_TOO_LARGE: &str = "keep large data outside of the workspace, in a readable directory: a fork copies the workspace";

const TOOL_NOT_FOUND: &str =
    "dir(tools) lists what there is; a client offers tools, policy.tools allows servers'";

const TOOL_HOST_GONE: &str =
    "the call may have run or not: look, then call again once the tool is back";

const WOULD_DEADLOCK: &str =
    "use another session: this one waits for the tool call that sent the turn";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot make a thing")]
    struct Wrapped(#[source] io::Error);

    #[test]
    fn a_tenant_is_told_nothing_about_the_node() {
        let hosts = HostRefused::new(ErrorCode::Overloaded, "the node already has 9 tool hosts");
        for failure in [
            Failure::while_making("session s", &io::Error::from(Errno::MFILE)),
            Failure::while_making("session s", &io::Error::other("/srv/state")),
            Failure::internal("cannot read /srv/state"),
            Failure::from(hosts),
        ] {
            let told = failure.clone().for_tenant();
            assert_eq!((told.code, &*told.message), (failure.code, NODE_FAILURE), "{failure:?}");
            assert_ne!(failure.message, NODE_FAILURE);
        }
        let own = Failure::new(ErrorCode::Overloaded, "session s has too many waiting turns");
        assert_eq!(own.clone().for_tenant(), own);
        let tools = HostRefused::new(ErrorCode::BadRequest, "the tool has no name");
        assert_eq!(Failure::from(tools).for_tenant().message, "the tool has no name");
    }

    #[test]
    fn a_lack_of_resources_is_found_however_deep_it_is_wrapped() {
        for (errno, code) in [
            (Errno::MFILE, Some(ErrorCode::Overloaded)),
            (Errno::NFILE, Some(ErrorCode::Overloaded)),
            (Errno::AGAIN, Some(ErrorCode::Overloaded)),
            (Errno::NOMEM, Some(ErrorCode::Overloaded)),
            (Errno::NOSPC, Some(ErrorCode::DiskFull)),
            (Errno::DQUOT, Some(ErrorCode::DiskFull)),
            (Errno::PERM, None),
        ] {
            let bare = io::Error::from(errno);
            let wrapped = io::Error::other(Wrapped(io::Error::from(errno)));
            for error in [bare, wrapped] {
                let failure = Failure::of_machine("session s", &error);
                assert_eq!(failure.as_ref().map(|failure| failure.code), code, "{errno:?}");
                let retried = failure.is_none_or(|failure| failure.to_api().retryable);
                assert!(retried || code == Some(ErrorCode::DiskFull), "{errno:?}");
            }
        }
        let session = SessionId::parse("s").unwrap();
        for (errno, code) in [
            (Errno::CONNREFUSED, ErrorCode::Overloaded),
            (Errno::PIPE, ErrorCode::Overloaded),
            (Errno::NOENT, ErrorCode::Overloaded),
            (Errno::AGAIN, ErrorCode::Overloaded),
            (Errno::NOSPC, ErrorCode::DiskFull),
            (Errno::PERM, ErrorCode::Internal),
        ] {
            assert_eq!(Failure::of_keeper(&session, &errno.into()).code, code, "{errno:?}");
        }
        let unknown = Failure::while_making("session s", &io::Error::other("no reason"));
        assert_eq!(
            (unknown.code, &*unknown.message),
            (ErrorCode::Internal, "session s: no reason")
        );
    }
}

//! The JSON of the HTTP door, `/v1`: requests of clients and replies of the node.

mod console;
mod durability;
mod egress;
mod files;
mod forks;
mod output;
mod overview;
mod secrets;
mod servers;
mod sessions;
mod status;
mod usage;
mod workers;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub use console::{ConsoleLogin, ConsoleSession, OpenConsole};
pub use durability::Durability;
pub use egress::{EgressDecision, EgressLog};
pub use files::{
    CHANGES_MAX, ENTRIES_MAX, FILE_BYTES_MAX, FileChange, FileDeleted, FileEntry, FileEvent,
    FileEventKind, FileKind, FileList, FileWritten, FilesQuery, WatchQuery, WriteQuery,
    WrittenBack,
};
pub use forks::{CopyScope, ForkSession, ForkedSession, LeftOutDirectory, LeftOutReason};
pub use output::{OutputView, SearchMatch, SearchQuery, SearchResult, StreamView};
pub use overview::{SessionOverview, SessionRow};
pub use secrets::{SecretInfo, SecretList, SessionSecretRules, SetSecretRules};
pub use servers::{
    Server, ServerList, ServerSessions, ServerState, ServersQuery, SessionTool, SessionTools,
    SessionToolsQuery,
};
pub use sessions::{
    SESSION_PAGE_DEFAULT, SESSION_PAGE_MAX, SessionList, SessionState, SessionsQuery,
};
pub use status::{DoctorFindings, NodeStatus, StopNode, StopSessions};
pub use usage::{MeasuredUsage, TenantUsage, UsageList, UsageQuery};
pub use workers::{TerminalSize, WorkerInfo, WorkerList, WorkerSource};

use crate::agent::{AgentRequest, ResumeToken};
use crate::confinement::Confinement;
use crate::event::{
    EndReason, Event, EventKind, Receipt, StartFigures, StartedBy, TurnError, Usage,
};
use crate::fleet_view::PlacementRule;
use crate::link::Hold;
use crate::policy::{Policy, PolicyRequest};
use crate::refusal::PolicyRefusal;
use crate::turn::{ResultValue, TurnContext};
use crate::{
    ClientName, ErrorCode, NodeName, Outcome, Owner, Seq, SessionId, TenantName, TurnId, TurnNo,
};

/// The version of this API. Client and node are compatible if the major version is the same. A node serves
/// clients with any minor version.
pub const API: ApiVersion = ApiVersion { major: 1, minor: 0 };

/// The header with which client and node tell each other their API version, as `1.0`.
pub const API_HEADER: &str = "windlass-api";

/// The header with which a program that creates a session tells its own name, a [`ClientName`].
pub const CLIENT_HEADER: &str = "windlass-client";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiVersion {
    pub major: u32,
    pub minor: u32,
}

impl ApiVersion {
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    pub fn compatible(self, other: Self) -> bool {
        self.major == other.major
    }
}

impl std::fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The reply of every request that fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    pub code: ErrorCode,
    /// What happened, for people.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

/// The request for a new session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// The session's id. Default: the node generates one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// The tenant that the session belongs to. Its id becomes `NAME@TENANT`. A client whose token has a tenant need not
    /// name it, and can name no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
    /// The kind of worker, as `GET /v1/workers` names it, `jupyter:KERNEL`, `agent:ENGINE`
    /// or `acp:COMMAND`. Default: `python`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The interpreter, or the directory of a virtual environment. Default for Python: the nearest `.venv`
    /// at or above the workspace, else the interpreter on PATH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// The package environment whose interpreter and packages the code uses, instead of `interpreter`. `POST
    /// /v1/environments` makes one. Only the worker `python` takes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The code may install packages with pip or uv, into an environment that ends with the session. The hosts of the
    /// node's package index are added to the policy. Only the worker `python` installs packages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_packages: bool,
    /// The directory that the code works in. Default: a new directory for this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The code works in a copy of `workspace`, in a new directory of the node, and `workspace` stays as it is. The
    /// reply names the directories that are not in the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_workspace: Option<CopyScope>,
    /// What the code may access. Default: the preset `workspace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRequest>,
    /// The owner of the session. A tool host can offer its tools to all sessions of one owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Environment variables to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Gives the code a terminal of this size. Only the worker `shell` has terminals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Settings of an agent. Only the workers `agent` and `acp` have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentRequest>,
    /// The live session whose child this session is. A child has its parent's policy, workspace and owner, so
    /// the request names none of them, and it ends with its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// On which node of the fleet the session is made. Default: the node that is asked chooses one with room, and itself
    /// for a session that names something of its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementRule>,
    /// How long an interrupted turn may take to stop. After that, its worker is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_grace_ms: Option<u64>,
    /// Output bytes that the journal keeps for the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_quota_bytes: Option<u64>,
    /// The idle timeout: the session ends after this many seconds without a client and without a turn. 0:
    /// never. Default: the node's idle timeout, one day unless the node was started with another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// The deadline of turns that set none themselves. Default: the node's deadline, one day unless the node
    /// was started with another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// When acceptance and end of a turn are told. Default: `local`. `replicated` needs a fleet.
    #[serde(default, skip_serializing_if = "Durability::is_local")]
    pub durability: Durability,
    /// The session's first turn. It runs before any turn of another client that knows the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<SubmitTurn>,
}

/// The request to run a turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitTurn {
    /// An id that the client chooses. A turn that is sent twice with the same id runs once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<TurnId>,
    pub code: String,
    /// How long the reply may wait until the turn ends or asks for input. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait_ms: u64,
    /// How long the turn may run after the worker receives it. Default: the session's deadline, else the
    /// node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Maximum output bytes in the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_max: Option<usize>,
    /// Shows the standard output on its own as `stdout`, within this many bytes. Default: 0, not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_bytes_max: Option<usize>,
    /// Shows the standard error and the traceback on their own as `stderr`, within this many bytes. Default:
    /// 0, not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_bytes_max: Option<usize>,
    /// The surroundings of the turn: arguments, directory, variables. At most 32 KiB as JSON. Only workers
    /// with the capability `context` take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Box<TurnContext>>,
}

/// The reply of `POST /v1/sessions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Created {
    pub session: Session,
    /// The first turn, if the request has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Turn>,
    /// Directories that are not in the copy of the workspace, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutDirectory>,
    /// Number of further directories that are not in the copy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_more: u64,
}

/// The current state of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    pub id: SessionId,
    /// The tenant that the session belongs to. It is also a part of the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
    pub state: SessionState,
    /// The node that has the session. Absent without a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The worker's name for itself. Empty until the worker is ready.
    pub worker: String,
    /// The kind of worker.
    #[serde(default)]
    pub kind: String,
    pub workspace: String,
    /// The package environment that the session uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The size of the terminal that the code has. Absent for a session without a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// The directory that the workspace is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_from: Option<String>,
    pub created_at_ms: u64,
    /// The running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Number of turns that wait behind the running one.
    pub waiting: usize,
    /// Number of turns accepted so far.
    pub turns: u64,
    /// The sequence number of the last event.
    pub seq: Seq,
    /// Number of workers started after the first.
    pub restarts: u32,
    /// The keeper's process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_pid: Option<u32>,
    /// The worker's process id, in the keeper's pid namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_pid: Option<u32>,
    /// How the worker was started. Absent until the worker is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<StartedBy>,
    /// What the start of the worker cost. Only if `start_figures` is set in the node's configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_figures: Option<StartFigures>,
    /// The capabilities that the worker declares: `stdin`, `interrupt`, `display`, `tools`, `fork`. Absent
    /// until the worker is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What the session's code may access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Box<Policy>>,
    /// The program that created the session, by the name that it gives itself in the header `Windlass-Client`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientName>,
    /// The owner of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The session that this session was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// The session whose child this session is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// The conversation of the session's agent. Absent until the agent has begun one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeToken>,
    /// How the policy is enforced. Absent until a worker was started under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// Output bytes produced so far.
    pub output_bytes: u64,
    /// Output bytes that are no longer kept.
    pub output_dropped_bytes: u64,
    /// Number of worker messages that were dropped: of an unknown kind, or for another turn.
    pub messages_dropped: u64,
    /// The idle timeout that the session was created with. 0: none. Absent: the node's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// The default deadline of turns that the session was created with. Absent: the node's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub reason: EndReason,
    /// Details of the reason, for example how long the session was idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

/// The current state of a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Turn {
    pub id: TurnId,
    pub session: SessionId,
    pub number: TurnNo,
    pub state: TurnState,
    /// How the turn ended. Absent until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// The input that the turn waits for, while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_wait: Option<StdinWait>,
    pub output: OutputView,
    /// The standard output on its own, if the request has `stdout_bytes_max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<StreamView>,
    /// The standard error and the traceback on their own, if the request has `stderr_bytes_max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<StreamView>,
    /// The exit status of the code. If a signal ended the worker: 128 and the signal's number. Absent until
    /// the turn ends, and for workers that report none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The value of the last expression, if it can be written as JSON in 16 KiB.
    #[serde(
        default,
        deserialize_with = "ResultValue::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub value: Option<ResultValue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub displays: Vec<DisplayRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// What the policy refused in the turn, if that made it fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<PolicyRefusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    Waiting,
    Running,
    AwaitingInput,
    Interrupting,
    Ended,
}

/// A turn's request for input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StdinWait {
    pub prompt: String,
    /// Whether the input is a secret: do not show or store it.
    pub secret: bool,
}

/// A display of a turn; its bytes are at `GET displays/{seq}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DisplayRef {
    /// The event that completed the display.
    pub seq: Seq,
    pub mime: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub bytes: u64,
}

/// Input for a running turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TurnInput {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Raw bytes in base64, for input that is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// End of input: no more input follows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub eof: bool,
    /// The text is what was typed at a terminal: a worker adds no line end to it. Only the worker `shell` has terminals.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keys: bool,
}

/// How to end a session.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams,
)]
#[into_params(parameter_in = Query)]
pub struct CloseQuery {
    /// How long the worker may take to finish. 0 kills it at once. Default: 2000.
    #[serde(default)]
    pub grace_ms: Option<u64>,
}

/// How to read a turn.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams,
)]
#[into_params(parameter_in = Query)]
pub struct TurnQuery {
    /// How long the reply may wait until the turn ends or asks for input.
    #[serde(default)]
    pub wait_ms: u64,
    #[serde(default)]
    pub output_bytes_max: Option<usize>,
    /// Shows the standard output on its own, within this many bytes. Default: 0, not shown.
    #[serde(default)]
    pub stdout_bytes_max: Option<usize>,
    /// Shows the standard error and the traceback on their own, within this many bytes. Default: 0, not shown.
    #[serde(default)]
    pub stderr_bytes_max: Option<usize>,
}

/// Which events to read.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams,
)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Return events after this sequence number.
    #[serde(default)]
    pub after: u64,
    /// How long the reply may wait for the first event.
    #[serde(default)]
    pub wait_ms: u64,
    /// Maximum number of events. Default and maximum: 1000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Some events of a session, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Events {
    pub events: Vec<EventItem>,
    /// The `after` of the next request.
    pub after: Seq,
    /// Whether these are the last events of the session.
    pub ended: bool,
}

/// An event with its body: as text if it is UTF-8, else in base64. Large bodies are left out; read them with
/// `GET output` or `GET displays`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(from = "EventItemRead")]
pub struct EventItem {
    #[serde(flatten)]
    pub event: Event,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// The body's length in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
}

/// An [`EventItem`] as it is deserialized. Some events without a body have their own `bytes` field. Both
/// structs must get this field, and serde gives it to both only if both are flattened.
#[derive(Deserialize)]
struct EventItemRead {
    #[serde(flatten)]
    event: Event,
    #[serde(flatten)]
    body: BodyRead,
}

#[derive(Deserialize)]
struct BodyRead {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    base64: Option<String>,
    #[serde(default)]
    bytes: u64,
}

impl From<EventItemRead> for EventItem {
    fn from(
        EventItemRead { event, body: BodyRead { text, base64, bytes } }: EventItemRead,
    ) -> Self {
        let own =
            matches!(event.kind, EventKind::InputTaken { .. } | EventKind::OutputDropped { .. });
        Self { event, text, base64, bytes: if own { 0 } else { bytes } }
    }
}

/// Which output to read, as raw bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// Only this turn's output. Offsets then count from the start of the turn's output.
    #[serde(default)]
    pub turn: Option<String>,
    /// The first byte. Default: 0.
    #[serde(default)]
    pub from: Option<u64>,
    /// The end (exclusive). Default: the end of the output, but at most 1 MiB after `from`.
    #[serde(default)]
    pub to: Option<u64>,
    /// Instead of a range: this many bytes from the end.
    #[serde(default)]
    pub tail: Option<u64>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;
    use crate::event::DropReason;

    #[test]
    fn an_event_is_read_as_it_was_written_whatever_its_fields_are_called() {
        let bodiless = [
            EventKind::InputTaken { bytes: 4 },
            EventKind::OutputDropped { bytes: 9, reason: DropReason::Quota },
        ];
        let output = EventKind::Output { stream: Stream::Stdout, background: false };
        let items = bodiless
            .into_iter()
            .map(|kind| (kind, None, 0))
            .chain([(output.clone(), Some("hi".to_owned()), 2), (output, None, 1 << 20)]);
        for (kind, text, bytes) in items {
            let event = Event { seq: Seq(1), at_ms: 2, turn: Some(TurnNo(3)), link: None, kind };
            let item = EventItem { event, text, base64: None, bytes };
            let json = serde_json::to_string(&item).unwrap();
            assert_eq!(serde_json::from_str::<EventItem>(&json).unwrap(), item, "{json}");
        }
    }
}

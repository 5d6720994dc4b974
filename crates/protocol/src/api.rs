//! The JSON of the HTTP door, `/v1`: what clients ask and what the node answers.

mod egress;
mod files;
mod forks;
mod servers;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub use egress::{EgressDecision, EgressLog};
pub use files::{
    CHANGES_MAX, ENTRIES_MAX, FILE_BYTES_MAX, FileChange, FileDeleted, FileEntry, FileEvent,
    FileEventKind, FileKind, FileList, FileWritten, FilesQuery, WatchQuery, WrittenBack,
};
pub use forks::{CopyScope, ForkSession, ForkedSession, LeftOutDirectory, LeftOutReason};
pub use servers::{
    Server, ServerList, ServerSessions, ServerState, ServersQuery, SessionTool, SessionTools,
    SessionToolsQuery,
};

use crate::confinement::Confinement;
use crate::event::{EndReason, Event, EventKind, Receipt, StartedBy, TurnError, Usage};
use crate::link::Hold;
use crate::policy::{Policy, PolicyRequest};
use crate::storage::StateStorage;
use crate::{ErrorCode, Outcome, Owner, Seq, SessionId, TurnId, TurnNo};

/// The version of this API. Client and node work together when the first number is the same; a
/// node serves clients with any second number.
pub const API: ApiVersion = ApiVersion { major: 1, minor: 0 };

/// The header by which client and node tell each other their API version, as `1.0`.
pub const API_HEADER: &str = "windlass-api";

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

/// Every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    pub code: ErrorCode,
    /// What happened, for a person.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

/// A new session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// A name of the client's choice; made by the node when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// Which kind of worker. Default: `python`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The interpreter, or a virtual environment's directory. Default: the nearest `.venv` at or
    /// above the workspace, then the one on PATH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// The directory the code works in. Default: a fresh one of the session's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// What the code may touch. Default: the preset `workspace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRequest>,
    /// Whose session it is: a tool host may offer its tools to all of one owner's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Environment variables to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How long an interrupted turn may take to stop before its worker is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_grace_ms: Option<u64>,
    /// Output bytes the journal keeps for the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_quota_bytes: Option<u64>,
    /// Seconds without a client and without a turn after which the session ends; 0: never. Default: the
    /// node's, a day unless it was started with another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// How long a turn may run that has no deadline of its own. Default: the node's, a day unless it
    /// was started with another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The session's first turn: whoever learns the id queues behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<SubmitTurn>,
}

/// A turn to run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitTurn {
    /// A name of the client's choice: sending it twice runs it once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<TurnId>,
    pub code: String,
    /// How long the reply may wait for the turn to end or ask for input. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait_ms: u64,
    /// How long the turn may run, from when the worker gets it. Default: the session's, or the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The most output bytes in the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_max: Option<usize>,
}

/// What `POST /v1/sessions` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Created {
    pub session: Session,
    /// The first turn, when one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Turn>,
}

/// A session as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    pub id: SessionId,
    pub state: SessionState,
    /// What the worker calls itself; empty until it is up.
    pub worker: String,
    /// Which kind of worker it has.
    #[serde(default)]
    pub kind: String,
    pub workspace: String,
    pub created_at_ms: u64,
    /// The running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Turns that wait behind it.
    pub waiting: usize,
    /// Turns accepted so far.
    pub turns: u64,
    /// The last event.
    pub seq: Seq,
    /// Fresh workers started after a loss.
    pub restarts: u32,
    /// The keeper's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_pid: Option<u32>,
    /// The worker's process, as the keeper numbers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_pid: Option<u32>,
    /// How the worker was started, once it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<StartedBy>,
    /// What the worker can do, as it says: `stdin`, `interrupt`, `display`, `tools`, `fork`. Absent until
    /// it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What its code may touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Box<Policy>>,
    /// Whose session it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The session that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// How the policy is enforced, once a worker was started under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// Output bytes produced so far.
    pub output_bytes: u64,
    /// Output bytes produced and no longer kept.
    pub output_dropped_bytes: u64,
    /// Worker messages that were not understood or came for another turn.
    pub messages_dropped: u64,
    /// Its idle timeout, where it was made with one; 0: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// The deadline of its turns that have none of their own, where it was made with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub reason: EndReason,
    /// The figures of the reason, such as how long nobody used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Starting,
    Idle,
    Busy,
    AwaitingInput,
    Interrupting,
    Restarting,
    Ended,
}

/// A turn as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Turn {
    pub id: TurnId,
    pub session: SessionId,
    pub number: TurnNo,
    pub state: TurnState,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// What it waits for, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_wait: Option<StdinWait>,
    pub output: OutputView,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub displays: Vec<DisplayRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
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

/// What a turn asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StdinWait {
    pub prompt: String,
    /// Do not show or store the answer.
    pub secret: bool,
}

/// A turn's output within a byte budget: its head, its tail, and what is between.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputView {
    /// The shown text: all of it, or head, marker and tail. Bytes that are not UTF-8 show as U+FFFD.
    pub text: String,
    /// Bytes of output in all.
    pub bytes: u64,
    /// Where the turn's output starts in the session's, for `GET output?from=`.
    pub from: u64,
    /// Bytes between head and tail that are not shown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_bytes: u64,
    /// The raw bytes in base64, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// A display of a turn; its bytes are at `GET displays/{seq}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DisplayRef {
    /// The event that completed it.
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
    /// Raw bytes, for what is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// No input follows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub eof: bool,
}

/// How to end a session.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams,
)]
pub struct CloseQuery {
    /// How long its worker may take to finish; 0 kills it. Default 2000.
    #[serde(default)]
    pub grace_ms: Option<u64>,
}

/// How to look at a turn.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams,
)]
pub struct TurnQuery {
    /// How long the reply may wait for the turn to end or ask for input.
    #[serde(default)]
    pub wait_ms: u64,
    #[serde(default)]
    pub output_bytes_max: Option<usize>,
}

/// Which events to read.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams,
)]
pub struct EventsQuery {
    /// Events after this one.
    #[serde(default)]
    pub after: u64,
    /// How long the reply may wait for the first event.
    #[serde(default)]
    pub wait_ms: u64,
    /// At most so many events. Default and most: 1000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Some events of a session, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Events {
    pub events: Vec<EventItem>,
    /// Ask for events after this one next.
    pub after: Seq,
    /// No event will follow these.
    pub ended: bool,
}

/// An event with its bytes: as text where they are UTF-8, else in base64. Large bodies are left
/// out and can be read from `GET output` or `GET displays`.
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

/// An event as it is read. Some events have a `bytes` of their own, without a body: both halves
/// must see it, and only a flattened struct leaves a field for the other.
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
pub struct OutputQuery {
    /// Only this turn's output; offsets then count from its start.
    #[serde(default)]
    pub turn: Option<String>,
    /// The first byte. Default 0.
    #[serde(default)]
    pub from: Option<u64>,
    /// The end (not included). Default: the end of the output, at most 1 MiB later.
    #[serde(default)]
    pub to: Option<u64>,
    /// Instead of a range: the last so many bytes.
    #[serde(default)]
    pub tail: Option<u64>,
}

/// What to look for in the output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
pub struct SearchQuery {
    /// The text to find, byte for byte.
    pub query: String,
    #[serde(default)]
    pub turn: Option<String>,
    /// At most so many matches. Default 100, most 1000.
    #[serde(default)]
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchResult {
    pub matches: Vec<SearchMatch>,
    /// More matches follow the last one.
    pub more: bool,
}

/// A line that holds the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchMatch {
    /// Where the match is in the session's output.
    pub offset: u64,
    /// The line around it, cut to 512 bytes.
    pub line: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub sessions: Vec<Session>,
}

/// The node as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    pub version: String,
    pub api: String,
    pub pid: u32,
    pub epoch: u64,
    pub started_at_ms: u64,
    pub sessions: usize,
    pub runtime_dir: String,
    pub state_dir: String,
    /// Where its TCP door is, if it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Absent where the node is of a release that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StateStorage>,
}

/// How the node is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopNode {
    pub sessions: StopSessions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopSessions {
    /// End them first.
    End,
    /// Leave them to their keepers; the next node takes them over.
    Keep,
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

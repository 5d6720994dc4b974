//! An event: one numbered fact of a session. The same words go from keeper to node, into the
//! journal and out to clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::confinement::Confinement;
use crate::policy::Limit;
use crate::{CallNo, Epoch, ErrorCode, LinkSeq, Seq, TurnId, TurnNo};

/// One numbered fact of a session; its raw bytes (output, display) travel beside it as a body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Event {
    pub seq: Seq,
    /// When the node took it in: milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The turn it belongs to; absent for facts of the session itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnNo>,
    /// The keeper's own number for it; absent for what the node says itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkSeq>,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The node accepted a turn; it waits or runs. The body is its code.
    TurnAccepted {
        id: TurnId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        /// More of the code follows in the next event.
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// Another node owns the session from now on. Its keeper obeys no node of a lower epoch.
    TakenOver { epoch: Epoch },
    /// The turn is being stopped.
    InterruptAsked { cause: StopCause },
    /// Bytes the code printed, showed as its result, or failed with.
    Output {
        stream: Stream,
        /// Written by something that outlived its own turn.
        #[serde(default, skip_serializing_if = "is_false")]
        background: bool,
    },
    /// Rich output. One display may span several events, all but the last with `more`.
    Display {
        mime: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Replaces the display with the same `id`.
        #[serde(default, skip_serializing_if = "is_false")]
        update: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The code asks for input and blocks.
    StdinWait { prompt: String, secret: bool },
    /// The code calls a host tool. A call with large arguments spans several events, all but the
    /// last with `more`. The arguments themselves are not kept.
    ToolCall {
        call: CallNo,
        name: String,
        /// How long the code wants to wait for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        /// Bytes of arguments in the events before this one, and in this one.
        #[serde(default)]
        offset: u64,
        #[serde(default)]
        bytes: u64,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The code has given a call up.
    ToolCancel { call: CallNo },
    /// A call is over: answered, failed or given up.
    ToolEnded {
        call: CallNo,
        ok: bool,
        /// Why it failed; absent when the tool itself did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<ErrorCode>,
        /// Bytes of the answer.
        bytes: u64,
        wall_ms: f64,
    },
    /// Input went to the code. What it was is not recorded: it may be a secret.
    InputTaken { bytes: u64 },
    /// The turn is over.
    TurnEnded {
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<TurnError>,
        #[serde(default)]
        usage: Usage,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Receipt>,
    },
    /// A worker is up and can take turns. `restarts` counts the workers before it.
    WorkerReady {
        worker: String,
        pid: u32,
        restarts: u32,
        #[serde(default, skip_serializing_if = "StartedBy::is_exec")]
        start: StartedBy,
        /// What it can do, as it says. Absent in events of earlier releases.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capabilities: Option<Vec<String>>,
    },
    /// A worker was started in its sandbox, which has tested itself.
    Confined(Confinement),
    /// The session ran into a limit. What it cost is said by the events that follow.
    LimitReached { limit: Limit, message: String },
    /// The worker process is gone.
    WorkerEnded {
        cause: String,
        /// The limit that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
        /// The node had it replaced. The turn that was running on it, if any, is the event's turn.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replaced: bool,
    },
    /// The code reached for a host, or tried to. Said once per host, port and decision.
    Egress {
        host: String,
        port: u16,
        allowed: bool,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// The worker said something that is not the protocol; its session ends.
    ProtocolBroken { message: String },
    /// Output bytes that were not kept, and why.
    OutputDropped { bytes: u64, reason: DropReason },
    /// Messages of a worker that were not understood or came for another turn, since the last count.
    MessagesDropped { count: u64, reason: String },
    /// The session is over. Nothing follows.
    SessionEnded {
        reason: EndReason,
        /// The figures of the reason, such as how long nobody used it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Receipt>,
    },
}

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
    /// The value of the last expression, as a REPL shows it.
    Result,
    /// The traceback of an error that ended the turn.
    Traceback,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    Error,
    Interrupted,
    TimedOut,
    Lost,
}

/// Who wants a turn stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    Client,
    Deadline,
}

/// What went wrong in a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct TurnError {
    /// A stable code when Windlass ended the turn; absent when the code itself raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// The exception's class, or a short name of what happened.
    pub name: String,
    pub message: String,
}

/// What a turn cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Usage {
    pub wall_ms: f64,
    /// Processor time of the worker process (and, for turns over 2 ms, of its ended children).
    pub cpu_ms: f64,
    /// The most memory the worker process has held so far in the session.
    pub peak_rss_bytes: u64,
    pub output_bytes: u64,
}

/// What a loss cost: what was kept and what is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Receipt {
    pub kept: Vec<String>,
    pub lost: Vec<String>,
}

/// Why output bytes are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The session's quota of kept output is used up.
    Quota,
    /// The disk was full.
    DiskFull,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// A client closed it.
    Closed,
    /// The worker ended by itself (`sys.exit` does not: that ends a turn).
    WorkerExited,
    /// No worker could be started.
    StartFailed,
    /// It lived as long as its policy allows.
    WallTime,
    /// It had no client and no turn for as long as its idle timeout.
    Idle,
    /// The worker broke the protocol.
    ProtocolError,
    /// The keeper died, and with it everything of the session.
    KeeperLost,
    /// No node came back within the keeper's grace, so it ended itself and the session.
    NodeGone,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// How a worker came to be. Its session is the same, whichever it was.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StartedBy {
    /// Its program was run.
    #[default]
    Exec,
    /// It was forked from an interpreter that had its modules already.
    Zygote,
    /// The same, ahead of time: it was waiting.
    Pool,
    /// It was forked from another session's worker, with all that it had.
    Fork,
}

impl StartedBy {
    /// Whether it is what needs no mention.
    pub fn is_exec(&self) -> bool {
        *self == Self::Exec
    }
}

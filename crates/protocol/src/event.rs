//! Events: the numbered facts of a session. The same types go from keeper to node, into the journal, and to
//! clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::confinement::Confinement;
use crate::policy::Limit;
use crate::refusal::PolicyRefusal;
use crate::turn::{ResultValue, TurnContext};
use crate::worker::StartupFigures;
use crate::{CallNo, ErrorCode, LinkSeq, Seq, SessionId, TurnId, TurnNo};

/// One numbered fact of a session. Its raw bytes (output, display) are a separate body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Event {
    pub seq: Seq,
    /// When the node took the event: milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The turn of the event. Absent for events of the session itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnNo>,
    /// The keeper's number for the event. Absent for events of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkSeq>,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The node accepted a turn, which waits or runs. The body is its code.
    TurnAccepted {
        id: TurnId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        /// Whether more of the code follows in the next event.
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
        /// The surroundings of the turn, in the event with the first part of its code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<Box<TurnContext>>,
    },
    /// The turn is being stopped.
    InterruptAsked { cause: StopCause },
    /// Bytes that the code printed, its result, or its traceback.
    Output {
        stream: Stream,
        /// Whether a thread or process wrote it that outlived its turn.
        #[serde(default, skip_serializing_if = "is_false")]
        background: bool,
    },
    /// Rich output. One display may span several events. All but the last have `more`.
    Display {
        mime: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Whether it replaces the display with the same `id`.
        #[serde(default, skip_serializing_if = "is_false")]
        update: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The code asks for input and blocks.
    StdinWait { prompt: String, secret: bool },
    /// The code calls a host tool. A call with large arguments spans several events. All but the last have
    /// `more`. The arguments themselves are not kept.
    ToolCall {
        call: CallNo,
        name: String,
        /// How long the code waits for the result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        /// Bytes of arguments in the earlier events of this call.
        #[serde(default)]
        offset: u64,
        /// Bytes of arguments in this event.
        #[serde(default)]
        bytes: u64,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The code cancelled a call.
    ToolCancel { call: CallNo },
    /// A call ended: answered, failed or cancelled.
    ToolEnded {
        call: CallNo,
        ok: bool,
        /// Why the call failed. Absent if the tool itself failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<ErrorCode>,
        /// Bytes of the result.
        bytes: u64,
        wall_ms: f64,
    },
    /// The code received input. The input is not recorded, because it may be a secret.
    InputTaken { bytes: u64 },
    /// The turn ended.
    TurnEnded {
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<TurnError>,
        #[serde(default)]
        usage: Usage,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Receipt>,
        /// What the policy refused in the turn, if that made it fail.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refusal: Option<Box<PolicyRefusal>>,
        /// The exit status of the code. For a worker that a signal ended: 128 and the signal's number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// The value of the last expression, if it can be written as JSON and is small.
        #[serde(
            default,
            deserialize_with = "ResultValue::present",
            skip_serializing_if = "Option::is_none"
        )]
        value: Option<ResultValue>,
    },
    /// A worker is ready for turns. `restarts` counts the workers before it.
    WorkerReady {
        worker: String,
        pid: u32,
        restarts: u32,
        #[serde(default, skip_serializing_if = "StartedBy::is_exec")]
        start: StartedBy,
        /// The capabilities that the worker declares. Absent in events of earlier releases.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capabilities: Option<Vec<String>>,
        /// What the start cost. Only if the node's configuration asks for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        figures: Option<StartFigures>,
    },
    /// A worker was started in its sandbox, and the sandbox has run its self-test.
    Confined(Confinement),
    /// The session reached a limit. Later events report the consequences.
    LimitReached {
        limit: Limit,
        message: String,
        /// The session ends because of it. Absent in events of earlier releases.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ends_session: bool,
    },
    /// The worker process ended.
    WorkerEnded {
        cause: String,
        /// The limit that ended the worker, if a limit did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
        /// Whether the node requested the restart. The event's turn is the turn that ran on the worker, if
        /// any.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replaced: bool,
        /// The exit status of the process. For a process that a signal ended: 128 and the signal's number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// The end of what the turn on the worker wrote to its standard error, if the worker ended in a turn.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        stderr: String,
    },
    /// The code connected to a host or tried to. Reported once per host, port and decision.
    Egress {
        host: String,
        port: u16,
        allowed: bool,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// The worker violated the protocol. Its session ends.
    ProtocolBroken { message: String },
    /// Output bytes that were not kept, and why.
    OutputDropped { bytes: u64, reason: DropReason },
    /// Worker messages of an unknown kind or for another turn, since the last such event.
    MessagesDropped { count: u64, reason: String },
    /// The session ended. No event follows.
    SessionEnded {
        reason: EndReason,
        /// Details of the reason, for example how long the session was idle.
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

/// Why a turn is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    Client,
    Deadline,
}

/// What went wrong in a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct TurnError {
    /// A stable code if Windlass ended the turn. Absent if the code itself raised the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// The class of the exception, or a short name of the failure.
    pub name: String,
    pub message: String,
}

/// The resources that a turn used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Usage {
    pub wall_ms: f64,
    /// CPU time of the worker process and, for turns over 2 ms, of its ended children.
    pub cpu_ms: f64,
    /// Peak memory of the worker process so far in the session.
    pub peak_rss_bytes: u64,
    pub output_bytes: u64,
}

/// The report of a loss: what was kept and what was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Receipt {
    pub kept: Vec<String>,
    pub lost: Vec<String>,
}

/// What a receipt says about the output that is kept, before the way to read it.
const OUTPUT_KEPT: &str = "output so far";

/// The entry of a receipt about the output of `session` that is kept.
pub fn output_kept(session: &SessionId) -> String {
    format!("{OUTPUT_KEPT}, at GET /v1/sessions/{session}/output")
}

impl Receipt {
    /// What was kept, with another way to read the output than over HTTP.
    pub fn kept_at(&self, way: &str) -> Vec<String> {
        let named = |kept: &String| match kept.starts_with(OUTPUT_KEPT) {
            true => format!("{OUTPUT_KEPT}: {way}"),
            false => kept.clone(),
        };
        self.kept.iter().map(named).collect()
    }
}

/// Why output bytes are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The session's quota of kept output is used up.
    Quota,
    /// The disk was full.
    DiskFull,
    /// The fleet's copy of the events leaves the output out: of each turn's output it has the beginning and the end.
    NotCopied,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// A client closed it.
    Closed,
    /// The worker exited by itself. (`sys.exit` only ends a turn.)
    WorkerExited,
    /// No worker could be started.
    StartFailed,
    /// The session reached the wall-time limit of its policy.
    WallTime,
    /// The session belongs to a tenant, and its workspace grew far over the disk limit of its policy.
    Disk,
    /// The session had no client and no turn for the length of its idle timeout.
    Idle,
    /// The worker violated the protocol.
    ProtocolError,
    /// The keeper died, and with it all processes of the session.
    KeeperLost,
    /// No node attached within the keeper's grace period, so the keeper ended itself and the session.
    NodeGone,
    /// The node lost its lease in the fleet, so another node may use the session's name.
    Fenced,
    /// The session was lost with its node. No journal has this reason: the other nodes of the fleet say it.
    Lost,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// How a worker was started. The session behaves the same in every case.
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
    /// The worker's program was executed.
    #[default]
    Exec,
    /// The worker was forked from a zygote, an interpreter with its modules loaded.
    Zygote,
    /// The worker was forked from a zygote in advance and waited in the pool.
    Pool,
    /// The worker was forked from another session's worker, with its state.
    Fork,
}

impl StartedBy {
    /// Whether it is the default, which is not serialized.
    pub fn is_exec(&self) -> bool {
        *self == Self::Exec
    }
}

/// What the start of a worker cost, and what was prepared for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct StartFigures {
    /// Time from the start of the worker, or from its claim from a pool, until it was ready for turns.
    pub startup_ms: u32,
    pub prewarm: Prewarm,
    /// Time until the interpreter could run code, by the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_load_ms: Option<u32>,
    /// Time to load packages that code expects to find loaded, by the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_load_ms: Option<u32>,
    /// Number of those packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_count: Option<u32>,
}

/// The preparation of an interpreter: its start, and the packages loaded ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Prewarm {
    pub how: PrewarmSource,
    /// How long the preparation took, whenever it was done. Absent if the worker does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrewarmSource {
    /// This worker prepared itself when it was started.
    Executed,
    /// It was done before: by a zygote, for a pool, in the worker that was forked, or for a memory snapshot.
    Cached,
}

impl StartFigures {
    /// The figures of a worker that was started in this way and was ready after `startup_ms`.
    pub fn new(startup_ms: u32, start: StartedBy, worker: Option<StartupFigures>) -> Self {
        let worker = worker.unwrap_or_default();
        let is_cached = start != StartedBy::Exec || worker.snapshot == Some(true);
        let how = if is_cached { PrewarmSource::Cached } else { PrewarmSource::Executed };
        let packages = worker.package_load_ms.unwrap_or_default();
        let ms = worker.runtime_load_ms.map(|runtime| runtime.saturating_add(packages));
        let StartupFigures { runtime_load_ms, package_load_ms, package_count, .. } = worker;
        let prewarm = Prewarm { how, ms };
        Self { startup_ms, prewarm, runtime_load_ms, package_load_ms, package_count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_without_a_zygote_or_a_snapshot_prepares_itself() {
        let said = StartupFigures {
            runtime_load_ms: Some(60),
            package_load_ms: Some(u32::MAX),
            ..StartupFigures::default()
        };
        let how = |start, said| {
            let Prewarm { how, ms } = StartFigures::new(70, start, said).prewarm;
            (how, ms)
        };
        let all = Some(u32::MAX);
        assert_eq!(how(StartedBy::Exec, None), (PrewarmSource::Executed, None));
        assert_eq!(how(StartedBy::Exec, Some(said)), (PrewarmSource::Executed, all));
        assert_eq!(how(StartedBy::Pool, Some(said)), (PrewarmSource::Cached, all));
        let restored = StartupFigures { snapshot: Some(true), ..said };
        assert_eq!(how(StartedBy::Exec, Some(restored)), (PrewarmSource::Cached, all));
    }
}

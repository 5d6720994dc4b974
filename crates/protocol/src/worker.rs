//! The worker protocol, version 1: what keeper and worker say to each other. `docs/protocol.md`
//! describes it for whoever writes a worker; this module is what the keeper does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Outcome, Stream, TurnNo};

/// The version a worker names in `worker_ready`.
pub const PROTOCOL: u32 = 1;

/// The environment variable that tells a worker the descriptor of its end of the protocol socket.
pub const FD_VARIABLE: &str = "WINDLASS_FD";

/// Keeper to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToWorker {
    /// Run the body as a new turn.
    TurnStart {
        turn: TurnNo,
        /// The body goes on in the next `turn_start` of the same turn.
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// Input for the running turn; it answers a `stdin_wait`.
    TurnInput {
        turn: TurnNo,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
        /// No input follows: the code sees the end of its standard input.
        #[serde(default, skip_serializing_if = "is_false")]
        eof: bool,
    },
    /// Drop unread input and stop. One SIGINT to the worker's process group follows.
    Interrupt { turn: TurnNo },
    /// The answer to a `tool_call`.
    ToolResult {
        turn: TurnNo,
        call: u64,
        ok: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// Finish, flush, exit.
    Shutdown { grace_ms: u64 },
}

/// Worker to keeper. Unknown kinds are `Unknown`, unknown fields are passed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromWorker {
    /// Always first, before any output.
    WorkerReady {
        protocol: u32,
        /// What it is, for people: `python 3.11.2`.
        worker: String,
        #[serde(default)]
        capabilities: Vec<String>,
    },
    /// Bytes the worker owns.
    Output {
        turn: TurnNo,
        stream: Stream,
        /// Written by something that outlived `turn`.
        #[serde(default, skip_serializing_if = "is_false")]
        background: bool,
    },
    /// Rich output.
    Display {
        turn: TurnNo,
        mime: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        #[serde(default, skip_serializing_if = "is_false")]
        update: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The code asks for input and blocks.
    StdinWait { turn: TurnNo, prompt: String, secret: bool },
    /// The code calls a host tool.
    ToolCall {
        turn: TurnNo,
        call: u64,
        name: String,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The turn is over; the worker can take the next.
    Idle {
        turn: TurnNo,
        outcome: WorkerOutcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<WorkerError>,
    },
    /// Last word.
    SessionEnd { reason: String },
    /// A kind this release does not know: counted and dropped.
    #[serde(other)]
    Unknown,
}

/// The outcomes that a worker itself can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerOutcome {
    Ok,
    Error,
    Interrupted,
}

impl From<WorkerOutcome> for Outcome {
    fn from(outcome: WorkerOutcome) -> Self {
        match outcome {
            WorkerOutcome::Ok => Self::Ok,
            WorkerOutcome::Error => Self::Error,
            WorkerOutcome::Interrupted => Self::Interrupted,
        }
    }
}

/// The error that ended a turn, in the worker's words. The traceback goes before it as `output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerError {
    pub name: String,
    pub message: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

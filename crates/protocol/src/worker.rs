//! The worker protocol, version 1: what keeper and worker say to each other. `docs/protocol.md`
//! describes it for whoever writes a worker; this module is what the keeper does.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::{CallNo, Outcome, SessionId, Stream, TurnNo};

/// The version a worker names in `worker_ready`.
pub const PROTOCOL: u32 = 1;

/// The environment variable that tells a worker the descriptor of its end of the protocol socket.
pub const FD_VARIABLE: &str = "WINDLASS_FD";

/// The capability of a worker that knows `fork`.
pub const FORKS: &str = "fork";

/// Capabilities of one worker that count, and the bytes of each.
pub const CAPABILITIES_MAX: usize = 16;
pub const CAPABILITY_BYTES_MAX: usize = 32;

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
    /// The answer to a `tool_call`. Not `ok`: it is the last frame of its call, its body is the
    /// whole error, and what came before is void.
    ToolResult {
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// Fork a twin, between turns. The body says how it is to be kept apart ([`TwinOrder`]).
    Fork { session: SessionId },
    /// Finish, flush, exit.
    Shutdown { grace_ms: u64 },
}

/// The body of a `fork`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TwinOrder {
    /// The directory that the original works in, and the twin's copy of it.
    pub workspace: PathBuf,
    pub copy: PathBuf,
    /// What each of the two adds to its confinement, as a text for the sandbox's library; absent
    /// where nothing confines them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<String>,
    /// The threads of the original, by the numbers that it knows them by. Each adds what the original
    /// adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
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
    /// The code calls a host tool. Frames of several calls may come interleaved.
    ToolCall {
        turn: TurnNo,
        call: CallNo,
        name: String,
        /// How long the code wants to wait for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The code has given a call up: it expects no answer.
    ToolCancel { turn: TurnNo, call: CallNo },
    /// The worker is about to receive the descriptors of its twin: protocol socket, standard output
    /// and standard error, with one byte.
    ForkWait,
    /// The original's word after a `fork`. The body is a list of what the twin does not have.
    Forked {
        ok: bool,
        /// Why not.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// It was forked as often as it can be.
        #[serde(default, skip_serializing_if = "is_false")]
        limit: bool,
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

/// Every field that some message of a worker has.
const FIELDS: [&str; 21] = [
    "kind",
    "turn",
    "stream",
    "background",
    "outcome",
    "error",
    "mime",
    "id",
    "update",
    "more",
    "prompt",
    "secret",
    "call",
    "name",
    "deadline_ms",
    "reason",
    "protocol",
    "worker",
    "capabilities",
    "ok",
    "limit",
];

/// How many fields of a worker's header this release does not know: they are passed over, and
/// counted. 0 for what is no JSON object.
pub fn unknown_fields(header: &[u8]) -> u64 {
    serde_json::from_slice::<UnknownFields>(header).map_or(0, |unknown| unknown.0)
}

struct UnknownFields(u64);

impl<'de> Deserialize<'de> for UnknownFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = u64;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
                let mut unknown = 0;
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    map.next_value::<IgnoredAny>()?;
                    unknown += u64::from(!FIELDS.contains(&name.as_ref()));
                }
                Ok(unknown)
            }
        }
        deserializer.deserialize_map(Count).map(Self)
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_field_of_every_message_is_known_and_no_other() {
        let schema = serde_json::to_value(schemars::schema_for!(FromWorker)).unwrap();
        let messages = schema["oneOf"].as_array().unwrap();
        let fields: BTreeSet<&str> = messages
            .iter()
            .filter_map(|message| message["properties"].as_object())
            .flat_map(|properties| properties.keys().map(String::as_str))
            .collect();
        assert_eq!(BTreeSet::from(FIELDS), fields);
    }

    #[test]
    fn only_fields_of_the_message_itself_are_counted() {
        for (header, unknown) in [
            (r#"{"kind":"idle","turn":1,"outcome":"ok"}"#, 0),
            (r#"{"kind":"idle","error":{"name":"E","code":1},"mood":"good"}"#, 1),
            (r#"{"a":{"b":1},"c":[{"d":2}],"turn":1}"#, 2),
            ("[1]", 0),
            ("{", 0),
        ] {
            assert_eq!(unknown_fields(header.as_bytes()), unknown, "{header}");
        }
    }
}

//! The worker protocol, version 1: the messages between keeper and worker. `docs/protocol.md` describes it
//! for authors of workers.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::turn::{ResultValue, TurnContext};
use crate::{CallNo, Outcome, SessionId, Stream, TurnNo};

/// The version that a worker sends in `worker_ready`.
pub const PROTOCOL: u32 = 1;

/// The environment variable with the descriptor of the worker's end of the protocol socket.
pub const FD_VARIABLE: &str = "WINDLASS_FD";

/// The capability of a worker that supports `fork`.
pub const FORKS: &str = "fork";

/// The capability of a worker that takes the context of a turn.
pub const CONTEXTS: &str = "context";

/// Maximum number of capabilities of one worker. Further ones are ignored.
pub const CAPABILITIES_MAX: usize = 16;

/// Maximum bytes of one capability.
pub const CAPABILITY_BYTES_MAX: usize = 32;

/// Messages from keeper to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToWorker {
    /// Run the body as a new turn.
    TurnStart {
        turn: TurnNo,
        /// Whether the body continues in the next `turn_start` of the same turn.
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
        /// The surroundings of the turn, in its first frame. Only for workers with the capability `context`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<Box<TurnContext>>,
    },
    /// Input for the running turn. It answers a `stdin_wait`.
    TurnInput {
        turn: TurnNo,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
        /// Whether this is the end of input: the code sees the end of its standard input.
        #[serde(default, skip_serializing_if = "is_false")]
        eof: bool,
        /// Whether the bytes are what was typed at a terminal. A worker adds no line end to them. A worker without
        /// terminals need not know this field.
        #[serde(default, skip_serializing_if = "is_false")]
        keys: bool,
    },
    /// Drop unread input and stop the turn. One SIGINT to the worker's process group follows.
    Interrupt { turn: TurnNo },
    /// The result of a `tool_call`. If `ok` is false, this is the last frame of the call, its body is the
    /// whole error, and earlier frames of the result are discarded.
    ToolResult {
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// Fork a twin, between turns. The body says how to separate the two ([`TwinOrder`]).
    Fork { session: SessionId },
    /// Finish, flush, exit.
    Shutdown { grace_ms: u64 },
}

/// The body of a `fork`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TwinOrder {
    /// The directory that the original works in.
    pub workspace: PathBuf,
    /// The twin's copy of the workspace.
    pub copy: PathBuf,
    /// What the original adds to its confinement, as text for the sandbox's library. Absent if the session is
    /// not confined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// What the twin adds to its confinement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<String>,
    /// The thread ids of the original, in the original's pid namespace. Each thread adds what the original
    /// adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
}

/// Messages from worker to keeper. An unknown kind becomes `Unknown`; unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromWorker {
    /// Always the first message, before any output.
    WorkerReady {
        protocol: u32,
        /// The name of the worker, for people: `python 3.11.2`.
        worker: String,
        #[serde(default)]
        capabilities: Vec<String>,
        /// What the start of the worker cost, as the worker measured it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        startup: Option<StartupFigures>,
    },
    /// Output that does not go through the raw pipes of standard output and standard error.
    Output {
        turn: TurnNo,
        stream: Stream,
        /// Whether a thread or process wrote it that outlived `turn`.
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
    StdinWait {
        turn: TurnNo,
        prompt: String,
        /// Whether the answer must be neither shown nor stored.
        #[serde(default, skip_serializing_if = "is_false")]
        secret: bool,
    },
    /// The code calls a host tool. Frames of several calls may be interleaved.
    ToolCall {
        turn: TurnNo,
        call: CallNo,
        name: String,
        /// How long the code waits for the result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The code cancelled a call and expects no result.
    ToolCancel { turn: TurnNo, call: CallNo },
    /// The worker is ready to receive the descriptors of its twin with one byte: protocol socket, standard
    /// output and standard error.
    ForkWait,
    /// The original's reply to a `fork`. The body lists what the twin does not have.
    Forked {
        #[serde(default, skip_serializing_if = "is_false")]
        ok: bool,
        /// Why the fork failed.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// Whether the worker has reached its maximum number of forks.
        #[serde(default, skip_serializing_if = "is_false")]
        limit: bool,
    },
    /// The turn ended, and the worker can take the next one.
    Idle {
        turn: TurnNo,
        outcome: WorkerOutcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<WorkerError>,
        /// The exit status of the code, as its interpreter would exit with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// The value of the last expression, if it can be written as JSON: at most 16 KiB, with at most 32
        /// nested lists and objects. A larger value counts as absent.
        #[serde(
            default,
            deserialize_with = "ResultValue::present",
            skip_serializing_if = "Option::is_none"
        )]
        value: Option<ResultValue>,
    },
    /// The last message.
    SessionEnd { reason: String },
    /// A kind that this release does not know. The message is counted and dropped.
    #[serde(other)]
    Unknown,
}

/// Every field of every message of a worker.
const FIELDS: [&str; 24] = [
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
    "startup",
    "exit_code",
    "value",
];

/// Number of fields in a worker's header that this release does not know. They are ignored and counted.
/// Returns 0 for a header that is not a JSON object.
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

/// What the start of a worker cost, for people who look for a slow start. All figures are optional, and none
/// of them changes how the session is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartupFigures {
    /// Time until the interpreter could run code.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub runtime_load_ms: Option<u32>,
    /// Time to load packages that code expects to find loaded.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub package_load_ms: Option<u32>,
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub package_count: Option<u32>,
    /// Whether the interpreter was restored from a memory snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<bool>,
}

/// A figure of an untrusted worker: any JSON number, rounded down and limited to 32 bits.
fn figure<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number = Option::<f64>::deserialize(deserializer)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from f64 saturates, which is the limit"
    )]
    Ok(number.map(|number| number as u32))
}

/// The outcomes that a worker can report.
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

/// The error that ended a turn, as the worker reports it. The traceback comes before it as `output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerError {
    pub name: String,
    pub message: String,
}

pub(crate) fn is_false(value: &bool) -> bool {
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
    fn booleans_that_are_false_may_be_left_out() {
        let parsed = |header: &str| serde_json::from_str::<FromWorker>(header).unwrap();
        assert_eq!(
            parsed(r#"{"kind":"stdin_wait","turn":3,"prompt":"? "}"#),
            FromWorker::StdinWait { turn: TurnNo(3), prompt: "? ".into(), secret: false }
        );
        assert_eq!(
            parsed(r#"{"kind":"forked","reason":"no memory"}"#),
            FromWorker::Forked { ok: false, reason: "no memory".into(), limit: false }
        );
    }

    #[test]
    fn figures_of_a_start_are_limited_and_optional() {
        let startup = |figures: &str| {
            let header = format!(
                r#"{{"kind":"worker_ready","protocol":1,"worker":"w","startup":{figures}}}"#
            );
            match serde_json::from_str::<FromWorker>(&header) {
                Ok(FromWorker::WorkerReady { startup, .. }) => startup,
                _ => None,
            }
        };
        let loaded = |runtime_load_ms| Some(StartupFigures { runtime_load_ms, ..<_>::default() });
        assert_eq!(startup("{}"), loaded(None));
        assert_eq!(startup(r#"{"runtime_load_ms":61,"new":[1]}"#), loaded(Some(61)));
        assert_eq!(startup(r#"{"runtime_load_ms":61.7}"#), loaded(Some(61)));
        assert_eq!(startup(r#"{"runtime_load_ms":-1}"#), loaded(Some(0)));
        assert_eq!(startup(r#"{"runtime_load_ms":1e300}"#), loaded(Some(u32::MAX)));
        assert_eq!(startup(r#"{"runtime_load_ms":"fast"}"#), None);
        let all = r#"{"package_load_ms":5,"package_count":2,"snapshot":true}"#;
        assert_eq!(
            startup(all),
            Some(StartupFigures {
                runtime_load_ms: None,
                package_load_ms: Some(5),
                package_count: Some(2),
                snapshot: Some(true),
            })
        );
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

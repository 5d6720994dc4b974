//! Agents as workers: the events of an agent's turn, the settings of its session, and the token that resumes its
//! conversation. Every engine's own events are translated to these.
//!
//! An agent event is the body of a `display` event whose MIME type is [`MIME`]. So clients and workers of earlier
//! releases pass it on unchanged.

pub mod settings;
pub mod token;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub use settings::{AgentRequest, PermissionPolicy, UnknownPermissionPolicy};
pub use token::{CLAIM_PREFIX, ResumeToken, ResumeTokenError};

/// The node's tool through which an agent speaks MCP with the node. The arguments are a JSON-RPC request, and the result
/// is its response.
pub const MCP_TOOL: &str = "windlass.mcp";

/// Maximum bytes of such a request.
pub const MCP_REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// The key of a request's `_meta` whose text is the same if the request is sent again. Code that the request runs then
/// runs once.
pub const MCP_RUN_KEY: &str = "windlass/run";

/// The MIME type of a display that is an agent event.
pub const MIME: &str = "application/vnd.windlass.agent+json";

/// Maximum bytes of an engine's own message in one event. A longer one is left out, and `raw_bytes` has its size.
pub const RAW_BYTES_MAX: usize = 64 * 1024;

/// Maximum levels of an engine's own message. JSON parsers refuse deep values.
pub const RAW_DEPTH_MAX: usize = 64;

/// Maximum bytes of each text in one event. A longer text is cut.
pub const TEXT_BYTES_MAX: usize = 256 * 1024;

/// One event of an agent's turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentEvent {
    #[serde(flatten)]
    pub kind: AgentEventKind,
    /// Whether Windlass made the event, and not the engine.
    #[serde(default, skip_serializing_if = "is_false")]
    pub synthetic: bool,
    /// The engine's own message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Value>,
    /// The size of the engine's own message, if it is too long to be here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_bytes: Option<u64>,
}

/// What an agent did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentEventKind {
    /// The engine began the turn, and no other turn of the same token runs.
    Started { engine: String, resume: ResumeToken },
    /// Text for the user.
    Message {
        text: String,
        /// Whether it is a part of a message. The whole message follows if the engine sends it.
        #[serde(default, skip_serializing_if = "is_false")]
        chunk: bool,
        /// The engine's name for the message's place in the turn: `commentary`, `final_answer`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        phase: Option<String>,
    },
    /// What the model thought, as far as the engine tells.
    Reasoning {
        text: String,
        #[serde(default, skip_serializing_if = "is_false")]
        chunk: bool,
    },
    /// Something that the agent does. Later events of the same `id` replace earlier ones.
    Action {
        id: String,
        action: ActionKind,
        title: String,
        phase: ActionPhase,
        /// Whether it succeeded. Absent until it is completed, or if the engine does not tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ok: Option<bool>,
        /// A result or an output for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// What the agent plans to do. Replaces the plan before it.
    Plan { steps: Vec<PlanStep> },
    /// The agent asks whether it may do something.
    Permission {
        id: String,
        title: String,
        /// The answers to choose from.
        options: Vec<PermissionOption>,
        /// The action that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        action: Option<String>,
    },
    /// A permission was answered, withdrawn by the engine, or ended with its deadline.
    Decision {
        /// The permission's id.
        id: String,
        /// The chosen option. Absent if the engine withdrew the question.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        option: Option<String>,
        allowed: bool,
        by: DecidedBy,
    },
    /// What the turn has used so far. Replaces the usage before it.
    Usage(TokenUsage),
    /// A warning or a hint of the engine. Never the end of a turn. A later notice of the same `id` replaces it.
    Notice {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
    /// The turn is over. The last event of every turn.
    Completed {
        engine: String,
        /// Absent if the engine ended before it had a conversation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<ResumeToken>,
        ok: bool,
        /// The answer, or what there was of it.
        answer: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<AgentError>,
        /// The engine's word for why it stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_reason: Option<String>,
    },
}

/// What kind of action it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    Command,
    FileChange,
    Tool,
    WebSearch,
    SubAgent,
    Turn,
    Note,
    Warning,
    /// A kind that this release does not know. `raw` has the engine's message.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionPhase {
    Started,
    Updated,
    Completed,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanStep {
    pub text: String,
    pub state: PlanState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanState {
    Pending,
    InProgress,
    Completed,
}

/// An answer to a permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PermissionOption {
    pub id: String,
    pub name: String,
    pub kind: OptionKind,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
}

impl OptionKind {
    pub fn allows(self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

/// Who decided about a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    Client,
    Policy,
    /// Nobody answered in time.
    Deadline,
    /// The turn was stopped.
    Interrupt,
    /// The engine withdrew the question.
    Engine,
}

/// The tokens of a turn, as the engine counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// The cost, if the engine tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// Why an agent's turn failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentError {
    /// A stable name: one of [`error_name`].
    pub name: String,
    pub message: String,
}

/// The names of errors of an agent's turn.
pub mod error_name {
    /// The engine said that the turn failed.
    pub const FAILED: &str = "EngineFailed";
    /// The engine's process ended in the turn.
    pub const EXITED: &str = "EngineExited";
    /// The engine could not be started, or did not get ready.
    pub const START: &str = "EngineNotStarted";
    /// The engine made no progress for too long.
    pub const STALLED: &str = "EngineStalled";
    /// The engine does not know the conversation that should be resumed.
    pub const RESUME: &str = "ResumeFailed";
    /// The engine sent something that the adapter does not understand.
    pub const PROTOCOL: &str = "EngineProtocol";
    /// The token of the conversation could not be claimed.
    pub const CLAIM: &str = "TokenNotClaimed";
}

impl AgentEvent {
    /// An event that Windlass itself makes.
    pub fn synthetic(kind: AgentEventKind) -> Self {
        Self { kind, synthetic: true, raw: None, raw_bytes: None }
    }

    /// An event with the engine's own message, unless the message is too long or too deeply nested.
    pub fn with_raw(kind: AgentEventKind, raw: Option<Value>, bytes: usize) -> Self {
        let too_long =
            raw.as_ref().is_some_and(|raw| bytes > RAW_BYTES_MAX || is_deep(raw, RAW_DEPTH_MAX));
        let raw_bytes = too_long.then_some(bytes as u64);
        Self { kind, synthetic: false, raw: raw.filter(|_| !too_long), raw_bytes }
    }
}

/// Whether a value has more than this many levels.
fn is_deep(value: &Value, levels: usize) -> bool {
    let Some(inner) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deep(item, inner)),
        Value::Object(fields) => fields.values().any(|field| is_deep(field, inner)),
        _ => false,
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_one_flat_object_each() {
        let resume = ResumeToken::new("codex", "0199-a").unwrap();
        for (event, text) in [
            (
                AgentEvent::synthetic(AgentEventKind::Started { engine: "codex".into(), resume }),
                r#"{"type":"started","engine":"codex","resume":"codex:0199-a","synthetic":true}"#,
            ),
            (
                AgentEvent::with_raw(
                    AgentEventKind::Usage(TokenUsage { input_tokens: 5, ..<_>::default() }),
                    Some(serde_json::json!({"x": 1})),
                    7,
                ),
                r#"{"type":"usage","input_tokens":5,"output_tokens":0,"raw":{"x":1}}"#,
            ),
            (
                AgentEvent::with_raw(
                    AgentEventKind::Notice { text: "n".into(), id: None },
                    Some(Value::Null),
                    RAW_BYTES_MAX + 1,
                ),
                r#"{"type":"notice","text":"n","raw_bytes":65537}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&event).unwrap(), text);
            assert_eq!(serde_json::from_str::<AgentEvent>(text).unwrap(), event);
        }
    }
}

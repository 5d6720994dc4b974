//! What every engine's adapter is: a pure machine between the engine's lines and the normalised events. The driver
//! does the I/O.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use windlass_protocol::agent::{AgentError, AgentEventKind, PermissionOption, error_name};

use super::prompt::Prompt;
use super::settings::AgentSettings;

/// The adapter of one engine.
pub trait Engine: Send {
    /// How the engine's process is started. `resume` is the engine's own id of a conversation.
    fn command(&mut self, settings: &AgentSettings, resume: Option<&str>) -> EngineCommand;

    /// How long the engine cannot resume this conversation yet.
    fn start_delay(&self, _resume: Option<&str>, _home: &Path) -> Option<Duration> {
        None
    }

    /// Whether a process of the engine runs one turn, and ends by itself after it.
    fn runs_one_turn(&self) -> bool {
        false
    }

    /// Another way to run the engine, after its process ended with this code before it was ready.
    fn fallback(&self, _exit_code: i32) -> Option<Box<dyn Engine>> {
        None
    }

    /// Takes one input and says what follows from it, in order.
    fn step(&mut self, input: EngineInput<'_>) -> Vec<EngineOutput>;
}

/// The process of an engine.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct EngineCommand {
    pub arguments: Vec<String>,
    /// Variables to set, unless the session sets them.
    pub environment: BTreeMap<String, String>,
    /// Files to write below the home before the start, unless they are there.
    pub files: Vec<(PathBuf, String)>,
    /// Why the engine cannot run here.
    pub refusal: Option<String>,
}

#[derive(Debug)]
pub enum EngineInput<'a> {
    /// The process has started.
    Begin { resume: Option<&'a str>, prompt: &'a Prompt },
    /// The process has written a line.
    Line(&'a Value),
    /// Begin a turn. Only after [`EngineOutput::Ready`], and not during a turn.
    Prompt(&'a Prompt),
    /// A permission that the engine asked for is decided.
    Decide { permission: &'a str, option: &'a PermissionOption },
    /// A permission is refused, and the engine offered no option for that.
    Refuse { permission: &'a str },
    /// Stop the turn.
    Interrupt,
}

#[derive(Debug, Clone, PartialEq)]
pub enum EngineOutput {
    /// Write this line to the process.
    Send(Value),
    /// Write this text to the process, and close its input.
    SendLast(String),
    /// The engine takes prompts for the conversation with this id.
    Ready {
        id: String,
    },
    Event(AgentEventKind),
    /// The engine waits for a decision.
    Ask(Question),
    /// The engine does not wait for this decision any more.
    Withdraw {
        permission: String,
    },
    /// The engine has said its last word about the turn.
    Done(EngineEnd),
    /// The engine cannot be used.
    Failed(AgentError),
}

/// A permission that an engine asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub id: String,
    pub title: String,
    pub options: Vec<PermissionOption>,
    pub action: Option<String>,
}

/// How a turn ended, by the engine's word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineEnd {
    pub error: Option<AgentError>,
    pub stop_reason: Option<String>,
    pub interrupted: bool,
}

impl EngineEnd {
    pub fn failed(message: impl Into<String>, stop_reason: Option<String>) -> Self {
        let error = Some(error(error_name::FAILED, message));
        Self { error, stop_reason, interrupted: false }
    }
}

pub fn error(name: &str, message: impl Into<String>) -> AgentError {
    AgentError { name: name.to_owned(), message: message.into() }
}

/// The text at a key of an object, or nothing.
pub fn text_at(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

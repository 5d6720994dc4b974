//! The adapter for agents that speak the Agent Client Protocol, version 1: JSON-RPC 2.0, one message per line.
//!
//! The messages are read as JSON values and not by the types of a library: a library's types refuse a message with a
//! variant that they do not know, and unknown updates must be passed on.

mod minutes;
#[cfg(test)]
mod tests;
mod updates;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use windlass_protocol::agent::{
    AgentError, AgentEventKind, OptionKind, PermissionOption, PermissionPolicy, error_name,
};

use super::engine::{
    Engine, EngineCommand, EngineEnd, EngineInput, EngineOutput, Question, error, text_at,
};
use super::prompt::Prompt;
use super::settings::{AgentSettings, McpServerCommand};

/// A request of the adapter. At most one is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcpRequest {
    Initialize,
    OpenSession,
    Prompt,
}

/// Maximum number of options of a permission, and bytes of an option's id. Others are left out.
const OPTIONS_MAX: usize = 32;
const OPTION_ID_BYTES_MAX: usize = 256;

/// The answer to a request that this client does not support.
const METHOD_NOT_FOUND: i64 = -32601;

/// What is special about an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct AcpTraits {
    name: &'static str,
    /// The arguments that make the program speak ACP.
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    /// A settings file below the home, and its content.
    file: Option<(&'static str, &'static str)>,
    model_flag: Option<&'static str>,
    /// Flags for sessions in which everything is allowed.
    allow_flags: &'static [&'static str],
    /// The variable that makes the agent ask, for sessions in which not everything is allowed.
    ask: Option<(&'static str, &'static str)>,
    /// Where the agent keeps conversations below the home, in files with the minute in their names. It cannot resume
    /// a conversation in the minute in which it was begun, and ruins the conversation if it tries.
    minute_files: Option<&'static str>,
    /// The agent sends old messages again after it has answered `session/load`, and then its commands.
    replays_late: bool,
}

const OPENCODE: AcpTraits = AcpTraits {
    name: "opencode",
    arguments: &["acp"],
    environment: &[
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
        ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
        // With it, opencode writes into `.opencode`, which a session cannot change.
        ("OPENCODE_DISABLE_PROJECT_CONFIG", "1"),
    ],
    file: None,
    model_flag: None,
    allow_flags: &[],
    // A sub-agent that asks can hang opencode.
    ask: Some((
        "OPENCODE_PERMISSION",
        r#"{"bash":"ask","edit":"ask","webfetch":"ask","task":"deny","windlass_*":"ask"}"#,
    )),
    minute_files: None,
    replays_late: false,
};

/// The configuration of a project for opencode.
const OPENCODE_PROJECT_FILE: &str = "opencode.json";

const GEMINI: AcpTraits = AcpTraits {
    name: "gemini",
    arguments: &["--acp"],
    environment: &[
        // The session is the sandbox, and its process tree is one already.
        ("GEMINI_CLI_NO_RELAUNCH", "true"),
        ("GEMINI_CLI_TRUST_WORKSPACE", "true"),
    ],
    file: Some((".gemini/settings.json", GEMINI_SETTINGS)),
    model_flag: Some("-m"),
    allow_flags: &["--approval-mode", "yolo"],
    ask: None,
    minute_files: Some(".gemini/tmp"),
    replays_late: true,
};

/// Settings that keep gemini quiet and bound its retries. A connection that the session's proxy loses, for example with
/// its node, is tried again. With its retention of sessions, gemini removes a conversation
/// after it was resumed once.
const GEMINI_SETTINGS: &str = r#"{
  "general": {
    "enableAutoUpdate": false,
    "enableAutoUpdateNotification": false,
    "maxAttempts": 4,
    "retryFetchErrors": true,
    "sessionRetention": { "enabled": false }
  },
  "privacy": { "usageStatisticsEnabled": false },
  "telemetry": { "enabled": false },
  "security": {
    "auth": { "selectedType": "gemini-api-key" },
    "folderTrust": { "enabled": false }
  }
}
"#;

/// The state of one agent process.
#[derive(Debug, Default)]
pub struct Acp {
    traits: AcpTraits,
    mcp_server: Option<McpServerCommand>,
    cwd: PathBuf,
    resume: Option<String>,
    session: String,
    /// The number of the last request, and what it asks for until it is answered.
    last_request: u64,
    pending: Option<AcpRequest>,
    stage: AcpStage,
    abilities: AcpAbilities,
    is_cancelled: bool,
    asked: u64,
    /// The agent's numbers of the permissions that it waits for.
    questions: BTreeMap<String, Value>,
}

/// What the agent told about itself.
#[derive(Debug, Default, Clone, Copy)]
struct AcpAbilities {
    can_resume: bool,
    takes_images: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum AcpStage {
    #[default]
    Opening,
    /// The conversation is open, and old messages may still come.
    Replaying,
    Ready,
    Running,
}

impl Acp {
    pub fn opencode() -> Self {
        Self { traits: OPENCODE, ..Self::default() }
    }

    pub fn gemini() -> Self {
        Self { traits: GEMINI, ..Self::default() }
    }

    pub fn other() -> Self {
        Self::default()
    }
}

impl Engine for Acp {
    fn command(&mut self, settings: &AgentSettings, _resume: Option<&str>) -> EngineCommand {
        self.mcp_server.clone_from(&settings.mcp_server);
        let traits = &self.traits;
        let mut arguments: Vec<String> = settings.request.arguments.clone();
        arguments.extend(traits.arguments.iter().map(ToString::to_string));
        if let (Some(flag), Some(model)) = (traits.model_flag, &settings.request.model) {
            arguments.extend([flag.to_owned(), model.clone()]);
        }
        if settings.permissions() == PermissionPolicy::Allow {
            arguments.extend(traits.allow_flags.iter().map(ToString::to_string));
        }
        let asks = settings.permissions() != PermissionPolicy::Allow;
        let variables = traits.environment.iter().chain(traits.ask.iter().filter(|_| asks));
        let environment = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let is_opencode = traits.name == OPENCODE.name;
        // The placeholder of a protected name that is missing. Opencode cannot read it.
        let refusal = (is_opencode && Path::new(OPENCODE_PROJECT_FILE).is_dir()).then(|| {
            format!(
                "opencode reads {OPENCODE_PROJECT_FILE} in the workspace, which a session cannot create. \
                 Create it first: echo '{{}}' > {OPENCODE_PROJECT_FILE}"
            )
        });
        let files = traits.file.iter().map(|(path, content)| (path.into(), (*content).to_owned()));
        EngineCommand {
            arguments,
            environment: environment.collect(),
            files: files.collect(),
            refusal,
        }
    }

    fn start_delay(&self, resume: Option<&str>, home: &Path) -> Option<Duration> {
        let directory = home.join(self.traits.minute_files?);
        minutes::until_next(&directory, resume?, SystemTime::now())
    }

    fn step(&mut self, input: EngineInput<'_>) -> Vec<EngineOutput> {
        match input {
            EngineInput::Begin { resume, .. } => self.begin(resume),
            EngineInput::Line(line) => self.take(line),
            EngineInput::Prompt(prompt) => self.prompt(prompt),
            EngineInput::Decide { permission, option } => {
                let Some(id) = self.questions.remove(permission) else { return Vec::new() };
                // An agent that was told to cancel gets this answer to its open questions.
                let outcome = match self.is_cancelled {
                    true => json!({ "outcome": "cancelled" }),
                    false => json!({ "outcome": "selected", "optionId": option.id }),
                };
                vec![answer(&id, json!({ "outcome": outcome }))]
            }
            EngineInput::Refuse { permission } => {
                let Some(id) = self.questions.remove(permission) else { return Vec::new() };
                vec![answer(&id, json!({ "outcome": { "outcome": "cancelled" } }))]
            }
            EngineInput::Interrupt => {
                self.is_cancelled = true;
                let params = json!({ "sessionId": self.session });
                vec![EngineOutput::Send(
                    json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }),
                )]
            }
        }
    }
}

impl Acp {
    fn begin(&mut self, resume: Option<&str>) -> Vec<EngineOutput> {
        let cwd = std::env::current_dir().unwrap_or_default();
        let resume = resume.map(str::to_owned);
        let (traits, mcp_server) = (self.traits, self.mcp_server.take());
        *self = Self { traits, mcp_server, cwd, resume, ..Self::default() };
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": { "readTextFile": false, "writeTextFile": false },
                "terminal": false,
            },
            "clientInfo": { "name": "windlass", "version": env!("CARGO_PKG_VERSION") },
        });
        vec![self.request(AcpRequest::Initialize, "initialize", &params)]
    }

    fn take(&mut self, line: &Value) -> Vec<EngineOutput> {
        match (line["method"].as_str(), line.get("id")) {
            (Some("session/request_permission"), Some(id)) => self.asked(id, &line["params"]),
            (Some(_), Some(id)) => {
                let error = json!({ "code": METHOD_NOT_FOUND, "message": "not supported" });
                vec![EngineOutput::Send(json!({ "jsonrpc": "2.0", "id": id, "error": error }))]
            }
            (Some("session/update"), None) => self.updated(&line["params"]["update"]),
            (Some(_), None) => Vec::new(),
            (None, _) => self.answered(line),
        }
    }

    /// An answer to one of the adapter's requests.
    fn answered(&mut self, line: &Value) -> Vec<EngineOutput> {
        let result = &line["result"];
        // An answer that is late or comes twice is about no open request.
        let is_pending = line["id"].as_u64() == Some(self.last_request);
        match (self.pending.take_if(|_| is_pending), failure(line)) {
            (Some(AcpRequest::Initialize), None) => {
                let capabilities = &result["agentCapabilities"];
                self.abilities.can_resume =
                    capabilities["sessionCapabilities"]["resume"].is_object();
                self.abilities.takes_images =
                    capabilities["promptCapabilities"]["image"].as_bool() == Some(true);
                let can_load = capabilities["loadSession"].as_bool() == Some(true);
                if self.resume.is_some() && !self.abilities.can_resume && !can_load {
                    let message = "this agent cannot resume conversations";
                    return vec![EngineOutput::Failed(error(error_name::RESUME, message))];
                }
                vec![self.open_session()]
            }
            (Some(AcpRequest::OpenSession), None) => self.opened(result),
            (Some(AcpRequest::Initialize | AcpRequest::OpenSession), Some(why)) => {
                let name = match self.resume {
                    Some(_) => error_name::RESUME,
                    None => error_name::START,
                };
                vec![EngineOutput::Failed(error(name, why))]
            }
            (Some(AcpRequest::Prompt), failed) => self.ended(result, failed),
            (None, _) => Vec::new(),
        }
    }

    fn open_session(&mut self) -> EngineOutput {
        let server = self.mcp_server.iter().map(|server| {
            json!({
                "name": McpServerCommand::NAME, "command": server.program,
                "args": server.arguments, "env": [],
            })
        });
        let servers: Vec<Value> = server.collect();
        let mut params = json!({ "cwd": self.cwd, "mcpServers": servers });
        let method = match &self.resume {
            None => "session/new",
            Some(id) => {
                params["sessionId"] = json!(id);
                if self.abilities.can_resume { "session/resume" } else { "session/load" }
            }
        };
        self.request(AcpRequest::OpenSession, method, &params)
    }

    fn request(&mut self, asks: AcpRequest, method: &str, params: &Value) -> EngineOutput {
        self.last_request += 1;
        self.pending = Some(asks);
        let id = self.last_request;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        EngineOutput::Send(line)
    }

    fn opened(&mut self, result: &Value) -> Vec<EngineOutput> {
        self.session = match &self.resume {
            Some(id) => id.clone(),
            None => text_at(result, "sessionId"),
        };
        if self.resume.is_some() && self.traits.replays_late {
            self.stage = AcpStage::Replaying;
            return Vec::new();
        }
        self.ready()
    }

    fn ready(&mut self) -> Vec<EngineOutput> {
        self.stage = AcpStage::Ready;
        vec![EngineOutput::Ready { id: self.session.clone() }]
    }

    fn prompt(&mut self, prompt: &Prompt) -> Vec<EngineOutput> {
        self.stage = AcpStage::Running;
        self.is_cancelled = false;
        let mut blocks = vec![json!({ "type": "text", "text": prompt.text })];
        for file in &prompt.files {
            let block = match file.image.filter(|_| self.abilities.takes_images) {
                Some(mime) => {
                    let data = STANDARD.encode(&file.bytes);
                    json!({ "type": "image", "mimeType": mime, "data": data })
                }
                None => {
                    let name = file.path.file_name().unwrap_or_default().to_string_lossy();
                    let uri = format!("file://{}", file.path.display());
                    json!({ "type": "resource_link", "name": name, "uri": uri })
                }
            };
            blocks.push(block);
        }
        let params = json!({ "sessionId": self.session, "prompt": blocks });
        vec![self.request(AcpRequest::Prompt, "session/prompt", &params)]
    }

    fn updated(&mut self, update: &Value) -> Vec<EngineOutput> {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        match self.stage {
            AcpStage::Replaying if kind == "available_commands_update" => self.ready(),
            // Messages of earlier turns.
            AcpStage::Opening | AcpStage::Replaying | AcpStage::Ready => Vec::new(),
            AcpStage::Running => updates::translated(kind, update),
        }
    }

    fn ended(&mut self, result: &Value, failed: Option<String>) -> Vec<EngineOutput> {
        self.stage = AcpStage::Ready;
        let mut outputs: Vec<EngineOutput> = std::mem::take(&mut self.questions)
            .into_keys()
            .map(|permission| EngineOutput::Withdraw { permission })
            .collect();
        if let Some(usage) = updates::usage(result) {
            outputs.push(EngineOutput::Event(AgentEventKind::Usage(usage)));
        }
        let reason = result["stopReason"].as_str();
        let stop_reason = reason.map(str::to_owned);
        let end = match (failed, reason) {
            (_, Some("cancelled")) => EngineEnd { stop_reason, interrupted: true, error: None },
            (Some(_), _) if self.is_cancelled => {
                EngineEnd { stop_reason, interrupted: true, error: None }
            }
            (Some(why), _) => EngineEnd::failed(why, stop_reason),
            (None, Some("end_turn")) => EngineEnd { stop_reason, ..EngineEnd::default() },
            (None, Some(reason)) => {
                EngineEnd::failed(format!("the agent stopped: {reason}"), stop_reason)
            }
            (None, None) => {
                let message = "the agent's answer to the prompt has no stop reason".to_owned();
                let failed = AgentError { name: error_name::PROTOCOL.to_owned(), message };
                EngineEnd { error: Some(failed), ..EngineEnd::default() }
            }
        };
        outputs.push(EngineOutput::Done(end));
        outputs
    }

    fn asked(&mut self, id: &Value, params: &Value) -> Vec<EngineOutput> {
        if self.stage != AcpStage::Running {
            return vec![answer(id, json!({ "outcome": { "outcome": "cancelled" } }))];
        }
        self.asked += 1;
        let name = format!("p{}", self.asked);
        let offered = params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        let options = offered.iter().filter_map(option).take(OPTIONS_MAX).collect();
        self.questions.insert(name.clone(), id.clone());
        let call = &params["toolCall"];
        let mut outputs = Vec::new();
        let action = call["toolCallId"].as_str().map(str::to_owned);
        if action.is_some() {
            // Some agents tell an action for the first time when they ask for it.
            outputs.extend(updates::translated("tool_call_update", call));
        }
        let title = text_at(call, "title");
        outputs.push(EngineOutput::Ask(Question { id: name, title, options, action }));
        outputs
    }
}

/// An option by its exact kind. An option of another kind is left out: its meaning is unknown.
fn option(offered: &Value) -> Option<PermissionOption> {
    let kind = match offered["kind"].as_str()? {
        "allow_once" => OptionKind::AllowOnce,
        "allow_always" => OptionKind::AllowAlways,
        "reject_once" => OptionKind::RejectOnce,
        "reject_always" => OptionKind::RejectAlways,
        _ => return None,
    };
    let id = text_at(offered, "optionId");
    let name = text_at(offered, "name");
    (id.len() <= OPTION_ID_BYTES_MAX).then_some(PermissionOption { id, name, kind })
}

/// Why a request failed, if it did.
fn failure(line: &Value) -> Option<String> {
    let error = line.get("error")?;
    let details = ["details", "message"].map(|key| text_at(&error["data"], key)).concat();
    let message = text_at(error, "message");
    Some(match details.is_empty() {
        true => message,
        false => format!("{message}: {details}"),
    })
}

fn answer(id: &Value, result: Value) -> EngineOutput {
    EngineOutput::Send(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

//! The adapter for claude, by its stream of JSON lines and its control requests.

mod blocks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use windlass_protocol::agent::{
    AgentEventKind, OptionKind, PermissionOption, PermissionPolicy, TokenUsage, error_name,
};

use super::engine::{
    Engine, EngineCommand, EngineEnd, EngineInput, EngineOutput, Question, error, text_at,
};
use super::prompt::Prompt;
use super::settings::{AgentSettings, McpServerCommand};

/// How often claude repeats a request to its model.
const RETRIES: &str = "4";

/// Variables that keep claude quiet, and let it run in a sandbox.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
    ("CLAUDE_CODE_MAX_RETRIES", RETRIES),
    // The session is the sandbox. Without this, claude refuses to run as root.
    ("IS_SANDBOX", "1"),
];

const FLAGS: [&str; 9] = [
    "-p",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    "--permission-prompt-tool",
    "stdio",
];

const ALLOW: &str = "allow";
const ALLOW_ALWAYS: &str = "allow_always";
const DENY: &str = "deny";

/// The state of one claude process.
#[derive(Debug, Default)]
pub struct Claude {
    session: String,
    is_resumed: bool,
    is_running: bool,
    has_begun: bool,
    interrupts: u64,
    asked: u64,
    questions: BTreeMap<String, ClaudeQuestion>,
}

/// A permission that claude waits for.
#[derive(Debug)]
struct ClaudeQuestion {
    request: String,
    suggestions: Value,
}

impl Engine for Claude {
    fn command(&mut self, settings: &AgentSettings, resume: Option<&str>) -> EngineCommand {
        let mut arguments: Vec<String> = settings.request.arguments.clone();
        arguments.extend(FLAGS.map(str::to_owned));
        if settings.permissions() == PermissionPolicy::Allow {
            arguments.extend(["--permission-mode", "bypassPermissions"].map(str::to_owned));
        }
        if let Some(model) = &settings.request.model {
            arguments.extend(["--model".to_owned(), model.clone()]);
        }
        if let Some(server) = &settings.mcp_server {
            let server = json!({
                "type": "stdio", "command": server.program, "args": server.arguments,
            });
            let servers = json!({ "mcpServers": { McpServerCommand::NAME: server } });
            arguments.extend(["--mcp-config".to_owned(), servers.to_string()]);
        }
        // Claude writes a conversation to the disk with its first turn. An id of this process that had none is new.
        let is_unused = resume == Some(&self.session) && !self.is_resumed && !self.has_begun;
        self.is_resumed = resume.is_some() && !is_unused;
        self.session = resume.map_or_else(new_id, str::to_owned);
        let flag = if self.is_resumed { "--resume" } else { "--session-id" };
        arguments.extend([flag.to_owned(), self.session.clone()]);
        let environment = ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()));
        EngineCommand { arguments, environment: environment.into(), ..EngineCommand::default() }
    }

    fn step(&mut self, input: EngineInput<'_>) -> Vec<EngineOutput> {
        match input {
            EngineInput::Begin { .. } => {
                let (session, is_resumed) = (std::mem::take(&mut self.session), self.is_resumed);
                *self = Self { session, is_resumed, ..Self::default() };
                // Claude says nothing before the first prompt.
                vec![EngineOutput::Ready { id: self.session.clone() }]
            }
            EngineInput::Line(line) => self.take(line),
            EngineInput::Prompt(prompt) => self.prompt(prompt),
            EngineInput::Decide { permission, option } => self.decide(permission, &option.id),
            EngineInput::Refuse { permission } => self.decide(permission, DENY),
            EngineInput::Interrupt => {
                self.interrupts += 1;
                let request_id = format!("interrupt-{}", self.interrupts);
                let request = json!({ "subtype": "interrupt" });
                vec![EngineOutput::Send(
                    json!({ "type": "control_request", "request_id": request_id, "request": request }),
                )]
            }
        }
    }
}

impl Claude {
    fn prompt(&mut self, prompt: &Prompt) -> Vec<EngineOutput> {
        self.is_running = true;
        let mut content = vec![json!({ "type": "text", "text": prompt.text })];
        for (file, mime) in prompt.images() {
            let data = STANDARD.encode(&file.bytes);
            let source = json!({ "type": "base64", "media_type": mime, "data": data });
            content.push(json!({ "type": "image", "source": source }));
        }
        let message = json!({ "role": "user", "content": content });
        vec![EngineOutput::Send(json!({
            "type": "user",
            "message": message,
            "parent_tool_use_id": null,
            "session_id": self.session,
        }))]
    }

    fn take(&mut self, line: &Value) -> Vec<EngineOutput> {
        match line["type"].as_str().unwrap_or_default() {
            "system" => self.system(line),
            "stream_event" => blocks::delta(line),
            "assistant" => blocks::of_assistant(line),
            "user" => blocks::of_user(line),
            "result" => self.result(line),
            "control_request" => self.asked(line),
            "control_cancel_request" => {
                let request = text_at(line, "request_id");
                let found = self.questions.iter().find(|(_, open)| open.request == request);
                let Some(permission) = found.map(|(name, _)| name.clone()) else {
                    return Vec::new();
                };
                self.questions.remove(&permission);
                vec![EngineOutput::Withdraw { permission }]
            }
            "control_response" | "keep_alive" | "command_lifecycle" => Vec::new(),
            other => blocks::unknown(other),
        }
    }

    fn system(&mut self, line: &Value) -> Vec<EngineOutput> {
        let notice = |text: String, id: Option<&str>| {
            let id = id.map(str::to_owned);
            vec![EngineOutput::Event(AgentEventKind::Notice { text, id })]
        };
        match line["subtype"].as_str().unwrap_or_default() {
            "init" => {
                self.has_begun = true;
                Vec::new()
            }
            "api_retry" => {
                let figure = |key: &str| line[key].as_u64().unwrap_or_default();
                let (attempt, of) = (figure("attempt"), figure("max_retries"));
                let why = text_at(line, "error");
                notice(format!("Reconnecting... {attempt}/{of} ({why})"), Some("reconnecting"))
            }
            "permission_denied" => notice(text_at(line, "message"), None),
            _ => Vec::new(),
        }
    }

    fn result(&mut self, line: &Value) -> Vec<EngineOutput> {
        // Claude begins turns by itself when a background task ends. Nobody asked for those.
        let is_own = line["origin"]["kind"].as_str() == Some("task-notification");
        if is_own || !std::mem::take(&mut self.is_running) {
            return Vec::new();
        }
        let mut outputs: Vec<EngineOutput> = std::mem::take(&mut self.questions)
            .into_keys()
            .map(|permission| EngineOutput::Withdraw { permission })
            .collect();
        outputs.push(EngineOutput::Event(AgentEventKind::Usage(usage(line))));
        let reason = line["terminal_reason"].as_str().or(line["subtype"].as_str());
        let stop_reason = reason.map(str::to_owned);
        let said = [text_at(line, "result"), first_error(line)];
        let said = said.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        let is_missing = self.is_resumed && !self.has_begun;
        let end = match (line["is_error"].as_bool() == Some(true), reason) {
            (_, Some("aborted_streaming" | "aborted_tools")) => {
                EngineEnd { stop_reason, interrupted: true, error: None }
            }
            (true, _) if is_missing => {
                let error = Some(error(error_name::RESUME, format!("claude: {said}")));
                EngineEnd { error, stop_reason, interrupted: false }
            }
            (true, _) => EngineEnd::failed(format!("claude: {said}"), stop_reason),
            (false, _) => EngineEnd { stop_reason, ..EngineEnd::default() },
        };
        outputs.push(EngineOutput::Done(end));
        outputs
    }

    fn asked(&mut self, line: &Value) -> Vec<EngineOutput> {
        let (request, id) = (&line["request"], text_at(line, "request_id"));
        if request["subtype"].as_str() != Some("can_use_tool") {
            let error = "not supported by this client";
            let response = json!({ "subtype": "error", "request_id": id, "error": error });
            return vec![EngineOutput::Send(
                json!({ "type": "control_response", "response": response }),
            )];
        }
        self.asked += 1;
        let name = format!("p{}", self.asked);
        let (_, title) = blocks::described(&text_at(request, "tool_name"), &request["input"]);
        let option = |id: &str, name: &str, kind| PermissionOption {
            id: id.to_owned(),
            name: name.to_owned(),
            kind,
        };
        let options = vec![
            option(ALLOW, "Allow once", OptionKind::AllowOnce),
            option(ALLOW_ALWAYS, "Allow for this conversation", OptionKind::AllowAlways),
            option(DENY, "Refuse", OptionKind::RejectOnce),
        ];
        let action = request["tool_use_id"].as_str().map(str::to_owned);
        let suggestions = request["permission_suggestions"].clone();
        self.questions.insert(name.clone(), ClaudeQuestion { request: id, suggestions });
        vec![EngineOutput::Ask(Question { id: name, title, options, action })]
    }

    fn decide(&mut self, permission: &str, option: &str) -> Vec<EngineOutput> {
        let Some(open) = self.questions.remove(permission) else { return Vec::new() };
        let decision = match option {
            ALLOW => json!({ "behavior": "allow" }),
            ALLOW_ALWAYS => {
                json!({ "behavior": "allow", "updatedPermissions": for_session(&open.suggestions) })
            }
            _ => json!({ "behavior": "deny", "message": "the user refused" }),
        };
        let response =
            json!({ "subtype": "success", "request_id": open.request, "response": decision });
        vec![EngineOutput::Send(json!({ "type": "control_response", "response": response }))]
    }
}

/// Claude's suggestions, for this conversation only: it would write others into the workspace.
fn for_session(suggestions: &Value) -> Vec<Value> {
    let suggestions = suggestions.as_array().map(Vec::as_slice).unwrap_or_default();
    let rules = suggestions.iter().filter(|one| one["type"].as_str() == Some("addRules"));
    rules
        .cloned()
        .map(|mut rule| {
            rule["destination"] = json!("session");
            rule
        })
        .collect()
}

/// What the turn used. Claude adds up the cost over the whole conversation, so the cost of the turn is taken from
/// its models.
fn usage(line: &Value) -> TokenUsage {
    let figure = |key: &str| line["usage"][key].as_u64().unwrap_or_default();
    let cached = figure("cache_read_input_tokens");
    let models = line["model_usage_since_last_result"].as_object();
    let costs = models.map(|models| models.values().filter_map(|model| model["costUSD"].as_f64()));
    TokenUsage {
        input_tokens: figure("input_tokens") + cached + figure("cache_creation_input_tokens"),
        output_tokens: figure("output_tokens"),
        cached_tokens: cached,
        reasoning_tokens: 0,
        cost_usd: costs.map(Iterator::sum),
    }
}

fn first_error(line: &Value) -> String {
    line["errors"].get(0).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A random UUID of version 4.
fn new_id() -> String {
    let mut bytes = [0u8; 16];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        bytes = now.to_be_bytes();
    }
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

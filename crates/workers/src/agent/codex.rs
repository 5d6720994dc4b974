//! The adapter for codex, by `codex app-server`: JSON lines, requests in both directions. [`exec`] is for a codex that
//! does not know `app-server`.

mod approvals;
mod exec;
mod items;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use windlass_protocol::agent::{
    AgentEventKind, PermissionPolicy, PlanState, PlanStep, TokenUsage, error_name,
};

use self::approvals::OpenApproval;
use super::engine::{Engine, EngineCommand, EngineEnd, EngineInput, EngineOutput, error, text_at};
use super::prompt::Prompt;
use super::settings::{AgentSettings, McpServerCommand};

/// The numbers of the requests that the adapter sends. Each is open at most once.
const INITIALIZE: u64 = 1;
const THREAD: u64 = 2;
const TURN: u64 = 3;
const INTERRUPT: u64 = 4;
const CLEAN: u64 = 5;

/// Settings that keep codex quiet: no update check, no telemetry, no plugins that load from the network.
const QUIET: [&str; 5] = [
    "check_for_update_on_startup=false",
    "analytics.enabled=false",
    "features.plugins=false",
    "features.apps=false",
    "features.shell_snapshot=false",
];

/// How long codex waits for a tool: longer than the longest wait of the session's tools, which is 600 s.
const TOOL_TIMEOUT_S: u64 = 660;

/// Notifications that say nothing about the turn.
const NOISE: [&str; 12] = [
    "remoteControl/status/changed",
    "account/rateLimits/updated",
    "thread/readState/changed",
    "thread/goal/cleared",
    "thread/settings/updated",
    "thread/status/changed",
    "thread/started",
    "mcpServer/startupStatus/updated",
    "serverRequest/resolved",
    "turn/diff/updated",
    "item/reasoning/summaryPartAdded",
    "item/commandExecution/terminalInteraction",
];

/// What every `codex app-server` of a session gets.
#[derive(Debug, Default)]
struct CodexSetup {
    model: Option<String>,
    mcp_server: Option<McpServerCommand>,
    policy: PermissionPolicy,
    /// A process has written a line, so this codex knows `app-server`.
    has_answered: bool,
}

/// The state of one `codex app-server`.
#[derive(Debug, Default)]
pub struct Codex {
    setup: CodexSetup,
    resume: Option<String>,
    thread: String,
    /// The running turn, from `turn/started` on.
    turn: Option<String>,
    /// A prompt was sent, and its turn is not completed.
    is_running: bool,
    interrupt: CodexInterrupt,
    /// What the requests of this turn used.
    used: TokenUsage,
    approvals: BTreeMap<String, OpenApproval>,
    asked: u64,
    /// Titles of open items, for approvals that do not repeat them.
    titles: BTreeMap<String, String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum CodexInterrupt {
    #[default]
    None,
    /// Asked for before codex knew the turn.
    Wanted,
    Sent,
}

impl Engine for Codex {
    fn command(&mut self, settings: &AgentSettings, _resume: Option<&str>) -> EngineCommand {
        self.setup = CodexSetup {
            model: settings.request.model.clone(),
            mcp_server: settings.mcp_server.clone(),
            policy: settings.permissions(),
            has_answered: self.setup.has_answered,
        };
        let quiet = QUIET.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]);
        let own = settings.request.arguments.iter().cloned();
        EngineCommand {
            arguments: quiet.chain(own).chain(["app-server".to_owned()]).collect(),
            ..EngineCommand::default()
        }
    }

    /// A codex that does not know `app-server` ends at once, with an error about its arguments or about the terminal that it
    /// wants to use.
    fn fallback(&self, exit_code: i32) -> Option<Box<dyn Engine>> {
        let is_old = !self.setup.has_answered && matches!(exit_code, 1 | 2);
        is_old.then(|| Box::<exec::CodexExec>::default() as Box<dyn Engine>)
    }

    fn step(&mut self, input: EngineInput<'_>) -> Vec<EngineOutput> {
        match input {
            EngineInput::Begin { resume, .. } => self.begin(resume),
            EngineInput::Line(line) => self.take(line),
            EngineInput::Prompt(prompt) => self.prompt(prompt),
            EngineInput::Decide { permission, option } => self.answer(permission, &option.id),
            EngineInput::Refuse { permission } => self.answer(permission, "decline"),
            EngineInput::Interrupt => self.interrupt(),
        }
    }
}

impl Codex {
    fn begin(&mut self, resume: Option<&str>) -> Vec<EngineOutput> {
        let resume = resume.map(str::to_owned);
        let setup = std::mem::take(&mut self.setup);
        *self = Self { setup, resume, ..Self::default() };
        let params = json!({
            "clientInfo": { "name": "windlass", "version": env!("CARGO_PKG_VERSION") },
            "capabilities": { "experimentalApi": true },
        });
        vec![request(INITIALIZE, "initialize", params)]
    }

    fn take(&mut self, line: &Value) -> Vec<EngineOutput> {
        self.setup.has_answered = true;
        match (line["method"].as_str(), line.get("id")) {
            (Some(method), Some(id)) => self.asked(method, id, &line["params"]),
            (Some(method), None) => self.told(method, &line["params"]),
            (None, _) => self.answered(line),
        }
    }

    /// An answer to one of the adapter's requests.
    fn answered(&mut self, line: &Value) -> Vec<EngineOutput> {
        let failure = line["error"]["message"].as_str();
        match (line["id"].as_u64(), failure) {
            (Some(INITIALIZE), None) => {
                vec![EngineOutput::Send(json!({ "method": "initialized" })), self.open_thread()]
            }
            (Some(THREAD), None) => {
                self.thread = text_at(&line["result"]["thread"], "id");
                vec![EngineOutput::Ready { id: self.thread.clone() }]
            }
            (Some(THREAD), Some(message)) if self.resume.is_some() => {
                vec![EngineOutput::Failed(error(error_name::RESUME, format!("codex: {message}")))]
            }
            (Some(INITIALIZE | THREAD), Some(message)) => {
                vec![EngineOutput::Failed(error(error_name::START, format!("codex: {message}")))]
            }
            (Some(TURN), Some(message)) if self.is_running => {
                self.is_running = false;
                vec![EngineOutput::Done(EngineEnd::failed(format!("codex: {message}"), None))]
            }
            // The turn had not begun. The interrupt is sent again when it does.
            (Some(INTERRUPT), Some(_)) if self.turn.is_none() && self.is_running => {
                self.interrupt = CodexInterrupt::Wanted;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn open_thread(&self) -> EngineOutput {
        // The session is the sandbox. Codex's own cannot be nested in it.
        let approval = match self.setup.policy {
            PermissionPolicy::Allow => "never",
            PermissionPolicy::Ask | PermissionPolicy::Refuse => "untrusted",
        };
        let mut params = json!({ "approvalPolicy": approval, "sandbox": "danger-full-access" });
        if let Some(model) = &self.setup.model {
            params["model"] = json!(model);
        }
        if let Some(server) = &self.setup.mcp_server {
            params["config"] = json!({ "mcp_servers": { McpServerCommand::NAME: {
                "command": server.program,
                "args": server.arguments,
                "tool_timeout_sec": TOOL_TIMEOUT_S,
            }}});
        }
        match &self.resume {
            None => request(THREAD, "thread/start", params),
            Some(thread) => {
                params["threadId"] = json!(thread);
                params["excludeTurns"] = json!(true);
                request(THREAD, "thread/resume", params)
            }
        }
    }

    fn prompt(&mut self, prompt: &Prompt) -> Vec<EngineOutput> {
        self.is_running = true;
        self.turn = None;
        self.interrupt = CodexInterrupt::None;
        self.used = TokenUsage::default();
        let mut input = vec![json!({ "type": "text", "text": prompt.text })];
        for (file, _) in prompt.images() {
            input.push(json!({ "type": "localImage", "path": file.path }));
        }
        let params = json!({ "threadId": self.thread, "input": input });
        vec![request(TURN, "turn/start", params)]
    }

    fn interrupt(&mut self) -> Vec<EngineOutput> {
        // Codex never answers a second interrupt of the same turn.
        match (&self.turn, self.interrupt) {
            (Some(turn), CodexInterrupt::None | CodexInterrupt::Wanted) => {
                let params = json!({ "threadId": self.thread, "turnId": turn });
                self.interrupt = CodexInterrupt::Sent;
                vec![request(INTERRUPT, "turn/interrupt", params)]
            }
            (None, CodexInterrupt::None) => {
                self.interrupt = CodexInterrupt::Wanted;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A notification.
    fn told(&mut self, method: &str, params: &Value) -> Vec<EngineOutput> {
        let event = |kind| vec![EngineOutput::Event(kind)];
        match method {
            "turn/started" => {
                self.turn = params["turn"]["id"].as_str().map(str::to_owned);
                match self.interrupt {
                    CodexInterrupt::Wanted => self.interrupt(),
                    _ => Vec::new(),
                }
            }
            "turn/completed" if self.is_another_turn(&params["turn"]) => Vec::new(),
            "turn/completed" => self.completed(&params["turn"]),
            "item/started" => self.item(&params["item"], items::Moment::Started),
            "item/completed" => self.item(&params["item"], items::Moment::Completed),
            "item/agentMessage/delta" => event(AgentEventKind::Message {
                text: text_at(params, "delta"),
                chunk: true,
                phase: None,
            }),
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                event(AgentEventKind::Reasoning { text: text_at(params, "delta"), chunk: true })
            }
            "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => {
                event(items::output(params))
            }
            "turn/plan/updated" => event(AgentEventKind::Plan { steps: steps(params) }),
            "thread/tokenUsage/updated" => self.count(params),
            "error" => self.error(params),
            "warning" | "configWarning" | "deprecationNotice" => {
                let text = ["message", "summary"].map(|key| text_at(params, key)).concat();
                event(AgentEventKind::Notice { text, id: None })
            }
            _ if NOISE.contains(&method) => Vec::new(),
            _ => items::unknown_notification(method, params),
        }
    }

    /// Whether a message is about another turn than the running one.
    fn is_another_turn(&self, turn: &Value) -> bool {
        let id = turn["id"].as_str();
        id.is_some() && self.turn.is_some() && id != self.turn.as_deref()
    }

    fn item(&mut self, item: &Value, moment: items::Moment) -> Vec<EngineOutput> {
        let id = text_at(item, "id");
        let outputs = items::translated(item, moment);
        for output in &outputs {
            if let EngineOutput::Event(AgentEventKind::Action { title, .. }) = output {
                match moment {
                    items::Moment::Started => self.titles.insert(id.clone(), title.clone()),
                    items::Moment::Completed => self.titles.remove(&id),
                };
            }
        }
        outputs
    }

    /// Counts the tokens of one request to the model. A resumed thread first tells those of an earlier turn.
    fn count(&mut self, params: &Value) -> Vec<EngineOutput> {
        if self.turn.is_none() || params["turnId"].as_str() != self.turn.as_deref() {
            return Vec::new();
        }
        let last = &params["tokenUsage"]["last"];
        let figure = |key: &str| last[key].as_u64().unwrap_or_default();
        self.used.input_tokens += figure("inputTokens");
        self.used.output_tokens += figure("outputTokens");
        self.used.cached_tokens += figure("cachedInputTokens");
        self.used.reasoning_tokens += figure("reasoningOutputTokens");
        vec![EngineOutput::Event(AgentEventKind::Usage(self.used))]
    }

    fn error(&self, params: &Value) -> Vec<EngineOutput> {
        // The last error comes again with the turn's end.
        if params["willRetry"].as_bool() != Some(true) {
            return Vec::new();
        }
        let text = text_at(&params["error"], "message");
        let id = text.starts_with("Reconnecting").then(|| "reconnecting".to_owned());
        vec![EngineOutput::Event(AgentEventKind::Notice { text, id })]
    }

    fn completed(&mut self, turn: &Value) -> Vec<EngineOutput> {
        if !std::mem::take(&mut self.is_running) {
            return Vec::new();
        }
        self.turn = None;
        let mut outputs: Vec<EngineOutput> = std::mem::take(&mut self.approvals)
            .into_keys()
            .map(|permission| EngineOutput::Withdraw { permission })
            .collect();
        let status = text_at(turn, "status");
        let end = match &*status {
            "completed" => EngineEnd { stop_reason: Some(status), ..EngineEnd::default() },
            "interrupted" => {
                // Codex leaves the commands of an interrupted turn running.
                let params = json!({ "threadId": self.thread });
                outputs.push(request(CLEAN, "thread/backgroundTerminals/clean", params));
                EngineEnd { stop_reason: Some(status), interrupted: true, error: None }
            }
            _ => {
                let message = text_at(&turn["error"], "message");
                EngineEnd::failed(format!("codex: {message}"), Some(status))
            }
        };
        outputs.push(EngineOutput::Done(end));
        outputs
    }

    fn answer(&mut self, permission: &str, option: &str) -> Vec<EngineOutput> {
        let Some(approval) = self.approvals.remove(permission) else { return Vec::new() };
        vec![EngineOutput::Send(approval.answer(option))]
    }

    /// A request of codex.
    fn asked(&mut self, method: &str, id: &Value, params: &Value) -> Vec<EngineOutput> {
        self.asked += 1;
        let name = format!("p{}", self.asked);
        let title = self.titles.get(&text_at(params, "itemId"));
        match OpenApproval::of(method, id, params, title.map(String::as_str)) {
            Some((approval, mut question)) => {
                question.id.clone_from(&name);
                self.approvals.insert(name, approval);
                vec![EngineOutput::Ask(question)]
            }
            None => {
                let error = json!({ "code": -32601, "message": "not supported by this client" });
                vec![EngineOutput::Send(json!({ "id": id, "error": error }))]
            }
        }
    }
}

fn request(id: u64, method: &str, params: Value) -> EngineOutput {
    EngineOutput::Send(json!({ "id": id, "method": method, "params": params }))
}

fn steps(params: &Value) -> Vec<PlanStep> {
    let steps = params["plan"].as_array().map(Vec::as_slice).unwrap_or_default();
    let state = |step: &Value| match step["status"].as_str() {
        Some("completed") => PlanState::Completed,
        Some("inProgress") => PlanState::InProgress,
        _ => PlanState::Pending,
    };
    steps.iter().map(|step| PlanStep { text: text_at(step, "step"), state: state(step) }).collect()
}

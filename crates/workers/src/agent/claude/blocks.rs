//! The content of claude's messages as events.

use serde_json::Value;
use windlass_protocol::agent::{ActionKind, ActionPhase, AgentEventKind, PlanState, PlanStep};

use super::super::engine::{EngineOutput, text_at};

/// A part of a message that streams.
pub fn delta(line: &Value) -> Vec<EngineOutput> {
    if is_of_sub_agent(line) {
        return Vec::new();
    }
    let delta = &line["event"]["delta"];
    let event = match delta["type"].as_str() {
        Some("text_delta") => {
            AgentEventKind::Message { text: text_at(delta, "text"), chunk: true, phase: None }
        }
        Some("thinking_delta") => {
            AgentEventKind::Reasoning { text: text_at(delta, "thinking"), chunk: true }
        }
        _ => return Vec::new(),
    };
    vec![EngineOutput::Event(event)]
}

/// A whole block of the model's message.
pub fn of_assistant(line: &Value) -> Vec<EngineOutput> {
    let is_sub = is_of_sub_agent(line);
    let mut outputs = Vec::new();
    for block in blocks(&line["message"]["content"]) {
        let event = match block["type"].as_str().unwrap_or_default() {
            // Claude tells errors of its model's API as messages, and again with the turn's end.
            "text" if line["is_api_error_message"].as_bool() == Some(true) => continue,
            "text" if is_sub => continue,
            "text" => {
                AgentEventKind::Message { text: text_at(block, "text"), chunk: false, phase: None }
            }
            "thinking" => {
                AgentEventKind::Reasoning { text: text_at(block, "thinking"), chunk: false }
            }
            "redacted_thinking" => continue,
            "tool_use" | "server_tool_use" => {
                let (name, input) = (text_at(block, "name"), &block["input"]);
                if name == "TodoWrite" {
                    outputs.push(EngineOutput::Event(AgentEventKind::Plan { steps: todos(input) }));
                }
                let (action, title) = described(&name, input);
                let (id, phase) = (text_at(block, "id"), ActionPhase::Started);
                AgentEventKind::Action { id, action, title, phase, ok: None, detail: None }
            }
            other => unknown_event(other),
        };
        outputs.push(EngineOutput::Event(event));
    }
    outputs
}

/// The results of tools come as messages of the user.
pub fn of_user(line: &Value) -> Vec<EngineOutput> {
    let results = blocks(&line["message"]["content"]).iter();
    let results = results.filter(|block| block["type"].as_str() == Some("tool_result"));
    results
        .map(|block| {
            EngineOutput::Event(AgentEventKind::Action {
                id: text_at(block, "tool_use_id"),
                action: ActionKind::Unknown,
                title: String::new(),
                phase: ActionPhase::Completed,
                ok: Some(block["is_error"].as_bool() != Some(true)),
                detail: Some(content_text(&block["content"])),
            })
        })
        .collect()
}

/// A line of a kind that this release does not know.
pub fn unknown(kind: &str) -> Vec<EngineOutput> {
    vec![EngineOutput::Event(unknown_event(kind))]
}

fn unknown_event(kind: &str) -> AgentEventKind {
    AgentEventKind::Action {
        id: format!("unknown-{kind}"),
        action: ActionKind::Unknown,
        title: kind.to_owned(),
        phase: ActionPhase::Completed,
        ok: None,
        detail: None,
    }
}

/// The kind of a tool's action, and a title for people.
pub fn described(tool: &str, input: &Value) -> (ActionKind, String) {
    let named = |key: &str| format!("{tool} {}", text_at(input, key));
    match tool {
        "Bash" => (ActionKind::Command, text_at(input, "command")),
        "Write" | "Edit" | "MultiEdit" | "NotebookEdit" => {
            let path = ["file_path", "notebook_path"].map(|key| text_at(input, key)).concat();
            (ActionKind::FileChange, format!("{tool} {path}"))
        }
        "WebSearch" => (ActionKind::WebSearch, text_at(input, "query")),
        "WebFetch" => (ActionKind::WebSearch, text_at(input, "url")),
        "Task" | "Agent" => (ActionKind::SubAgent, named("description")),
        "Read" => (ActionKind::Tool, named("file_path")),
        "Glob" | "Grep" => (ActionKind::Tool, named("pattern")),
        other => (ActionKind::Tool, other.to_owned()),
    }
}

fn todos(input: &Value) -> Vec<PlanStep> {
    let state = |todo: &Value| match todo["status"].as_str() {
        Some("completed") => PlanState::Completed,
        Some("in_progress") => PlanState::InProgress,
        _ => PlanState::Pending,
    };
    let step = |todo: &Value| PlanStep { text: text_at(todo, "content"), state: state(todo) };
    blocks(&input["todos"]).iter().map(step).collect()
}

/// Whether the line is of an agent that the agent started.
fn is_of_sub_agent(line: &Value) -> bool {
    line["parent_tool_use_id"].is_string() || line["agent_id"].is_string()
}

fn blocks(content: &Value) -> &[Value] {
    content.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn content_text(content: &Value) -> String {
    match content.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let texts = blocks(content).iter().map(|block| text_at(block, "text"));
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

//! Items of a codex turn as events: messages, reasoning and actions.

use serde_json::Value;
use windlass_protocol::agent::{ActionKind, ActionPhase, AgentEventKind};

use super::super::engine::{EngineOutput, text_at};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Started,
    Completed,
}

/// The events of an item that started or is completed.
pub fn translated(item: &Value, moment: Moment) -> Vec<EngineOutput> {
    let kind = text_at(item, "type");
    let event = match (&*kind, moment) {
        ("userMessage" | "hookPrompt", _) | ("agentMessage" | "reasoning", Moment::Started) => {
            return Vec::new();
        }
        ("agentMessage", Moment::Completed) => AgentEventKind::Message {
            text: text_at(item, "text"),
            chunk: false,
            phase: item["phase"].as_str().map(str::to_owned),
        },
        ("reasoning", Moment::Completed) => {
            AgentEventKind::Reasoning { text: joined(&item["summary"]), chunk: false }
        }
        (kind, moment) => action(kind, item, moment),
    };
    vec![EngineOutput::Event(event)]
}

fn action(kind: &str, item: &Value, moment: Moment) -> AgentEventKind {
    let (action, title) = match kind {
        "commandExecution" => (ActionKind::Command, text_at(item, "command")),
        "fileChange" => (ActionKind::FileChange, changed_files(item)),
        "mcpToolCall" => {
            let (server, tool) = (text_at(item, "server"), text_at(item, "tool"));
            (ActionKind::Tool, format!("{server}.{tool}"))
        }
        "dynamicToolCall" => (ActionKind::Tool, text_at(item, "tool")),
        "imageView" => (ActionKind::Tool, format!("view {}", text_at(item, "path"))),
        "webSearch" => (ActionKind::WebSearch, text_at(item, "query")),
        "collabAgentToolCall" | "subAgentActivity" => (ActionKind::SubAgent, text_at(item, "tool")),
        "plan" => (ActionKind::Note, text_at(item, "text")),
        "contextCompaction" => (ActionKind::Note, "the conversation was shortened".to_owned()),
        other => (ActionKind::Unknown, other.to_owned()),
    };
    let (phase, ok) = match moment {
        Moment::Started => (ActionPhase::Started, None),
        Moment::Completed => (ActionPhase::Completed, succeeded(item)),
    };
    let detail = detail(kind, item).filter(|_| moment == Moment::Completed);
    AgentEventKind::Action { id: text_at(item, "id"), action, title, phase, ok, detail }
}

fn succeeded(item: &Value) -> Option<bool> {
    match item["status"].as_str()? {
        "completed" => Some(true),
        "failed" | "declined" => Some(false),
        _ => None,
    }
}

fn detail(kind: &str, item: &Value) -> Option<String> {
    match kind {
        "commandExecution" => item["aggregatedOutput"].as_str().map(str::to_owned),
        "fileChange" => {
            let changes = item["changes"].as_array()?;
            let diffs = changes
                .iter()
                .map(|change| format!("{}\n{}", text_at(change, "path"), text_at(change, "diff")));
            Some(diffs.collect::<Vec<_>>().join("\n"))
        }
        "mcpToolCall" | "dynamicToolCall" => {
            let failure = item["error"]["message"].as_str().map(str::to_owned);
            failure.or_else(|| Some(content_text(&item["result"]["content"])))
        }
        _ => None,
    }
}

fn changed_files(item: &Value) -> String {
    let changes = item["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let paths: Vec<String> = changes.iter().map(|change| text_at(change, "path")).collect();
    paths.join(", ")
}

fn content_text(content: &Value) -> String {
    let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
    blocks.iter().map(|block| text_at(block, "text")).collect::<Vec<_>>().join("\n")
}

fn joined(texts: &Value) -> String {
    let texts = texts.as_array().map(Vec::as_slice).unwrap_or_default();
    texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n\n")
}

/// More output of a command.
pub fn output(params: &Value) -> AgentEventKind {
    AgentEventKind::Action {
        id: text_at(params, "itemId"),
        action: ActionKind::Unknown,
        title: String::new(),
        phase: ActionPhase::Updated,
        ok: None,
        detail: Some(text_at(params, "delta")),
    }
}

/// A notification of a kind that this release does not know.
pub fn unknown_notification(method: &str, params: &Value) -> Vec<EngineOutput> {
    let item = text_at(params, "itemId");
    let (id, phase) = match item.is_empty() {
        true => (method.to_owned(), ActionPhase::Completed),
        false => (item, ActionPhase::Updated),
    };
    let (action, title) = (ActionKind::Unknown, method.to_owned());
    let event = AgentEventKind::Action { id, action, title, phase, ok: None, detail: None };
    vec![EngineOutput::Event(event)]
}

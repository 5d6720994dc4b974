//! The updates of an ACP session as events.

use serde_json::Value;
use windlass_protocol::agent::{
    ActionKind, ActionPhase, AgentEventKind, PlanState, PlanStep, TokenUsage,
};

use super::super::engine::{EngineOutput, text_at};

/// Updates that say nothing about the turn.
const NOISE: [&str; 6] = [
    "user_message_chunk",
    "available_commands_update",
    "current_mode_update",
    "config_option_update",
    "session_info_update",
    "usage_update",
];

pub fn translated(kind: &str, update: &Value) -> Vec<EngineOutput> {
    let event = match kind {
        "agent_message_chunk" => {
            let text = text_at(&update["content"], "text");
            AgentEventKind::Message { text, chunk: true, phase: None }
        }
        "agent_thought_chunk" => {
            let text = text_at(&update["content"], "text");
            AgentEventKind::Reasoning { text, chunk: true }
        }
        "tool_call" | "tool_call_update" => action(update),
        "plan" => AgentEventKind::Plan { steps: steps(&update["entries"]) },
        _ if NOISE.contains(&kind) => return Vec::new(),
        other => AgentEventKind::Action {
            id: format!("unknown-{other}"),
            action: ActionKind::Unknown,
            title: other.to_owned(),
            phase: ActionPhase::Completed,
            ok: None,
            detail: None,
        },
    };
    vec![EngineOutput::Event(event)]
}

fn action(call: &Value) -> AgentEventKind {
    let action = match call["kind"].as_str() {
        Some("execute") => ActionKind::Command,
        Some("edit" | "delete" | "move") => ActionKind::FileChange,
        Some("fetch") => ActionKind::WebSearch,
        Some("think") => ActionKind::SubAgent,
        Some("read" | "search" | "other" | "switch_mode") => ActionKind::Tool,
        _ => ActionKind::Unknown,
    };
    let (phase, ok) = match call["status"].as_str() {
        Some("completed") => (ActionPhase::Completed, Some(true)),
        Some("failed") => (ActionPhase::Completed, Some(false)),
        _ => (ActionPhase::Updated, None),
    };
    AgentEventKind::Action {
        id: text_at(call, "toolCallId"),
        action,
        title: text_at(call, "title"),
        phase,
        ok,
        detail: detail(&call["content"]),
    }
}

/// The content of a tool call, as text.
fn detail(content: &Value) -> Option<String> {
    let blocks = content.as_array()?;
    let texts = blocks.iter().filter_map(|block| match block["type"].as_str()? {
        "content" => Some(text_at(&block["content"], "text")),
        "diff" => Some(format!("{}\n{}", text_at(block, "path"), text_at(block, "newText"))),
        _ => None,
    });
    Some(texts.collect::<Vec<_>>().join("\n")).filter(|text| !text.is_empty())
}

fn steps(entries: &Value) -> Vec<PlanStep> {
    let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
    let state = |entry: &Value| match entry["status"].as_str() {
        Some("completed") => PlanState::Completed,
        Some("in_progress") => PlanState::InProgress,
        _ => PlanState::Pending,
    };
    let step = |entry: &Value| PlanStep { text: text_at(entry, "content"), state: state(entry) };
    entries.iter().map(step).collect()
}

/// The usage in the answer to a prompt: the protocol's own, or gemini's.
pub fn usage(result: &Value) -> Option<TokenUsage> {
    let figure = |from: &Value, key: &str| from[key].as_u64().unwrap_or_default();
    let own = &result["usage"];
    if own.is_object() {
        return Some(TokenUsage {
            input_tokens: figure(own, "inputTokens"),
            output_tokens: figure(own, "outputTokens"),
            cached_tokens: figure(own, "cachedReadTokens"),
            reasoning_tokens: figure(own, "thoughtTokens"),
            cost_usd: None,
        });
    }
    let counted = &result["_meta"]["quota"]["token_count"];
    counted.is_object().then(|| TokenUsage {
        input_tokens: figure(counted, "input_tokens"),
        output_tokens: figure(counted, "output_tokens"),
        ..TokenUsage::default()
    })
}

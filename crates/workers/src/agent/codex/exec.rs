//! The adapter for a codex without `app-server`: `codex exec --json`, one process for each turn. It cannot ask for
//! permissions.

use serde_json::{Value, json};
use windlass_protocol::agent::{AgentEventKind, PermissionPolicy, PlanState, PlanStep, TokenUsage};

use super::super::engine::{Engine, EngineCommand, EngineEnd, EngineInput, EngineOutput, text_at};
use super::super::settings::{AgentSettings, McpServerCommand};
use super::{QUIET, TOOL_TIMEOUT_S, items};

const FLAGS: [&str; 3] =
    ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"];

/// The state of one `codex exec`.
#[derive(Debug, Default)]
pub struct CodexExec {
    is_running: bool,
    /// What the conversation had used before this turn. Codex adds up the usage of a whole conversation. Unknown for a
    /// conversation that another worker began.
    used_before: Option<TokenUsage>,
    /// What the conversation has used at the end of the last turn.
    used: Option<TokenUsage>,
}

impl Engine for CodexExec {
    fn command(&mut self, settings: &AgentSettings, resume: Option<&str>) -> EngineCommand {
        let refusal = (settings.permissions() != PermissionPolicy::Allow).then(|| {
            "this codex has no `app-server`, so it cannot ask for permissions; use the permissions `allow`, \
             or a newer codex"
                .to_owned()
        });
        self.used_before = match resume {
            None => Some(TokenUsage::default()),
            Some(_) => self.used.take(),
        };
        let mut arguments = settings.request.arguments.clone();
        arguments.push("exec".to_owned());
        arguments.extend(resume.iter().flat_map(|id| ["resume".to_owned(), (*id).to_owned()]));
        arguments.extend(FLAGS.map(str::to_owned));
        let quiet = QUIET.iter().map(|setting| (*setting).to_owned());
        for setting in quiet.chain(settings.mcp_server.iter().flat_map(server_settings)) {
            arguments.extend(["-c".to_owned(), setting]);
        }
        if let Some(model) = &settings.request.model {
            arguments.extend(["-m".to_owned(), model.clone()]);
        }
        // The prompt comes by standard input.
        arguments.push("-".to_owned());
        EngineCommand { arguments, refusal, ..EngineCommand::default() }
    }

    fn runs_one_turn(&self) -> bool {
        true
    }

    fn step(&mut self, input: EngineInput<'_>) -> Vec<EngineOutput> {
        match input {
            EngineInput::Begin { prompt, .. } => {
                self.is_running = true;
                vec![EngineOutput::SendLast(prompt.text.clone())]
            }
            EngineInput::Line(line) => self.take(line),
            // The driver ends an interrupted process: codex has no word for it.
            EngineInput::Prompt(_)
            | EngineInput::Decide { .. }
            | EngineInput::Refuse { .. }
            | EngineInput::Interrupt => Vec::new(),
        }
    }
}

impl CodexExec {
    fn take(&mut self, line: &Value) -> Vec<EngineOutput> {
        let event = |kind| vec![EngineOutput::Event(kind)];
        match line["type"].as_str().unwrap_or_default() {
            "thread.started" => vec![EngineOutput::Ready { id: text_at(line, "thread_id") }],
            "turn.started" => Vec::new(),
            "item.started" => item(&line["item"], items::Moment::Started),
            // Only the plan is told again before it is completed.
            "item.updated" if text_at(&line["item"], "type") != "todo_list" => Vec::new(),
            "item.updated" | "item.completed" => item(&line["item"], items::Moment::Completed),
            "error" => {
                let text = text_at(line, "message");
                let id = text.starts_with("Reconnecting").then(|| "reconnecting".to_owned());
                event(AgentEventKind::Notice { text, id })
            }
            "turn.completed" => {
                let mut outputs = self.count(&line["usage"]);
                outputs.extend(self.ended(EngineEnd {
                    stop_reason: Some("completed".to_owned()),
                    ..EngineEnd::default()
                }));
                outputs
            }
            "turn.failed" => {
                let message = format!("codex: {}", text_at(&line["error"], "message"));
                self.ended(EngineEnd::failed(message, Some("failed".to_owned())))
            }
            other => items::unknown_notification(other, line),
        }
    }

    fn ended(&mut self, end: EngineEnd) -> Vec<EngineOutput> {
        match std::mem::take(&mut self.is_running) {
            true => vec![EngineOutput::Done(end)],
            false => Vec::new(),
        }
    }

    /// What this turn has used, if it is known what the turns before it had used.
    fn count(&mut self, usage: &Value) -> Vec<EngineOutput> {
        let figure = |key: &str| usage[key].as_u64().unwrap_or_default();
        let used = TokenUsage {
            input_tokens: figure("input_tokens"),
            output_tokens: figure("output_tokens"),
            cached_tokens: figure("cached_input_tokens"),
            reasoning_tokens: figure("reasoning_output_tokens"),
            cost_usd: None,
        };
        self.used = Some(used);
        let Some(before) = self.used_before.take() else { return Vec::new() };
        let of_turn = TokenUsage {
            input_tokens: used.input_tokens.saturating_sub(before.input_tokens),
            output_tokens: used.output_tokens.saturating_sub(before.output_tokens),
            cached_tokens: used.cached_tokens.saturating_sub(before.cached_tokens),
            reasoning_tokens: used.reasoning_tokens.saturating_sub(before.reasoning_tokens),
            cost_usd: None,
        };
        vec![EngineOutput::Event(AgentEventKind::Usage(of_turn))]
    }
}

/// The session's MCP server, as settings.
fn server_settings(server: &McpServerCommand) -> [String; 3] {
    // A text of JSON is a text of TOML.
    let (program, arguments) = (json!(server.program), json!(server.arguments));
    let name = McpServerCommand::NAME;
    [
        format!("mcp_servers.{name}.command={program}"),
        format!("mcp_servers.{name}.args={arguments}"),
        format!("mcp_servers.{name}.tool_timeout_sec={TOOL_TIMEOUT_S}"),
    ]
}

/// The events of an item. The items are those of `app-server`, with other names.
fn item(item: &Value, moment: items::Moment) -> Vec<EngineOutput> {
    let kind = match item["type"].as_str().unwrap_or_default() {
        "todo_list" => {
            return vec![EngineOutput::Event(AgentEventKind::Plan { steps: steps(item) })];
        }
        "error" => {
            let text = text_at(item, "message");
            return vec![EngineOutput::Event(AgentEventKind::Notice { text, id: None })];
        }
        "agent_message" => "agentMessage",
        "command_execution" => "commandExecution",
        "file_change" => "fileChange",
        "mcp_tool_call" => "mcpToolCall",
        "web_search" => "webSearch",
        other => other,
    };
    let mut renamed = item.clone();
    renamed["type"] = json!(kind);
    renamed["aggregatedOutput"] = item["aggregated_output"].clone();
    renamed["summary"] = json!([item["text"]]);
    items::translated(&renamed, moment)
}

fn steps(item: &Value) -> Vec<PlanStep> {
    let steps = item["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let state = |step: &Value| match step["completed"].as_bool() {
        Some(true) => PlanState::Completed,
        _ => PlanState::Pending,
    };
    steps.iter().map(|step| PlanStep { text: text_at(step, "text"), state: state(step) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::adapter_tests::check;

    fn settings(permissions: &str) -> AgentSettings {
        serde_json::from_value(json!({
            "engine": "codex", "command": ["codex"], "permissions": permissions, "model": "m",
            "arguments": ["-c", "a=1"],
        }))
        .unwrap()
    }

    #[test]
    fn a_turn_is_told_with_the_usage_of_the_turn() {
        let mut codex = CodexExec::default();
        for (resume, total, used) in [(None, 1007, 1007), (Some("t1"), 2019, 1012)] {
            codex.command(&settings("allow"), resume);
            codex.is_running = true;
            let ends = format!(
                r#"{{"type":"turn.completed","usage":{{"input_tokens":{total},"output_tokens":20}}}}"#
            );
            let output = if resume.is_none() { 20 } else { 0 };
            let ended = format!("usage {used}/{output}; done completed");
            check(
                &mut codex,
                &[
                    (r#"{"type":"thread.started","thread_id":"t1"}"#, "ready t1"),
                    (
                        r#"{"type":"item.completed","item":{"id":"item_0","type":"error","message":"old"}}"#,
                        "notice None old",
                    ),
                    (r#"{"type":"turn.started"}"#, ""),
                    (
                        r#"{"type":"item.started","item":{"id":"item_2","type":"command_execution","command":"ls","aggregated_output":"","exit_code":null,"status":"in_progress"}}"#,
                        r#"item_2 Command "ls" Started None None"#,
                    ),
                    (
                        r#"{"type":"item.completed","item":{"id":"item_2","type":"command_execution","command":"ls","aggregated_output":"hi\n","exit_code":3,"status":"failed"}}"#,
                        r#"item_2 Command "ls" Completed Some(false) Some("hi\n")"#,
                    ),
                    (
                        r#"{"type":"item.completed","item":{"id":"item_3","type":"reasoning","text":"so"}}"#,
                        "reasoning=so",
                    ),
                    (
                        r#"{"type":"item.updated","item":{"id":"item_4","type":"todo_list","items":[{"text":"a","completed":true}]}}"#,
                        "plan of 1",
                    ),
                    (
                        r#"{"type":"item.completed","item":{"id":"item_5","type":"brand_new"}}"#,
                        r#"item_5 Unknown "brand_new" Completed None None"#,
                    ),
                    (
                        r#"{"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"done"}}"#,
                        "message=done",
                    ),
                    (
                        r#"{"type":"error","message":"Reconnecting... 1/1 (x)"}"#,
                        r#"notice Some("reconnecting") Reconnecting... 1/1 (x)"#,
                    ),
                    (&ends, &ended),
                    (r#"{"type":"turn.failed","error":{"message":"late"}}"#, ""),
                ],
            );
        }
        // The usage of a conversation that another worker began is not known.
        let mut other = CodexExec::default();
        other.command(&settings("allow"), Some("t1"));
        other.is_running = true;
        let ends = r#"{"type":"turn.completed","usage":{"input_tokens":5}}"#;
        check(&mut other, &[(ends, "done completed")]);
    }

    #[test]
    fn the_command_has_the_flags_where_codex_takes_them() {
        let mut codex = CodexExec::default();
        let line = codex.command(&settings("allow"), Some("t1")).arguments.join(" ");
        assert!(line.starts_with("-c a=1 exec resume t1 --json --skip-git-repo-check"), "{line}");
        assert!(line.ends_with("-m m -"), "{line}");
        assert!(codex.command(&settings("ask"), None).refusal.is_some());
    }
}

//! What the stub's model says: a list of tool calls, each after the result of the one before, and a final
//! message. The next step depends only on the request, so a repeated request gets the same reply.

use serde_json::{Value, json};

use super::AgentTool;

/// The name that `windlass install` gives to the MCP server.
const SERVER: &str = "windlass";

/// The prefix of the ids of a script's calls. Other calls of the client have other ids.
const STEP_ID_PREFIX: &str = "call_step_";

/// The tool of Claude Code that loads the definition of a tool of which the model has only the name.
const SEARCH_TOOL: &str = "ToolSearch";

/// The prefix of the ids of calls of [`SEARCH_TOOL`].
const SEARCH_ID_PREFIX: &str = "call_search_";

#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Text of the prompt. A request without it is not part of this conversation.
    pub prompt: String,
    pub calls: Vec<ScriptedCall>,
    pub final_message: String,
}

/// One call of a Windlass tool.
#[derive(Debug, Clone)]
pub struct ScriptedCall {
    pub tool: &'static str,
    pub arguments: Value,
}

/// What the model says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelReply {
    Call { id: String, tool: AgentTool, arguments: Value },
    Say(String),
}

impl ModelReply {
    pub fn is_search(&self) -> bool {
        matches!(self, Self::Call { id, .. } if id.starts_with(SEARCH_ID_PREFIX))
    }
}

/// A tool result as the model receives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StubToolResult {
    pub text: String,
    /// Images, decoded from base64.
    pub images: Vec<Vec<u8>>,
}

impl Script {
    /// Whether the request is part of this conversation. A client also sends requests for titles and the
    /// like: they contain the prompt but no tools.
    pub fn is_in(&self, request: &Value) -> bool {
        let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        has_tools && mentions(request, &self.prompt)
    }

    /// The reply to a request with these tool results and these offered tools.
    pub fn reply(
        &self,
        results: &[(String, StubToolResult)],
        offers: &[AgentTool],
    ) -> Result<ModelReply, String> {
        let done = results.iter().filter(|(id, _)| id.starts_with(STEP_ID_PREFIX)).count();
        let Some(call) = self.calls.get(done) else {
            return Ok(ModelReply::Say(self.final_message.clone()));
        };
        let whole = format!("mcp__{SERVER}__{}", call.tool);
        let offered = |name: &str| offers.iter().find(|offer| offer.whole_name() == name).cloned();
        if let Some(tool) = offered(&whole) {
            let (id, arguments) = (format!("{STEP_ID_PREFIX}{done}"), call.arguments.clone());
            return Ok(ModelReply::Call { id, tool, arguments });
        }
        let search = format!("{SEARCH_ID_PREFIX}{}", call.tool);
        match offered(SEARCH_TOOL) {
            Some(tool) if !results.iter().any(|(id, _)| *id == search) => {
                let arguments = json!({ "query": format!("select:{whole}"), "max_results": 1 });
                Ok(ModelReply::Call { id: search, tool, arguments })
            }
            _ => {
                let names: Vec<String> = offers.iter().map(AgentTool::whole_name).collect();
                Err(format!("the client does not offer {whole}, only: {}", names.join(", ")))
            }
        }
    }
}

/// The results of the script's calls, without those of searches.
pub fn results_of_steps(results: Vec<(String, StubToolResult)>) -> Vec<StubToolResult> {
    let steps = results.into_iter().filter(|(id, _)| id.starts_with(STEP_ID_PREFIX));
    steps.map(|(_, seen)| seen).collect()
}

fn mentions(value: &Value, words: &str) -> bool {
    match value {
        Value::String(text) => text.contains(words),
        Value::Array(values) => values.iter().any(|value| mentions(value, words)),
        Value::Object(fields) => fields.values().any(|value| mentions(value, words)),
        _ => false,
    }
}

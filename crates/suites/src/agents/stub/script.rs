//! What the model of a test says: a list of tool calls, one after the other's result, and a last
//! word. Which comes next is read from the request alone, so that a request sent twice is answered
//! alike.

use serde_json::{Value, json};

use super::AgentTool;

/// The MCP server whose tools are called, as `windlass install` names it.
const SERVER: &str = "windlass";

/// What the ids of a script's calls start with. A client's own calls have others.
const STEP_ID_PREFIX: &str = "call_step_";

/// The tool by which Claude Code's model loads the tools that it was only told the names of.
const SEARCH_TOOL: &str = "ToolSearch";

/// What the ids of calls for [`SEARCH_TOOL`] start with.
const SEARCH_ID_PREFIX: &str = "call_search_";

#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Words of the prompt. Requests without them are not of this conversation.
    pub prompt: String,
    pub calls: Vec<ScriptedCall>,
    pub last_word: String,
}

/// One call of a tool of ours.
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

/// A tool's result as the model would see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolResult {
    pub text: String,
    /// Pictures, decoded.
    pub images: Vec<Vec<u8>>,
}

impl Script {
    /// Whether the request is of this conversation. A client also asks for titles and the like:
    /// with the prompt's words, but without tools.
    pub fn is_in(&self, request: &Value) -> bool {
        let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        has_tools && mentions(request, &self.prompt)
    }

    /// The answer to a request that tells these results and offers these tools.
    pub fn reply(
        &self,
        results: &[(String, ToolResult)],
        offers: &[AgentTool],
    ) -> Result<ModelReply, String> {
        let done = results.iter().filter(|(id, _)| id.starts_with(STEP_ID_PREFIX)).count();
        let Some(call) = self.calls.get(done) else {
            return Ok(ModelReply::Say(self.last_word.clone()));
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

/// The results of the script's own calls.
pub fn results_of_steps(results: Vec<(String, ToolResult)>) -> Vec<ToolResult> {
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

//! What the model of a test says: a list of tool calls, one after the other's result, and a last
//! word. Which comes next is read from the request alone, so that a request sent twice is answered
//! alike.

use serde_json::{Value, json};

use super::Offer;

/// The MCP server whose tools are called, as `windlass install` names it.
const SERVER: &str = "windlass";

/// What the ids of a script's calls start with. A client's own calls have others.
const STEP: &str = "call_step_";

/// The tool by which Claude Code's model loads the tools that it was only told the names of.
const SEARCH: &str = "ToolSearch";

/// What the ids of calls for [`SEARCH`] start with.
const SEARCHED: &str = "call_search_";

#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Words of the prompt. Requests without them are not of this conversation.
    pub prompt: String,
    pub calls: Vec<Call>,
    pub last_word: String,
}

/// One call of a tool of ours.
#[derive(Debug, Clone)]
pub struct Call {
    pub tool: &'static str,
    pub arguments: Value,
}

/// What the model says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Call { id: String, tool: Offer, arguments: Value },
    Say(String),
}

impl Reply {
    pub fn is_search(&self) -> bool {
        matches!(self, Self::Call { id, .. } if id.starts_with(SEARCHED))
    }
}

/// A tool's result as the model would see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
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
    pub fn reply(&self, results: &[(String, Seen)], offers: &[Offer]) -> Result<Reply, String> {
        let done = results.iter().filter(|(id, _)| id.starts_with(STEP)).count();
        let Some(call) = self.calls.get(done) else {
            return Ok(Reply::Say(self.last_word.clone()));
        };
        let whole = format!("mcp__{SERVER}__{}", call.tool);
        let offered = |name: &str| offers.iter().find(|offer| offer.whole_name() == name).cloned();
        if let Some(tool) = offered(&whole) {
            let (id, arguments) = (format!("{STEP}{done}"), call.arguments.clone());
            return Ok(Reply::Call { id, tool, arguments });
        }
        let search = format!("{SEARCHED}{}", call.tool);
        match offered(SEARCH) {
            Some(tool) if !results.iter().any(|(id, _)| *id == search) => {
                let arguments = json!({ "query": format!("select:{whole}"), "max_results": 1 });
                Ok(Reply::Call { id: search, tool, arguments })
            }
            _ => {
                let names: Vec<String> = offers.iter().map(Offer::whole_name).collect();
                Err(format!("the client does not offer {whole}, only: {}", names.join(", ")))
            }
        }
    }
}

/// The results of the script's own calls.
pub fn of_steps(results: Vec<(String, Seen)>) -> Vec<Seen> {
    let steps = results.into_iter().filter(|(id, _)| id.starts_with(STEP));
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

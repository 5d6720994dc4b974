//! OpenAI's Responses API, as far as Codex uses it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::script::{ModelReply, StubToolResult};
use super::{AgentTool, Dialect, ReplyBody, items};

#[derive(Debug)]
pub struct Responses;

impl Dialect for Responses {
    fn offers(&self, request: &Value) -> Vec<AgentTool> {
        let mut offers = Vec::new();
        for tool in items(&request["tools"]) {
            let Some(name) = tool["name"].as_str() else { continue };
            if tool["type"] == "namespace" {
                let inner = items(&tool["tools"]).iter().filter_map(|tool| tool["name"].as_str());
                offers.extend(inner.map(|inner| AgentTool {
                    name: inner.to_owned(),
                    namespace: Some(name.to_owned()),
                }));
            } else {
                offers.push(AgentTool { name: name.to_owned(), namespace: None });
            }
        }
        offers
    }

    fn results(&self, request: &Value) -> Vec<(String, StubToolResult)> {
        let outputs = items(&request["input"]);
        let outputs = outputs.iter().filter(|item| item["type"] == "function_call_output");
        outputs
            .filter_map(|item| {
                Some((item["call_id"].as_str()?.to_owned(), tool_result(&item["output"])))
            })
            .collect()
    }

    fn answer(&self, request: &Value, reply: &ModelReply, number: usize) -> ReplyBody {
        let item = match reply {
            ModelReply::Call { id, tool, arguments } => {
                let mut item = json!({
                    "type": "function_call", "id": format!("fc_{number}"), "call_id": id,
                    "name": tool.name, "arguments": arguments.to_string(), "status": "completed",
                });
                if let Some(namespace) = &tool.namespace {
                    item["namespace"] = json!(namespace);
                }
                item
            }
            ModelReply::Say(text) => json!({
                "type": "message", "id": format!("msg_{number}"), "role": "assistant",
                "status": "completed",
                "content": [{ "type": "output_text", "text": text, "annotations": [] }],
            }),
        };
        let id = format!("resp_{number}");
        let whole = |status: &str, output: &[&Value]| {
            json!({
                "id": id, "object": "response", "status": status, "model": request["model"],
                "output": output,
                "usage": {
                    "input_tokens": 1, "input_tokens_details": { "cached_tokens": 0 },
                    "output_tokens": 1, "output_tokens_details": { "reasoning_tokens": 0 },
                    "total_tokens": 2,
                },
            })
        };
        if request["stream"] != true {
            return ReplyBody::Json(whole("completed", &[&item]));
        }
        let mut events = vec![
            json!({ "type": "response.created", "response": whole("in_progress", &[]) }),
            json!({ "type": "response.output_item.added", "output_index": 0, "item": item }),
            json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
            json!({ "type": "response.completed", "response": whole("completed", &[&item]) }),
        ];
        for (index, event) in events.iter_mut().enumerate() {
            event["sequence_number"] = json!(index);
        }
        ReplyBody::Stream(events)
    }
}

/// An output is one text, or a list of texts and images.
fn tool_result(output: &Value) -> StubToolResult {
    let mut result = StubToolResult::default();
    if let Some(text) = output.as_str() {
        text.clone_into(&mut result.text);
    }
    for part in items(output) {
        if let Some(text) = part["text"].as_str() {
            result.text.push_str(text);
            result.text.push('\n');
        }
        let picture = part["image_url"].as_str().and_then(|url| url.split_once(";base64,"));
        if let Some(bytes) = picture.and_then(|(_, data)| BASE64_STANDARD.decode(data).ok()) {
            result.images.push(bytes);
        }
    }
    result
}

//! Anthropic's Messages API, as far as Claude Code uses it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::script::{ModelReply, StubToolResult};
use super::{AgentTool, Dialect, ReplyBody, items};

#[derive(Debug)]
pub struct Messages;

impl Dialect for Messages {
    fn offers(&self, request: &Value) -> Vec<AgentTool> {
        let names = items(&request["tools"]).iter().filter_map(|tool| tool["name"].as_str());
        names.map(|name| AgentTool { name: name.to_owned(), namespace: None }).collect()
    }

    fn results(&self, request: &Value) -> Vec<(String, StubToolResult)> {
        let blocks =
            items(&request["messages"]).iter().flat_map(|message| items(&message["content"]));
        let results = blocks.filter(|block| block["type"] == "tool_result");
        results
            .filter_map(|block| {
                Some((block["tool_use_id"].as_str()?.to_owned(), tool_result(&block["content"])))
            })
            .collect()
    }

    fn answer(&self, request: &Value, reply: &ModelReply, number: usize) -> ReplyBody {
        let (block, stop) = match reply {
            ModelReply::Call { id, tool, arguments } => (
                json!({ "type": "tool_use", "id": id, "name": tool.name, "input": arguments }),
                "tool_use",
            ),
            ModelReply::Say(text) => (json!({ "type": "text", "text": text }), "end_turn"),
        };
        // A client merges messages with the same id, so each reply needs a new one.
        let mut message = json!({
            "id": format!("msg_{number}"), "type": "message", "role": "assistant",
            "model": request["model"], "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": { "input_tokens": 1, "output_tokens": 1 },
        });
        if request["stream"] != true {
            message["content"] = json!([block]);
            message["stop_reason"] = json!(stop);
            return ReplyBody::Json(message);
        }
        let (start, delta) = in_pieces(&block);
        let end = json!({ "stop_reason": stop, "stop_sequence": null });
        ReplyBody::Stream(vec![
            json!({ "type": "message_start", "message": message }),
            json!({ "type": "content_block_start", "index": 0, "content_block": start }),
            json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "message_delta", "delta": end, "usage": { "output_tokens": 1 } }),
            json!({ "type": "message_stop" }),
        ])
    }
}

/// The empty start of a block, and the delta with its content, as a stream sends them.
fn in_pieces(block: &Value) -> (Value, Value) {
    let mut start = block.clone();
    if block["type"] == "tool_use" {
        start["input"] = json!({});
        let input = block["input"].to_string();
        (start, json!({ "type": "input_json_delta", "partial_json": input }))
    } else {
        start["text"] = json!("");
        (start, json!({ "type": "text_delta", "text": block["text"] }))
    }
}

/// A result is one text, or a list of texts and images.
fn tool_result(content: &Value) -> StubToolResult {
    let mut result = StubToolResult::default();
    if let Some(text) = content.as_str() {
        text.clone_into(&mut result.text);
    }
    for part in items(content) {
        if let Some(text) = part["text"].as_str() {
            result.text.push_str(text);
            result.text.push('\n');
        }
        let picture = part["source"]["data"].as_str();
        if let Some(bytes) = picture.and_then(|data| BASE64_STANDARD.decode(data).ok()) {
            result.images.push(bytes);
        }
    }
    result
}

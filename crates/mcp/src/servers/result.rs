//! Converts a server's answer for the code that called: plain JSON, or the error that the code
//! raises. Pure.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};
use windlass_protocol::host::ToolError;

/// The value of a call, or why it failed.
pub(crate) fn of(result: CallToolResult) -> Result<Value, ToolError> {
    if result.is_error == Some(true) {
        return Err(ToolError { message: message(&result), code: None, kind: None });
    }
    if let Some(structured) = result.structured_content {
        return Ok(structured);
    }
    let mut blocks = result.content;
    Ok(match blocks.as_mut_slice() {
        [] => Value::Null,
        [ContentBlock::Text(only)] => Value::String(std::mem::take(&mut only.text)),
        _ => blocks.into_iter().map(block).collect(),
    })
}

fn block(block: ContentBlock) -> Value {
    match block {
        ContentBlock::Text(text) => json!({"type": "text", "text": text.text}),
        ContentBlock::Image(image) => {
            json!({"type": "image", "mime": image.mime_type, "data": image.data})
        }
        ContentBlock::Audio(audio) => {
            json!({"type": "audio", "mime": audio.mime_type, "data": audio.data})
        }
        ContentBlock::Resource(embedded) => resource(embedded.resource),
        ContentBlock::ResourceLink(link) => {
            json!({"type": "link", "uri": link.uri, "name": link.name, "mime": link.mime_type})
        }
        // A kind of content that this release does not know.
        _ => json!({"type": "unknown"}),
    }
}

fn resource(contents: ResourceContents) -> Value {
    match contents {
        ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
            json!({"type": "resource", "uri": uri, "mime": mime_type, "text": text})
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            json!({"type": "resource", "uri": uri, "mime": mime_type, "data": blob})
        }
        _ => json!({"type": "unknown"}),
    }
}

/// The message of a failed tool.
fn message(result: &CallToolResult) -> String {
    let texts = result.content.iter().filter_map(|block| match block {
        ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    match &result.structured_content {
        Some(structured) if text.is_empty() => structured.to_string(),
        _ if text.is_empty() => "the tool failed without a message".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(result: Value, expected: Result<Value, &str>) {
        let result: CallToolResult = serde_json::from_value(result).unwrap();
        let made = of(result);
        assert_eq!(
            made.as_ref().map_err(|error| error.message.as_str()),
            expected.as_ref().map_err(|e| *e)
        );
    }

    #[test]
    fn an_answer_is_the_simplest_json_that_says_the_same() {
        let text = json!({"type": "text", "text": "1"});
        let image = json!({"type": "image", "mimeType": "image/png", "data": "AA=="});
        check(json!({"content": [text]}), Ok(json!("1")));
        check(json!({"content": []}), Ok(json!(null)));
        check(json!({"content": [text], "structuredContent": {"n": 1}}), Ok(json!({"n": 1})));
        check(
            json!({"content": [text, image]}),
            Ok(json!([text, {"type": "image", "mime": "image/png", "data": "AA=="}])),
        );
        let blob = json!({"type": "resource", "resource": {"uri": "x:y", "blob": "AA=="}});
        check(
            json!({"content": [blob]}),
            Ok(json!([{"type": "resource", "uri": "x:y", "mime": null, "data": "AA=="}])),
        );
    }

    #[test]
    fn a_tools_own_failure_has_its_own_words() {
        let text = |text: &str| json!({"type": "text", "text": text});
        check(json!({"content": [text("no"), text("way")], "isError": true}), Err("no\nway"));
        check(json!({"content": [], "isError": true}), Err("the tool failed without a message"));
        check(
            json!({"content": [], "structuredContent": {"why": 1}, "isError": true}),
            Err("{\"why\":1}"),
        );
    }
}

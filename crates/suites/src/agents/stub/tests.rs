//! Tests of the stub: names of tools, order of steps, wire formats.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::anthropic::Messages;
use super::openai::Responses;
use super::*;

/// The signature of a PNG file in base64: only the bytes matter here.
const PICTURE: &str = "iVBORw0KGgo=";

fn script() -> Script {
    Script {
        prompt: "count to two".to_owned(),
        calls: vec![
            ScriptedCall { tool: "run", arguments: json!({ "code": "1" }) },
            ScriptedCall { tool: "run", arguments: json!({ "code": "2" }) },
        ],
        final_message: "done".to_owned(),
    }
}

fn offer(namespace: Option<&str>, name: &str) -> AgentTool {
    AgentTool { name: name.to_owned(), namespace: namespace.map(str::to_owned) }
}

fn result(id: &str) -> (String, StubToolResult) {
    (id.to_owned(), StubToolResult::default())
}

#[test]
fn a_tool_is_found_by_the_name_that_the_client_gave_it() {
    let grouped = json!({ "tools": [
        { "type": "function", "name": "run" },
        { "type": "web_search" },
        { "type": "namespace", "name": "mcp__windlass", "tools": [{ "name": "run" }] },
    ] });
    let grouped = Responses.offers(&grouped);
    assert_eq!(grouped, [offer(None, "run"), offer(Some("mcp__windlass"), "run")]);
    let flat = Messages.offers(&json!({ "tools": [{ "name": "mcp__windlass__run" }] }));
    for (offers, wanted) in [(&grouped, &grouped[1]), (&flat, &flat[0])] {
        let reply = script().reply(&[], offers).unwrap();
        assert!(matches!(&reply, ModelReply::Call { tool, .. } if tool == wanted), "{reply:?}");
    }
}

#[test]
fn a_tool_that_is_not_offered_is_a_fault_that_names_what_is() {
    let fault = script().reply(&[], &[offer(None, "run"), offer(Some("a"), "b")]).unwrap_err();
    assert_eq!(fault, "the client does not offer mcp__windlass__run, only: run, a__b");
}

#[test]
fn a_tool_known_by_name_only_is_searched_for_once() {
    let search = [offer(None, "ToolSearch")];
    let reply = script().reply(&[], &search).unwrap();
    let ModelReply::Call { id, arguments, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(arguments["query"], "select:mcp__windlass__run");
    assert!(script().reply(&[], &search).is_ok_and(|reply| reply.is_search()));
    assert!(script().reply(&[result(&id)], &search).is_err());
    // The result of the search is not a result of the script.
    let reply = script().reply(&[result(&id)], &[offer(None, "mcp__windlass__run")]).unwrap();
    assert!(matches!(reply, ModelReply::Call { arguments, .. } if arguments["code"] == "1"));
}

#[test]
fn each_result_brings_the_next_step_and_a_request_sent_twice_the_same() {
    let offers = [offer(None, "mcp__windlass__run")];
    let script = script();
    let mut results = Vec::new();
    for code in ["1", "2"] {
        let replies = [script.reply(&results, &offers), script.reply(&results, &offers)];
        assert_eq!(replies[0], replies[1]);
        let Ok(ModelReply::Call { id, arguments, .. }) = &replies[0] else { panic!("{replies:?}") };
        assert_eq!(arguments["code"], code);
        results.push(result(id));
    }
    assert_eq!(script.reply(&results, &offers), Ok(ModelReply::Say("done".to_owned())));
}

#[test]
fn a_request_without_tools_or_the_prompt_is_not_of_the_conversation() {
    let request = |tools: Value, text: &str| json!({ "tools": tools, "messages": [{ "role": "user", "content": [{ "text": text }] }] });
    assert!(script().is_in(&request(json!([{}]), "please count to two")));
    assert!(!script().is_in(&request(json!([]), "please count to two")));
    assert!(!script().is_in(&request(Value::Null, "please count to two")));
    assert!(!script().is_in(&request(json!([{}]), "a title for this")));
}

#[test]
fn both_apis_tell_texts_and_pictures_of_a_result() {
    let openai = json!({ "input": [
        { "type": "message", "role": "user" },
        { "type": "function_call_output", "call_id": "a", "output": "one" },
        { "type": "function_call_output", "call_id": "b", "output": [
            { "type": "input_text", "text": "two" },
            { "type": "input_image", "image_url": format!("data:image/png;base64,{PICTURE}") },
        ] },
    ] });
    let anthropic = json!({ "messages": [
        { "role": "user", "content": "words" },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "a", "content": "one" },
            { "type": "tool_result", "tool_use_id": "b", "content": [
                { "type": "text", "text": "two" },
                { "type": "image", "source": { "type": "base64", "data": PICTURE } },
            ] },
        ] },
    ] });
    let picture = b"\x89PNG\r\n\x1a\n".to_vec();
    let one = StubToolResult { text: "one".to_owned(), images: Vec::new() };
    let two = StubToolResult { text: "two\n".to_owned(), images: vec![picture] };
    let expected = [("a".to_owned(), one), ("b".to_owned(), two)];
    assert_eq!(Responses.results(&openai), expected);
    assert_eq!(Messages.results(&anthropic), expected);
}

fn streamed(dialect: &dyn Dialect, reply: &ModelReply) -> Vec<Value> {
    match dialect.answer(&json!({ "model": "m", "stream": true }), reply, 7) {
        ReplyBody::Stream(events) => events,
        ReplyBody::Json(value) => panic!("not a stream: {value}"),
    }
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()).collect()
}

#[test]
fn a_call_through_responses_is_one_item_with_its_namespace() {
    let tool = offer(Some("mcp__windlass"), "run");
    let arguments = json!({ "code": "1" });
    let events = streamed(&Responses, &ModelReply::Call { id: "a".to_owned(), tool, arguments });
    assert_eq!(
        types(&events),
        [
            "response.created",
            "response.output_item.added",
            "response.output_item.done",
            "response.completed"
        ]
    );
    let item = &events[2]["item"];
    assert_eq!((&item["namespace"], &item["name"]), (&json!("mcp__windlass"), &json!("run")));
    assert_eq!((&item["call_id"], &item["arguments"]), (&json!("a"), &json!("{\"code\":\"1\"}")));
}

#[test]
fn a_call_through_messages_starts_empty_and_brings_its_input_as_a_difference() {
    let tool = offer(None, "mcp__windlass__run");
    let arguments = json!({ "code": "1" });
    let events = streamed(&Messages, &ModelReply::Call { id: "a".to_owned(), tool, arguments });
    assert_eq!(
        types(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(events[1]["content_block"]["input"], json!({}));
    assert_eq!(events[2]["delta"]["partial_json"], "{\"code\":\"1\"}");
    assert_eq!(events[4]["delta"]["stop_reason"], "tool_use");
}

#[test]
fn a_word_that_is_not_streamed_is_one_message() {
    let reply = ModelReply::Say("done".to_owned());
    let ReplyBody::Json(whole) = Messages.answer(&json!({ "model": "m" }), &reply, 1) else {
        panic!("a stream although the request has no `stream`");
    };
    assert_eq!(whole["content"], json!([{ "type": "text", "text": "done" }]));
    assert_eq!(whole["stop_reason"], "end_turn");
}

/// Sends a request to the stub and returns the status line and the body.
async fn ask(stub: &Stub, path: &str, body: &Value) -> (String, String) {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: stub\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(stub.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_stub_plays_its_script_beside_other_requests_and_keeps_what_it_heard() {
    let stub = Stub::start().await.unwrap();
    assert!(stub.address.ip().is_loopback());
    stub.play(script());
    let tools = json!([{ "name": "mcp__windlass__run" }]);
    let told = json!([{ "role": "user", "content": [
        { "type": "text", "text": "count to two" },
        { "type": "tool_result", "tool_use_id": "call_step_0", "content": "1" },
    ] }]);
    let main = json!({ "model": "m", "stream": true, "tools": tools, "messages": told });
    let (status, body) = ask(&stub, "/v1/messages?beta=true", &main).await;
    assert!(status.ends_with("200 OK") && body.contains("call_step_1"), "{status} {body}");
    let (_, body) = ask(&stub, "/v1/messages", &json!({ "model": "m" })).await;
    assert!(body.contains(FILLER_REPLY) && !body.contains("call_step"), "{body}");
    let (status, _) = ask(&stub, "/v1/elsewhere", &json!({})).await;
    assert!(status.contains("404"), "{status}");
    let transcript = stub.transcript();
    assert_eq!(transcript.paths, ["/v1/messages", "/v1/messages", "/v1/elsewhere"]);
    assert_eq!(transcript.results, [StubToolResult { text: "1".to_owned(), images: Vec::new() }]);
    assert_eq!(transcript.fault, None);
}

#[tokio::test]
async fn a_client_without_the_tool_is_refused_and_the_fault_is_kept() {
    let stub = Stub::start().await.unwrap();
    stub.play(script());
    let main = json!({ "tools": [{ "name": "other" }], "input": "count to two" });
    let (status, body) = ask(&stub, "/v1/responses", &main).await;
    assert!(status.contains("400") && body.contains("mcp__windlass__run"), "{status} {body}");
    assert!(stub.transcript().fault.is_some_and(|fault| fault.ends_with("only: other")));
}

#[tokio::test]
async fn a_client_that_goes_round_in_circles_is_stopped() {
    let stub = Stub::start().await.unwrap();
    stub.play(script());
    for _ in 0..REQUESTS_MAX {
        ask(&stub, "/v1/models", &json!({})).await;
    }
    assert_eq!(lock(&stub.shared).transcript.fault, None);
    let (status, _) = ask(&stub, "/v1/models", &json!({})).await;
    assert!(status.contains("400"), "{status}");
    assert!(stub.transcript().fault.is_some());
}

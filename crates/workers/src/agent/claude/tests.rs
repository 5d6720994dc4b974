//! Tables of the adapter, with lines of the real engine.

use serde_json::json;

use super::super::adapter_tests::{begin, check, shown};
use super::*;

fn settings(resume: Option<&str>) -> (Claude, EngineCommand) {
    let settings: AgentSettings = serde_json::from_value(
        json!({"engine": "claude", "command": ["claude"], "permissions": "ask"}),
    )
    .unwrap();
    let mut claude = Claude::default();
    let command = claude.command(&settings, resume);
    (claude, command)
}

fn running(resume: Option<&str>) -> Claude {
    let (mut claude, _) = settings(resume);
    begin(&mut claude, resume);
    let prompt = Prompt { text: "hi".into(), files: Vec::new() };
    assert_eq!(shown(&claude.step(EngineInput::Prompt(&prompt))), "send user");
    claude
}

#[test]
fn a_conversation_is_begun_or_resumed_by_a_flag() {
    let (mut claude, command) = settings(Some("5f2c"));
    assert!(command.arguments.ends_with(&["--resume".to_owned(), "5f2c".to_owned()]));
    assert!(!command.arguments.contains(&"bypassPermissions".to_owned()));
    assert_eq!(shown(&begin(&mut claude, Some("5f2c"))), "ready 5f2c");
    let (mut claude, command) = settings(None);
    let id = command.arguments.last().unwrap().clone();
    assert_eq!(command.arguments[command.arguments.len() - 2], "--session-id");
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'));
    begin(&mut claude, None);
    // Nothing of the conversation is on the disk yet, so it cannot be resumed.
    let again: AgentSettings =
        serde_json::from_value(json!({"engine": "claude", "command": ["claude"]})).unwrap();
    let command = claude.command(&again, Some(&id));
    assert!(command.arguments.ends_with(&["--session-id".to_owned(), id]));
    assert!(command.arguments.contains(&"bypassPermissions".to_owned()));
}

#[test]
fn a_turn_with_a_message_a_tool_and_usage() {
    check(
        &mut running(None),
        &[
            (r#"{"type":"system","subtype":"init","session_id":"S"}"#, ""),
            (r#"{"type":"system","subtype":"status","status":"requesting"}"#, ""),
            (
                r#"{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"he"}},"parent_tool_use_id":null}"#,
                "message+he",
            ),
            (
                r#"{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"hm"}}}"#,
                "reasoning+hm",
            ),
            (
                r#"{"type":"assistant","message":{"content":[{"type":"text","text":"hello"}]},"parent_tool_use_id":null}"#,
                "message=hello",
            ),
            (
                r#"{"type":"assistant","message":{"content":[{"type":"text","text":"inner"}]},"parent_tool_use_id":"t0"}"#,
                "",
            ),
            (
                r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}"#,
                r#"t1 Command "ls" Started None None"#,
            ),
            (
                r#"{"type":"user","message":{"content":[{"type":"tool_result","content":"Exit code 3","is_error":true,"tool_use_id":"t1"}]}}"#,
                r#"t1 Unknown "" Completed Some(false) Some("Exit code 3")"#,
            ),
            (
                r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t2","name":"TodoWrite","input":{"todos":[{"content":"A","status":"pending"}]}}]}}"#,
                r#"plan of 1; t2 Tool "TodoWrite" Started None None"#,
            ),
            (
                r#"{"type":"brand_new"}"#,
                r#"unknown-brand_new Unknown "brand_new" Completed None None"#,
            ),
            (
                r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":2,"output_tokens":7},"total_cost_usd":9.0,"model_usage_since_last_result":{"m":{"costUSD":0.5}},"is_error":false,"result":"hello","terminal_reason":"completed","type":"result","subtype":"success"}"#,
                "usage 7/7; done completed",
            ),
            // A turn that claude began by itself.
            (r#"{"type":"result","is_error":false,"origin":{"kind":"task-notification"}}"#, ""),
        ],
    );
}

#[test]
fn a_result_is_judged_by_its_error_flag_and_its_reason() {
    for (resume, line, expected) in [
        (
            None,
            r#"{"type":"result","subtype":"success","is_error":true,"terminal_reason":"api_error","result":"API Error: 500"}"#,
            "usage 0/0; done api_error claude: API Error: 500",
        ),
        (
            None,
            r#"{"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_tools","errors":["[ede_diagnostic]"]}"#,
            "usage 0/0; done aborted_tools interrupted",
        ),
        (
            Some("gone"),
            r#"{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,"errors":["No conversation found with session ID: gone"]}"#,
            "usage 0/0; done error_during_execution claude: No conversation found with session ID: gone",
        ),
        (
            None,
            r#"{"type":"system","subtype":"api_retry","attempt":1,"max_retries":2,"error":"server_error"}"#,
            r#"notice Some("reconnecting") Reconnecting... 1/2 (server_error)"#,
        ),
    ] {
        check(&mut running(resume), &[(line, expected)]);
    }
}

#[test]
fn permissions_are_asked_answered_and_withdrawn() {
    let mut claude = running(None);
    let asked = r#"{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"touch x"},"tool_use_id":"t1","permission_suggestions":[{"type":"addRules","rules":[{"toolName":"Bash"}],"behavior":"allow","destination":"localSettings"},{"type":"setMode","mode":"acceptEdits","destination":"session"}]}}"#;
    check(&mut claude, &[(asked, r#"ask p1 "touch x""#)]);
    let option = PermissionOption {
        id: ALLOW_ALWAYS.into(),
        name: String::new(),
        kind: OptionKind::AllowAlways,
    };
    let sent = claude.step(EngineInput::Decide { permission: "p1", option: &option });
    let [EngineOutput::Send(line)] = &sent[..] else { panic!("{sent:?}") };
    let rules = &line["response"]["response"]["updatedPermissions"];
    assert_eq!(
        rules.as_array().unwrap().len(),
        1,
        "only rules, and none that is written to a file"
    );
    assert_eq!(rules[0]["destination"], "session");
    check(
        &mut claude,
        &[
            (asked, r#"ask p2 "touch x""#),
            (r#"{"type":"control_cancel_request","request_id":"r1"}"#, "withdraw p2"),
            (r#"{"type":"control_cancel_request","request_id":"r1"}"#, ""),
            (
                r#"{"type":"control_request","request_id":"r9","request":{"subtype":"elicitation"}}"#,
                "send control_response",
            ),
        ],
    );
    assert_eq!(shown(&claude.step(EngineInput::Interrupt)), "send control_request");
}

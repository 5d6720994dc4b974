//! Tables of the adapter, with lines of the real engine.

use serde_json::json;
use windlass_protocol::agent::{OptionKind, PermissionOption};

use super::super::adapter_tests::{begin, check, shown, sorted};
use super::*;

const READY: &[(&str, &str)] = &[
    (
        r#"{"id":1,"result":{"userAgent":"windlass/0.166.0"}}"#,
        "send initialized; send thread/start",
    ),
    (r#"{"method":"thread/started","params":{"thread":{"id":"T1"}}}"#, ""),
    (r#"{"id":2,"result":{"thread":{"id":"T1","turns":[]},"model":"gpt-5"}}"#, "ready T1"),
];

fn begun(resume: Option<&str>) -> Codex {
    let mut codex = Codex::default();
    assert_eq!(shown(&begin(&mut codex, resume)), "send initialize");
    codex
}

fn running() -> Codex {
    let mut codex = begun(None);
    check(&mut codex, READY);
    let prompt = Prompt { text: "hi".into(), files: Vec::new() };
    assert_eq!(shown(&codex.step(EngineInput::Prompt(&prompt))), "send turn/start");
    check(&mut codex, &[(r#"{"method":"turn/started","params":{"turn":{"id":"U1"}}}"#, "")]);
    codex
}

#[test]
fn a_turn_with_a_message_a_command_and_usage() {
    check(
        &mut running(),
        &[
            (r#"{"id":3,"result":{"turn":{"id":"U1","status":"inProgress"}}}"#, ""),
            (r#"{"method":"item/started","params":{"item":{"type":"userMessage","id":"x"}}}"#, ""),
            (
                r#"{"method":"item/started","params":{"item":{"type":"agentMessage","id":"M","text":""}}}"#,
                "",
            ),
            (
                r#"{"method":"item/agentMessage/delta","params":{"itemId":"M","delta":"hel"}}"#,
                "message+hel",
            ),
            (
                r#"{"method":"item/completed","params":{"item":{"type":"agentMessage","id":"M","text":"hello","phase":"final_answer"}}}"#,
                "message=hello (final_answer)",
            ),
            (
                r#"{"method":"item/started","params":{"item":{"type":"commandExecution","id":"c1","command":"ls","status":"inProgress","aggregatedOutput":null}}}"#,
                r#"c1 Command "ls" Started None None"#,
            ),
            (
                r#"{"method":"item/commandExecution/outputDelta","params":{"itemId":"c1","delta":"err\n"}}"#,
                r#"c1 Unknown "" Updated None Some("err\n")"#,
            ),
            (
                r#"{"method":"item/completed","params":{"item":{"type":"commandExecution","id":"c1","command":"ls","status":"failed","aggregatedOutput":"hi\nerr\n","exitCode":3}}}"#,
                r#"c1 Command "ls" Completed Some(false) Some("hi\nerr\n")"#,
            ),
            (
                r#"{"method":"item/started","params":{"item":{"type":"brandNew","id":"n1"}}}"#,
                r#"n1 Unknown "brandNew" Started None None"#,
            ),
            (
                r#"{"method":"brand/new","params":{"threadId":"T1"}}"#,
                r#"brand/new Unknown "brand/new" Completed None None"#,
            ),
            // The old usage of a resumed thread, and two requests of this turn.
            (
                r#"{"method":"thread/tokenUsage/updated","params":{"turnId":"U0","tokenUsage":{"last":{"inputTokens":9}}}}"#,
                "",
            ),
            (
                r#"{"method":"thread/tokenUsage/updated","params":{"turnId":"U1","tokenUsage":{"last":{"inputTokens":5,"outputTokens":1}}}}"#,
                "usage 5/1",
            ),
            (
                r#"{"method":"thread/tokenUsage/updated","params":{"turnId":"U1","tokenUsage":{"last":{"inputTokens":6,"outputTokens":1}}}}"#,
                "usage 11/2",
            ),
            (
                r#"{"method":"turn/plan/updated","params":{"plan":[{"step":"A","status":"inProgress"}]}}"#,
                "plan of 1",
            ),
            (
                r#"{"method":"turn/completed","params":{"turn":{"id":"U1","status":"completed","error":null}}}"#,
                "done completed",
            ),
            (
                r#"{"method":"turn/completed","params":{"turn":{"id":"U1","status":"completed"}}}"#,
                "",
            ),
        ],
    );
}

#[test]
fn reconnects_are_notices_and_the_last_error_ends_the_turn() {
    check(
        &mut running(),
        &[
            (
                r#"{"method":"error","params":{"error":{"message":"Reconnecting... 1/5","codexErrorInfo":"other"},"willRetry":true}}"#,
                r#"notice Some("reconnecting") Reconnecting... 1/5"#,
            ),
            (r#"{"method":"error","params":{"error":{"message":"gone"},"willRetry":false}}"#, ""),
            (
                r#"{"method":"turn/completed","params":{"turn":{"status":"failed","error":{"message":"unexpected status 401"}}}}"#,
                "done failed codex: unexpected status 401",
            ),
        ],
    );
}

#[test]
fn permissions_are_answered_by_codex_own_numbers() {
    let mut codex = running();
    check(
        &mut codex,
        &[
            (
                r#"{"method":"item/commandExecution/requestApproval","id":0,"params":{"itemId":"c1","command":"touch x","reason":"May I?"}}"#,
                r#"ask p1 "run touch x (May I?)""#,
            ),
            (
                r#"{"method":"item/started","params":{"item":{"type":"fileChange","id":"f1","changes":[{"path":"/w/a"}]}}}"#,
                r#"f1 FileChange "/w/a" Started None None"#,
            ),
            (
                r#"{"method":"item/fileChange/requestApproval","id":1,"params":{"itemId":"f1","reason":null}}"#,
                r#"ask p2 "change /w/a""#,
            ),
            (
                r#"{"method":"mcpServer/elicitation/request","id":2,"params":{"message":"Allow the tool?","_meta":{"codex_approval_kind":"mcp_tool_call"}}}"#,
                r#"ask p3 "Allow the tool?""#,
            ),
            (
                r#"{"method":"currentTime/read","id":3,"params":{}}"#,
                r#"send {"error":{"code":-32601,"message":"not supported by this client"},"id":3}"#,
            ),
        ],
    );
    let mut decide = |permission: &str, id: &str, kind| {
        let option = PermissionOption { id: id.into(), name: String::new(), kind };
        shown(&codex.step(EngineInput::Decide { permission, option: &option }))
    };
    let accepted = json!({"id": 1, "result": {"decision": "accept"}});
    assert_eq!(
        decide("p2", "accept", OptionKind::AllowOnce),
        format!("send {}", sorted(&accepted))
    );
    assert_eq!(decide("p2", "accept", OptionKind::AllowOnce), "", "answered once");
    let kept = json!({"id": 2, "result": {"action": "accept", "content": {}, "_meta": {"persist": "session"}}});
    assert_eq!(
        decide("p3", "acceptForSession", OptionKind::AllowAlways),
        format!("send {}", sorted(&kept))
    );
    // The open one ends with the turn.
    check(
        &mut codex,
        &[(
            r#"{"method":"turn/completed","params":{"turn":{"status":"interrupted"}}}"#,
            "withdraw p1; send thread/backgroundTerminals/clean; done interrupted interrupted",
        )],
    );
}

#[test]
fn an_interrupt_waits_for_the_turn_and_is_sent_once() {
    let mut codex = begun(None);
    check(&mut codex, READY);
    codex.step(EngineInput::Prompt(&Prompt::default()));
    assert_eq!(shown(&codex.step(EngineInput::Interrupt)), "");
    check(
        &mut codex,
        &[(r#"{"method":"turn/started","params":{"turn":{"id":"U1"}}}"#, "send turn/interrupt")],
    );
    assert_eq!(shown(&codex.step(EngineInput::Interrupt)), "");
}

#[test]
fn a_thread_that_is_missing_is_a_named_error() {
    let missing =
        r#"{"error":{"code":-32600,"message":"no rollout found for thread id x"},"id":2}"#;
    let mut resumed = begun(Some("x"));
    check(
        &mut resumed,
        &[
            (r#"{"id":1,"result":{}}"#, "send initialized; send thread/resume"),
            (missing, "failed ResumeFailed: codex: no rollout found for thread id x"),
        ],
    );
    let mut fresh = begun(None);
    check(
        &mut fresh,
        &[
            (r#"{"id":1,"result":{}}"#, "send initialized; send thread/start"),
            (
                r#"{"error":{"code":-32600,"message":"failed to load configuration"},"id":2}"#,
                "failed EngineNotStarted: codex: failed to load configuration",
            ),
        ],
    );
}

//! Tables of the adapter, with lines of opencode and gemini.

use super::super::adapter_tests::{begin, check, shown};
use super::*;

const RESUMES: &str = r#"{"id":1,"result":{"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{}}}}}"#;
const LOADS: &str = r#"{"id":1,"result":{"agentCapabilities":{"loadSession":true,"promptCapabilities":{"image":true}}}}"#;
const OLD: &str = r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"old"}}}}"#;
const COMMANDS: &str = r#"{"method":"session/update","params":{"update":{"sessionUpdate":"available_commands_update"}}}"#;

fn running() -> Acp {
    let mut acp = Acp::other();
    begin(&mut acp, None);
    check(
        &mut acp,
        &[(LOADS, "send session/new"), (r#"{"id":2,"result":{"sessionId":"s1"}}"#, "ready s1")],
    );
    let prompt = Prompt { text: "hi".into(), files: Vec::new() };
    assert_eq!(shown(&acp.step(EngineInput::Prompt(&prompt))), "send session/prompt");
    acp
}

#[test]
fn old_messages_of_a_resumed_conversation_are_not_told_again() {
    let mut opencode = Acp::opencode();
    begin(&mut opencode, Some("s1"));
    check(
        &mut opencode,
        &[
            (RESUMES, "send session/resume"),
            (OLD, ""),
            (r#"{"id":2,"result":{}}"#, "ready s1"),
            (OLD, ""),
        ],
    );
    let mut gemini = Acp::gemini();
    begin(&mut gemini, Some("s1"));
    check(
        &mut gemini,
        &[
            (LOADS, "send session/load"),
            (OLD, ""),
            (r#"{"id":2,"result":{}}"#, ""),
            (OLD, ""),
            (COMMANDS, "ready s1"),
        ],
    );
    let mut plain = Acp::other();
    begin(&mut plain, Some("s1"));
    check(
        &mut plain,
        &[(
            r#"{"id":1,"result":{"agentCapabilities":{}}}"#,
            "failed ResumeFailed: this agent cannot resume conversations",
        )],
    );
    let mut missing = Acp::gemini();
    begin(&mut missing, Some("s1"));
    check(
        &mut missing,
        &[
            (LOADS, "send session/load"),
            (
                r#"{"id":2,"error":{"code":-32603,"message":"Internal error","data":{"details":"Invalid session identifier"}}}"#,
                "failed ResumeFailed: Internal error: Invalid session identifier",
            ),
        ],
    );
}

#[test]
fn updates_become_events_and_unknown_ones_too() {
    let update = |fields: &str| {
        format!(r#"{{"method":"session/update","params":{{"update":{{{fields}}}}}}}"#)
    };
    let mut acp = running();
    for (fields, expected) in [
        (
            r#""sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"he"}"#,
            "message+he",
        ),
        (
            r#""sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hm"}"#,
            "reasoning+hm",
        ),
        (
            r#""sessionUpdate":"tool_call","toolCallId":"c1","title":"bash","kind":"execute","status":"pending""#,
            r#"c1 Command "bash" Updated None None"#,
        ),
        (
            r#""sessionUpdate":"tool_call_update","toolCallId":"c1","status":"failed","content":[{"type":"content","content":{"type":"text","text":"no"}}]"#,
            r#"c1 Unknown "" Completed Some(false) Some("no")"#,
        ),
        (
            r#""sessionUpdate":"tool_call","toolCallId":"c2","title":"f","kind":"edit","status":"completed","content":[{"type":"diff","path":"a","newText":"b"}]"#,
            r#"c2 FileChange "f" Completed Some(true) Some("a\nb")"#,
        ),
        (r#""sessionUpdate":"plan","entries":[{"content":"A","status":"completed"}]"#, "plan of 1"),
        (r#""sessionUpdate":"usage_update","used":5"#, ""),
        (
            r#""sessionUpdate":"brand_new""#,
            r#"unknown-brand_new Unknown "brand_new" Completed None None"#,
        ),
    ] {
        check(&mut acp, &[(&update(fields), expected)]);
    }
    check(
        &mut acp,
        &[
            (
                r#"{"id":7,"method":"fs/write_text_file","params":{}}"#,
                r#"send {"error":{"code":-32601,"message":"not supported"},"id":7,"jsonrpc":"2.0"}"#,
            ),
            (
                r#"{"id":3,"result":{"stopReason":"end_turn","_meta":{"quota":{"token_count":{"input_tokens":4,"output_tokens":2}}}}}"#,
                "usage 4/2; done end_turn",
            ),
            (r#"{"id":3,"result":{"stopReason":"end_turn"}}"#, ""),
        ],
    );
}

#[test]
fn an_option_is_chosen_by_its_exact_kind_and_a_cancelled_turn_cancels_its_questions() {
    let mut acp = running();
    let asked = r#"{"id":0,"method":"session/request_permission","params":{"options":[{"optionId":"a","kind":"allow_always"},{"optionId":"o","kind":"allow_once"},{"optionId":"x","kind":"allow_sometimes"}],"toolCall":{"toolCallId":"c1","title":"rm","kind":"execute","status":"pending"}}}"#;
    check(&mut acp, &[(asked, r#"c1 Command "rm" Updated None None; ask p1 "rm""#)]);
    assert_eq!(shown(&acp.step(EngineInput::Interrupt)), "send session/cancel");
    let option =
        PermissionOption { id: "o".into(), name: String::new(), kind: OptionKind::AllowOnce };
    assert_eq!(
        shown(&acp.step(EngineInput::Decide { permission: "p1", option: &option })),
        r#"send {"id":0,"jsonrpc":"2.0","result":{"outcome":{"outcome":"cancelled"}}}"#
    );
    check(
        &mut acp,
        &[(r#"{"id":3,"result":{"stopReason":"cancelled"}}"#, "done cancelled interrupted")],
    );
    for (answer, expected) in [
        (
            r#"{"id":3,"result":{"stopReason":"refusal"}}"#,
            "done refusal the agent stopped: refusal",
        ),
        (r#"{"id":3,"error":{"code":500,"message":"fetch failed"}}"#, "done - fetch failed"),
        (r#"{"id":3,"result":{}}"#, "done - the agent's answer to the prompt has no stop reason"),
    ] {
        check(&mut running(), &[(answer, expected)]);
    }
    // A question outside of a turn is not asked.
    check(
        &mut acp,
        &[(
            r#"{"id":5,"method":"session/request_permission","params":{}}"#,
            r#"send {"id":5,"jsonrpc":"2.0","result":{"outcome":{"outcome":"cancelled"}}}"#,
        )],
    );
}

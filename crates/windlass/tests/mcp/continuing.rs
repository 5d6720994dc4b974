//! Several replies about one turn: together they hold its output once, whatever a reply leaves out, whoever else
//! follows the turn, and also after the bridge was killed.

use serde_json::{Value, json};
use windlass_testkit::mcp::{STATELESS, output_of, text_of};
use windlass_testkit::{Gate, McpClient, PATIENCE, TestNode, within};

use crate::{is_error, kill_node, place, said};

/// Waits for input between its lines, so a test knows what each reply holds.
const THREE_LINES: &str = "print('one')\ninput()\nprint('two')\ninput()\nprint('three')";

async fn client(place: &TestNode, revision: &str) -> McpClient {
    McpClient::builder(place).revision(revision).with_gates().start().await.unwrap()
}

/// The output of a reply, and where it begins and ends.
fn part(reply: &Value) -> (&str, u64, u64) {
    let number = |field| said(reply, field).as_u64().unwrap();
    (output_of(reply), number("from"), number("next"))
}

/// The arguments that a reply names for `read_output`.
fn named_call(reply: &Value) -> Value {
    let (_, after) = text_of(reply).split_once("read_output has them: ").unwrap();
    serde_json::from_str(after.split_once(" ...]").unwrap().0).unwrap()
}

#[tokio::test]
async fn each_reply_holds_the_output_that_is_new() {
    let place = place();
    for revision in [STATELESS, "2025-11-25"] {
        let mut agent = client(&place, revision).await;
        let reply = agent.run(THREE_LINES).await;
        assert_eq!(said(&reply, "state"), "waiting_for_input", "{reply}");
        assert_eq!(part(&reply), ("one\n", 0, 4), "{reply}");
        assert!(text_of(&reply).contains("continue with input, from 4"), "{reply}");
        let reply = agent.call("continue", json!({"wait_seconds": 0})).await;
        assert_eq!(part(&reply), ("", 4, 4), "{reply}");
        let reply = agent.call("continue", json!({"input": ""})).await;
        assert_eq!(part(&reply), ("two\n", 4, 8), "{reply}");
        assert!(text_of(&reply).starts_with("two\n[output from byte 4 on]\n"), "{reply}");
        let reply = agent.call("continue", json!({"input": "", "from": 0})).await;
        assert_eq!(part(&reply), ("one\ntwo\nthree\n", 0, 14), "{reply}");
        let turn = said(&reply, "turn").clone();
        let reply = agent.call("continue", json!({"turn": turn})).await;
        assert_eq!((part(&reply), said(&reply, "outcome")), (("", 14, 14), &json!("ok")));
        assert!(text_of(&reply).starts_with("(no new output)\n"), "{reply}");
        // A number that is too large hides nothing.
        let reply = agent.call("continue", json!({"turn": turn, "from": 15})).await;
        assert_eq!(part(&reply), ("one\ntwo\nthree\n", 0, 14), "{reply}");
        assert!(!is_error(&agent.call("reset", json!({"end": true})).await));
    }
}

#[tokio::test]
async fn clients_that_follow_one_turn_get_all_of_it_each() {
    let place = place();
    let mut first = client(&place, STATELESS).await;
    let mut second = client(&place, STATELESS).await;
    assert_eq!(part(&first.run(THREE_LINES).await), ("one\n", 0, 4));
    assert_eq!(part(&second.call("continue", json!({})).await), ("one\n", 0, 4));
    assert_eq!(part(&first.call("continue", json!({"input": ""})).await), ("two\n", 4, 8));
    assert_eq!(part(&second.call("continue", json!({"input": ""})).await), ("two\nthree\n", 4, 14));
    let turn = json!({"turn": "1"});
    assert_eq!(part(&first.call("continue", turn.clone()).await), ("three\n", 8, 14));
    assert_eq!(part(&second.call("continue", turn).await), ("", 14, 14));
}

#[tokio::test]
async fn after_a_restart_of_bridge_and_node_the_byte_in_the_last_reply_continues() {
    let place = place();
    let mut agent = client(&place, STATELESS).await;
    let (_, _, next) = part(&agent.run(THREE_LINES).await);
    agent.kill9();
    kill_node(&place);
    let mut agent = client(&place, STATELESS).await;
    let reply = agent.call("continue", json!({"input": "", "from": next})).await;
    assert_eq!(part(&reply), ("two\n", 4, 8), "{reply}");
    agent.kill9();
    // A bridge that knows nothing shows all.
    let mut agent = client(&place, STATELESS).await;
    let reply = agent.call("continue", json!({"input": ""})).await;
    assert_eq!(part(&reply), ("one\ntwo\nthree\n", 0, 14), "{reply}");
}

#[tokio::test]
async fn interrupt_shows_what_is_new() {
    let place = place();
    let mut agent = client(&place, STATELESS).await;
    let gate = Gate::new("new").unwrap();
    let code = format!("print('one')\ninput()\nprint('two')\n{}", gate.python());
    assert_eq!(part(&agent.run(&code).await), ("one\n", 0, 4));
    let reply = agent.call("continue", json!({"input": "", "wait_seconds": 0})).await;
    let (before, from, next) = part(&reply);
    assert_eq!(from, 4, "{reply}");
    let before = before.to_owned();
    let _running = within(PATIENCE, gate.reached()).await.unwrap();
    let stopped = agent.call("interrupt", json!({})).await;
    assert_eq!(said(&stopped, "outcome"), "interrupted", "{stopped}");
    let (after, from, _) = part(&stopped);
    assert_eq!(from, next, "{stopped}");
    let all = format!("{before}{after}");
    assert!(all.starts_with("two\n") && all.contains("KeyboardInterrupt"), "{all}");
    assert!(!all.contains("one"), "{all}");
}

#[tokio::test]
async fn a_budget_that_cuts_the_middle_loses_no_byte_and_splits_no_character() {
    const LETTERS: usize = 4_000;
    let place = place();
    let mut agent = client(&place, STATELESS).await;
    // Characters of three bytes: no end of a reply is a multiple of that by itself.
    let code = format!("for n in range(2):\n    print('→' * {LETTERS}, n)\n    input()");
    let line = |number: u32| format!("{} {number}\n", "→".repeat(LETTERS));
    let mut expected_from = 0;
    for number in 0..2 {
        let small = json!({"code": code, "input": "", "max_tokens": 200});
        let mut arguments = small.as_object().unwrap().clone();
        arguments.remove(if number == 0 { "input" } else { "code" });
        let tool = if number == 0 { "run" } else { "continue" };
        let reply = agent.call(tool, Value::Object(arguments)).await;
        let (shown, from, next) = part(&reply);
        let line = line(number);
        assert_eq!((from, next), (expected_from, expected_from + line.len() as u64), "{reply}");
        assert!(!shown.contains('\u{fffd}') && shown.len() < 2_000, "{shown}");
        let (head, rest) = shown.split_once("\n[... ").unwrap();
        let tail = rest.split_once(" ...]\n").unwrap().1;
        assert!(line.starts_with(head) && line.ends_with(tail), "{shown}");
        let omitted = said(&reply, "omitted_bytes").as_u64().unwrap() as usize;
        assert_eq!(head.len() + omitted + tail.len(), line.len(), "{shown}");

        // The call that the reply names reads the rest, in parts.
        let mut call = named_call(&reply);
        assert_eq!(call["from"], from + head.len() as u64, "{reply}");
        call["max_tokens"] = json!(500);
        let mut read = head.to_owned();
        while read.len() < line.len() {
            let more = agent.call("read_output", call.clone()).await;
            read.push_str(output_of(&more));
            call["from"] = said(&more, "next").clone();
        }
        assert!(read == line, "{} bytes of {}", read.len(), line.len());
        expected_from = next;
    }
}

#[tokio::test]
async fn the_receipt_of_a_loss_names_a_tool() {
    let place = place();
    let mut agent = client(&place, STATELESS).await;
    let lost = agent.run("print('before', flush=True)\nimport os; os.kill(os.getpid(), 9)").await;
    assert_eq!(said(&lost, "outcome"), "lost", "{lost}");
    let text = text_of(&lost);
    let session = said(&lost, "session");
    let named = format!("output so far: read_output with {}", json!({"session": session}));
    assert!(text.contains(&named) && !text.contains("/v1/"), "{text}");
    let read = agent.call("read_output", json!({"session": session})).await;
    assert!(output_of(&read).starts_with("before\n"), "{read}");
}

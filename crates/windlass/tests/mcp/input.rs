//! Code that reads a line: the client answers by an elicitation request, by a repeated call, or by the tool
//! `continue`, as its capabilities allow. A secret goes through none of them.

use serde_json::{Value, json};
use windlass_testkit::mcp::{STATELESS, output_of, text_of};
use windlass_testkit::{McpClient, TestNode};

use crate::{is_error, place, said};

const ASKS: &str = "name = input('name? '); print('hello', name)";

const ASKS_FOR_A_SECRET: &str = "import getpass; print(len(getpass.getpass('Password: ')))";

async fn client(place: &TestNode, revision: &str, capabilities: Value) -> McpClient {
    let builder = McpClient::builder(place).revision(revision).capabilities(capabilities);
    builder.start().await.unwrap()
}

fn run(code: &str) -> Value {
    json!({"name": "run", "arguments": {"code": code}})
}

fn accepted(text: &str) -> Value {
    json!({"action": "accept", "content": {"input": text}})
}

#[tokio::test]
async fn a_client_that_can_ask_is_asked_within_its_call() {
    let place = place();
    let mut agent = client(&place, "2025-11-25", json!({"elicitation": {"form": {}}})).await;
    let id = agent.send("tools/call", run(ASKS)).unwrap();
    let asked = agent.said("elicitation/create").await.unwrap();
    assert_eq!(asked["params"]["message"], "name?", "{asked}");
    let field = &asked["params"]["requestedSchema"]["properties"]["input"];
    assert_eq!(field["type"], "string", "{asked}");
    agent.respond(&asked["id"], accepted("bob")).unwrap();
    let reply = agent.answer(id).await.unwrap().unwrap();
    assert_eq!(said(&reply, "outcome"), "ok", "{reply}");
    assert!(output_of(&reply).ends_with("hello bob\n"), "{reply}");

    // Two prompts in one turn, in a revision that knows only one kind of form.
    let mut agent = client(&place, "2025-06-18", json!({"elicitation": {}})).await;
    let id = agent.send("tools/call", run("print(input('a? ') + input('b? '))")).unwrap();
    for (question, answer) in [("a?", "4"), ("b?", "2")] {
        let asked = agent.said("elicitation/create").await.unwrap();
        assert_eq!(asked["params"]["message"], question, "{asked}");
        agent.respond(&asked["id"], accepted(answer)).unwrap();
    }
    let reply = agent.answer(id).await.unwrap().unwrap();
    assert!(output_of(&reply).ends_with("42\n"), "{reply}");
}

#[tokio::test]
async fn a_user_who_declines_leaves_the_question_to_the_model() {
    let place = place();
    let mut agent = client(&place, "2025-11-25", json!({"elicitation": {}})).await;
    for action in ["decline", "cancel"] {
        let id = agent.send("tools/call", run(ASKS)).unwrap();
        let asked = agent.said("elicitation/create").await.unwrap();
        agent.respond(&asked["id"], json!({"action": action})).unwrap();
        let reply = agent.answer(id).await.unwrap().unwrap();
        assert_eq!(said(&reply, "state"), "waiting_for_input", "{reply}");
        assert!(text_of(&reply).contains("gave no answer"), "{reply}");
        let stopped = agent.call("interrupt", json!({})).await;
        assert_eq!(said(&stopped, "outcome"), "interrupted", "{stopped}");
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_its_user_is_asked_stops_its_turn() {
    let place = place();
    let mut agent = client(&place, "2025-11-25", json!({"elicitation": {}})).await;
    assert_eq!(agent.run_ok("x = 5").await, "");
    let id = agent.send("tools/call", run(ASKS)).unwrap();
    agent.said("elicitation/create").await.unwrap();
    agent.notify("notifications/cancelled", json!({"requestId": id})).unwrap();
    // The turn that the next call waits behind is over.
    assert_eq!(agent.run_ok("x").await, "5\n");
}

#[tokio::test]
async fn a_client_of_the_newest_revision_is_asked_by_an_answer_and_comes_back() {
    let place = place();
    let mut agent = client(&place, STATELESS, json!({"elicitation": {"form": {}}})).await;
    let call = run("n = globals().get('n', 0) + 1\nprint(input('a? ') + input('b? '), n)");
    let mut asked = agent.request("tools/call", call.clone()).await.unwrap().unwrap();
    for (question, answer) in [("a?", "4"), ("b?", "2")] {
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let request = &asked["inputRequests"]["input"];
        assert_eq!(request["method"], "elicitation/create", "{asked}");
        assert_eq!(request["params"]["message"], question, "{asked}");
        let mut again = call.clone();
        again["requestState"] = asked["requestState"].clone();
        again["inputResponses"] = json!({"input": accepted(answer)});
        asked = agent.request("tools/call", again).await.unwrap().unwrap();
    }
    // The code ran once, although the call was repeated.
    assert!(output_of(&asked).ends_with("42 1\n"), "{asked}");
    assert!(!agent.has_said("elicitation/create"));
}

#[tokio::test]
async fn a_state_that_was_damaged_is_an_error_of_the_protocol_and_answers_nothing() {
    let place = place();
    let mut agent = client(&place, STATELESS, json!({"elicitation": {}})).await;
    let asked = agent.request("tools/call", run(ASKS)).await.unwrap().unwrap();
    let state = asked["requestState"].as_str().unwrap().to_owned();
    for damaged in [format!("{state}x"), state[1..].to_owned(), String::new(), "a/b/1/0".to_owned()]
    {
        let mut again = run(ASKS);
        again["requestState"] = json!(damaged);
        again["inputResponses"] = json!({"input": accepted("mallory")});
        let refused = agent.request("tools/call", again).await.unwrap().unwrap_err();
        assert_eq!(refused["code"], -32602, "{damaged:?}: {refused}");
    }
    // An invalid answer is requested again. The original state is still valid, also for another client.
    let mut again = run(ASKS);
    again["requestState"] = json!(state);
    let asked = agent.request("tools/call", again.clone()).await.unwrap().unwrap();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert!(agent.close().await.unwrap().success());
    let mut next = client(&place, STATELESS, json!({"elicitation": {}})).await;
    again["inputResponses"] = json!({"input": accepted("bob")});
    let reply = next.request("tools/call", again).await.unwrap().unwrap();
    assert!(output_of(&reply).ends_with("hello bob\n"), "{reply}");
}

#[tokio::test]
async fn a_client_that_cannot_ask_answers_by_continue() {
    let place = place();
    for revision in [STATELESS, "2025-11-25", "2025-03-26"] {
        let mut agent = client(&place, revision, json!({})).await;
        let reply = agent.run(ASKS).await;
        assert_eq!(said(&reply, "state"), "waiting_for_input", "{revision}: {reply}");
        assert_eq!(said(&reply, "prompt"), "name? ", "{revision}: {reply}");
        assert!(!is_error(&reply) && text_of(&reply).contains("continue"), "{reply}");
        let reply = agent.call("continue", json!({"input": "bob"})).await;
        assert_eq!(said(&reply, "outcome"), "ok", "{revision}: {reply}");
        assert!(output_of(&reply).ends_with("hello bob\n"), "{revision}: {reply}");
        assert!(!agent.has_said("elicitation/create"), "{revision}");
        // There is no open prompt now.
        let refused = agent.call("continue", json!({"input": "bob"})).await;
        assert!(is_error(&refused), "{revision}: {refused}");
    }
}

#[tokio::test]
async fn a_secret_goes_neither_through_a_form_nor_through_the_model() {
    let place = place();
    for (revision, capabilities) in [
        (STATELESS, json!({"elicitation": {}})),
        ("2025-11-25", json!({"elicitation": {}})),
        ("2025-11-25", json!({})),
    ] {
        let mut agent = client(&place, revision, capabilities).await;
        let reply = agent.run(ASKS_FOR_A_SECRET).await;
        assert_eq!(said(&reply, "state"), "waiting_for_input", "{revision}: {reply}");
        assert_eq!(said(&reply, "secret"), true, "{revision}: {reply}");
        let session = said(&reply, "session").as_str().unwrap();
        assert!(text_of(&reply).contains(&format!("windlass attach {session}")), "{reply}");
        let refused = agent.call("continue", json!({"input": "swordfish"})).await;
        assert!(is_error(&refused), "{revision}: {refused}");
        assert!(text_of(&refused).contains("windlass attach"), "{refused}");
        // The secret was not sent on the way either.
        let waits = agent.call("continue", json!({"wait_seconds": 0})).await;
        assert_eq!(said(&waits, "state"), "waiting_for_input", "{revision}: {waits}");
        assert!(!agent.has_said("elicitation/create"), "{revision}");
        let stopped = agent.call("interrupt", json!({})).await;
        assert_eq!(said(&stopped, "outcome"), "interrupted", "{stopped}");
    }
}

#[tokio::test]
async fn a_secret_that_a_state_is_made_up_for_is_not_taken() {
    let place = place();
    let mut agent = client(&place, STATELESS, json!({"elicitation": {}})).await;
    // The first prompt is not secret. Its state is then replayed for the secret prompt that follows.
    let code = "import getpass\na = input('a? ')\nb = getpass.getpass('Password: ')\nprint(a, b)";
    let asked = agent.request("tools/call", run(code)).await.unwrap().unwrap();
    let mut again = run(code);
    again["requestState"] = asked["requestState"].clone();
    again["inputResponses"] = json!({"input": accepted("open")});
    let reply = agent.request("tools/call", again.clone()).await.unwrap().unwrap();
    assert_eq!(said(&reply, "secret"), true, "{reply}");
    again["inputResponses"] = json!({"input": accepted("swordfish")});
    let reply = agent.request("tools/call", again).await.unwrap().unwrap();
    let waits = agent.call("continue", json!({"wait_seconds": 0})).await;
    assert_eq!(said(&waits, "state"), "waiting_for_input", "{reply} then {waits}");
    assert!(!output_of(&waits).contains("swordfish"), "{waits}");
}

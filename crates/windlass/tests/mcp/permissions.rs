//! Permissions that an agent in a session asks for: the client's user answers them, and the model cannot.

use serde_json::{Value, json};
use windlass_testkit::mcp::{McpClientBuilder, STATELESS, output_of, text_of, work_of};
use windlass_testkit::{McpClient, TestNode};

use crate::{is_error, place, said};

/// An agent that asks for each prompt, and tells the answer.
const ENGINE: &str = include_str!("../contract_agents/engine.py");

fn place_with_engine() -> TestNode {
    let place = place();
    std::fs::create_dir_all(work_of(&place)).unwrap();
    std::fs::write(work_of(&place).join("engine.py"), ENGINE).unwrap();
    std::fs::write(work_of(&place).join("turns.log"), "").unwrap();
    place
}

fn client(place: &TestNode, revision: &str, capabilities: Value) -> McpClientBuilder {
    let builder = McpClient::builder(place).revision(revision).capabilities(capabilities);
    builder.arg("--permissions").arg("ask")
}

fn run() -> Value {
    json!({"name": "run", "arguments": {
        "language": "acp:python3 engine.py", "code": "ask remove everything", "session": "helper",
    }})
}

#[tokio::test]
async fn a_user_decides_by_a_form() {
    let place = place_with_engine();
    let mut agent = client(&place, "2025-11-25", json!({"elicitation": {}})).start().await.unwrap();
    for (answer, told) in [
        (json!({"action": "accept", "content": {"input": "p1 allow"}}), "once"),
        (json!({"action": "accept", "content": {"input": "p1 deny"}}), "no"),
        (json!({"action": "decline"}), "no"),
    ] {
        let id = agent.send("tools/call", run()).unwrap();
        let asked = agent.said("elicitation/create").await.unwrap();
        let question = asked["params"]["message"].as_str().unwrap();
        assert!(question.contains("remove everything"), "{asked}");
        let field = &asked["params"]["requestedSchema"]["properties"]["input"];
        let number = field["enum"][0].as_str().unwrap().split(' ').next().unwrap().to_owned();
        let answer = answer.to_string().replace("p1", &number);
        agent.respond(&asked["id"], serde_json::from_str(&answer).unwrap()).unwrap();
        let reply = agent.answer(id).await.unwrap().unwrap();
        assert_eq!(said(&reply, "outcome"), "ok", "{reply}");
        assert!(output_of(&reply).contains(&format!("\"optionId\": \"{told}\"")), "{reply}");
    }
}

#[tokio::test]
async fn a_client_that_repeats_its_call_carries_the_decision() {
    let place = place_with_engine();
    let mut agent = client(&place, STATELESS, json!({"elicitation": {}})).start().await.unwrap();
    let asked = agent.request("tools/call", run()).await.unwrap().unwrap();
    let form = &asked["inputRequests"]["input"]["params"]["requestedSchema"]["properties"]["input"];
    assert_eq!(form["enum"], json!(["p1 always", "p1 allow", "p1 deny"]), "{asked}");
    let mut again = run();
    again["requestState"] = asked["requestState"].clone();
    again["inputResponses"] = json!({"input": {"action": "decline"}});
    let reply = agent.request("tools/call", again).await.unwrap().unwrap();
    assert!(output_of(&reply).contains("\"optionId\": \"no\""), "{reply}");
}

#[tokio::test]
async fn a_model_does_not_decide() {
    let place = place_with_engine();
    let mut agent = client(&place, "2025-11-25", json!({})).start().await.unwrap();
    let reply = agent.request("tools/call", run()).await.unwrap().unwrap();
    assert_eq!(said(&reply, "state"), "waiting_for_input", "{reply}");
    assert!(text_of(&reply).contains("windlass attach"), "{reply}");
    let refused = agent.call("continue", json!({"session": "helper", "input": "p1 allow"})).await;
    assert!(is_error(&refused) && text_of(&refused).contains("a person must answer"), "{refused}");
    let stopped = agent.call("interrupt", json!({"session": "helper"})).await;
    assert_eq!(said(&stopped, "outcome"), "interrupted", "{stopped}");
}

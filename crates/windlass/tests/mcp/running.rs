//! A call that waits for its turn: progress, cancellation, and calls that overtake it.

use serde_json::{Value, json};
use windlass_testkit::mcp::{STATELESS, output_of, text_of};
use windlass_testkit::{Gate, McpClient, PATIENCE, TestNode, processes, within};

use crate::{is_error, kill_node, place, said};

fn run(code: &str) -> Value {
    json!({"name": "run", "arguments": {"code": code}})
}

#[tokio::test]
async fn a_long_turn_reports_progress_to_clients_that_request_it() {
    let place = place();
    for revision in [STATELESS, "2025-11-25"] {
        let gate = Gate::new("progress").unwrap();
        let builder = McpClient::builder(&place).with_gates().revision(revision);
        let mut agent = builder.start().await.unwrap();
        let code = format!("print('half way', flush=True)\n{}'done'", gate.python());
        let mut asked = run(&code);
        asked["_meta"] = json!({"progressToken": "mine"});
        let id = agent.send("tools/call", asked).unwrap();
        let running = within(PATIENCE, gate.reached()).await.unwrap();
        let mut before = 0.0;
        for _ in 0..2 {
            let told = loop {
                let told = agent.said("notifications/progress").await.unwrap();
                // The message is empty as long as the code has printed nothing.
                if told["params"]["message"] != "" {
                    break told;
                }
            };
            assert_eq!(told["params"]["progressToken"], "mine", "{told}");
            assert_eq!(told["params"]["message"], "half way", "{told}");
            let progress = told["params"]["progress"].as_f64().unwrap();
            assert!(progress > before, "{told}");
            before = progress;
        }
        running.open().await.unwrap();
        let reply = agent.answer(id).await.unwrap().unwrap();
        assert_eq!(output_of(&reply), "half way\n'done'\n", "{revision}");
        while agent.has_said("notifications/progress") {
            agent.said("notifications/progress").await.unwrap();
        }
        // A client that requests no progress gets none.
        let quiet = run("import time; time.sleep(1.3)");
        assert!(agent.request("tools/call", quiet).await.unwrap().is_ok());
        assert!(!agent.has_said("notifications/progress"), "{revision}");
    }
}

#[tokio::test]
async fn a_cancelled_call_stops_its_turn_and_the_session_goes_on() {
    let place = place();
    for revision in [STATELESS, "2025-11-25", "2025-03-26"] {
        let gate = Gate::new("cancel").unwrap();
        let builder = McpClient::builder(&place).with_gates().revision(revision);
        let mut agent = builder.start().await.unwrap();
        assert_eq!(agent.run_ok("x = 5").await, "");
        let id = agent.send("tools/call", run(&gate.python())).unwrap();
        let _running = within(PATIENCE, gate.reached()).await.unwrap();
        let cancel = json!({"requestId": id, "reason": "no longer wanted"});
        agent.notify("notifications/cancelled", cancel).unwrap();
        // The next call waits for its end, and the gate stays closed.
        assert_eq!(agent.run_ok("x").await, "5\n", "{revision}");
        let stopped = agent.call("read_output", json!({})).await;
        assert!(output_of(&stopped).contains("KeyboardInterrupt"), "{revision}: {stopped}");
        assert!(agent.call("reset", json!({"end": true})).await["isError"] != true);
    }
}

#[tokio::test]
async fn other_calls_are_answered_while_one_waits() {
    let place = place();
    let gate = Gate::new("beside").unwrap();
    let mut agent = McpClient::builder(&place).with_gates().start().await.unwrap();
    let id = agent.send("tools/call", run(&format!("{}'done'", gate.python()))).unwrap();
    let running = within(PATIENCE, gate.reached()).await.unwrap();
    let other = agent.call("run", json!({"code": "6 * 7", "session": "other"})).await;
    assert_eq!(output_of(&other), "42\n");
    let queued = agent.call("run", json!({"code": "'next'", "wait_seconds": 0})).await;
    assert_eq!(said(&queued, "state"), "queued", "{queued}");
    let listed = agent.call("sessions", json!({})).await;
    assert_eq!(said(&listed, "sessions").as_array().unwrap().len(), 2, "{listed}");
    running.open().await.unwrap();
    let reply = agent.answer(id).await.unwrap().unwrap();
    assert_eq!(output_of(&reply), "'done'\n");
    let next = agent.call("continue", json!({"turn": said(&queued, "turn")})).await;
    assert_eq!(output_of(&next), "'next'\n");
}

#[tokio::test]
async fn interrupt_stops_what_another_call_waits_for() {
    let place = place();
    let gate = Gate::new("interrupt").unwrap();
    let mut agent = McpClient::builder(&place).with_gates().start().await.unwrap();
    assert_eq!(agent.run_ok("x = 5").await, "");
    let id = agent.send("tools/call", run(&gate.python())).unwrap();
    let _running = within(PATIENCE, gate.reached()).await.unwrap();
    let stopped = agent.call("interrupt", json!({})).await;
    assert!(!is_error(&stopped), "{stopped}");
    assert_eq!(said(&stopped, "outcome"), "interrupted", "{stopped}");
    let reply = agent.answer(id).await.unwrap().unwrap();
    assert!(is_error(&reply), "{reply}");
    assert_eq!(said(&reply, "outcome"), "interrupted", "{reply}");
    assert_eq!(agent.run_ok("x").await, "5\n");
    let idle = agent.call("interrupt", json!({})).await;
    assert_eq!((said(&idle, "state"), is_error(&idle)), (&json!("idle"), false), "{idle}");
}

#[tokio::test]
async fn a_bridge_that_may_not_start_a_node_reports_a_node_that_went_away() {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let mut agent = McpClient::builder(&node).arg("--no-start").start().await.unwrap();
    assert_eq!(agent.run_ok("6 * 7").await, "42\n");
    kill_node(&node);
    let failed = agent.run("6 * 7").await;
    assert!(is_error(&failed), "{failed}");
    assert!(text_of(&failed).contains("no node answers"), "{failed}");
    assert!(processes::nodes(node.base()).is_empty());
}

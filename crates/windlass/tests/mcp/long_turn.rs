//! A turn that outlives its client, the bridge and the node; a new client reads its result.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass_testkit::mcp::{STATELESS, output_of};
use windlass_testkit::{Gate, McpClient, PATIENCE, TestNode, within};

use crate::{is_error, kill_node, place, said, task_client};

/// Duration of a long turn. A turn of an hour works the same way.
const SECONDS: &str = "WINDLASS_TEST_LONG_TURN_SECONDS";
const SECONDS_DEFAULT: f64 = 3.0;

/// Duration of one poll of a client.
const LOOK_SECONDS: f64 = 20.0;

fn seconds() -> f64 {
    let said = std::env::var(SECONDS).ok().map(|said| said.parse().unwrap());
    said.unwrap_or(SECONDS_DEFAULT)
}

/// Runs `code`, and kills the client while it runs. Kills its node too.
async fn run_and_die(place: &TestNode, revision: &str, code: &str) {
    let builder = McpClient::builder(place).with_gates().revision(revision);
    let mut agent = builder.start().await.unwrap();
    assert_eq!(agent.run_ok("x = 40").await, "");
    let reply = agent.call("run", json!({"code": code, "wait_seconds": 0})).await;
    assert!(!is_error(&reply), "{reply}");
    assert_eq!(said(&reply, "state"), "running", "{reply}");
    agent.kill9();
    kill_node(place);
}

#[tokio::test]
async fn a_turn_outlives_client_bridge_and_node_and_a_new_client_reads_its_result() {
    for revision in [STATELESS, "2025-11-25", "2025-03-26"] {
        let place = place();
        let gate = Gate::new("outlives").unwrap();
        let code = format!("print('begun', flush=True)\n{}x + 2", gate.python());
        run_and_die(&place, revision, &code).await;
        // Only the keeper holds the session now.
        let running = within(PATIENCE, gate.reached()).await.unwrap();
        let mut next = McpClient::builder(&place).with_gates().start().await.unwrap();
        let reply = next.call("continue", json!({"wait_seconds": 0})).await;
        assert_eq!(said(&reply, "state"), "running", "{revision}: {reply}");
        let before = output_of(&reply).to_owned();
        kill_node(&place);
        running.open().await.unwrap();
        let reply = next.call("continue", json!({})).await;
        assert_eq!(said(&reply, "outcome"), "ok", "{revision}: {reply}");
        assert_eq!(before + output_of(&reply), "begun\n42\n", "{revision}");
    }
}

#[tokio::test]
async fn a_turn_that_lasts_outlives_client_bridge_and_node_for_as_long_as_it_lasts() {
    let place = place();
    let seconds = seconds();
    let code = format!("import time\nprint('begun')\ntime.sleep({seconds})\nx + 2");
    let began = Instant::now();
    run_and_die(&place, "2025-11-25", &code).await;

    let mut next = McpClient::builder(&place).with_gates().start().await.unwrap();
    let until = began + Duration::from_secs_f64(seconds) + PATIENCE;
    let mut output = String::new();
    let reply = loop {
        let reply = next.call("continue", json!({"wait_seconds": LOOK_SECONDS})).await;
        output.push_str(output_of(&reply));
        if said(&reply, "state") != "running" {
            break reply;
        }
        assert!(Instant::now() < until, "it still runs: {reply}");
    };
    assert!(began.elapsed().as_secs_f64() >= seconds, "it ended early: {reply}");
    assert_eq!((&*output, is_error(&reply)), ("begun\n42\n", false), "{reply}");
    let lasted = said(&reply, "seconds").as_f64().unwrap();
    assert!(lasted >= seconds - 0.1, "{lasted}");
}

#[tokio::test]
async fn a_task_outlives_client_bridge_and_node_and_a_new_client_reads_its_result() {
    let place = place();
    let seconds = seconds();
    let mut agent = task_client(&place, false).start().await.unwrap();
    let code = format!("import time\nprint('begun')\ntime.sleep({seconds})\n40 + 2");
    let began = Instant::now();
    let handle = agent.call("run", json!({"code": code, "wait_seconds": 0})).await;
    assert_eq!(handle["resultType"], "task", "{handle}");
    let task = handle["taskId"].as_str().unwrap().to_owned();
    assert_eq!(handle["status"], "working", "{handle}");
    agent.kill9();
    kill_node(&place);

    let mut next = task_client(&place, false).start().await.unwrap();
    let until = began + Duration::from_secs_f64(seconds) + PATIENCE;
    let done = loop {
        let got = next.request("tasks/get", json!({"taskId": task})).await.unwrap().unwrap();
        assert_eq!(got["taskId"], task.as_str(), "{got}");
        if got["status"] != "working" {
            break got;
        }
        assert!(Instant::now() < until, "it still runs: {got}");
        // A request that waits, so that this loop does not spin.
        next.call("continue", json!({"wait_seconds": 1})).await;
    };
    assert!(began.elapsed().as_secs_f64() >= seconds, "it ended early: {done}");
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(output_of(&done["result"]), "begun\n42\n", "{done}");
}

//! Long turns as tasks, for clients that support tasks.

use std::time::Instant;

use serde_json::{Value, json};
use windlass_testkit::mcp::{STATELESS, output_of};
use windlass_testkit::{Gate, McpClient, PATIENCE, TestNode, within};

use crate::{place, said, task_client};

/// Runs a first turn in the session of the task clients of this place: a call waits for a start of the worker only so long,
/// and becomes a task.
async fn warm_up(place: &TestNode) {
    let mut plain =
        McpClient::builder(place).revision(STATELESS).with_gates().start().await.unwrap();
    plain.run_ok("None").await;
}

/// Starts `code` as a task, and returns its handle.
async fn begin(agent: &mut McpClient, code: &str) -> String {
    let handle = agent.call("run", json!({"code": code, "wait_seconds": 0})).await;
    assert_eq!(handle["resultType"], "task", "{handle}");
    handle["taskId"].as_str().unwrap().to_owned()
}

async fn get(agent: &mut McpClient, task: &str) -> Value {
    agent.request("tasks/get", json!({"taskId": task})).await.unwrap().unwrap()
}

/// Polls the task until it has this status. Each poll waits for the turn.
async fn get_once(agent: &mut McpClient, task: &str, status: &str) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let got = get(agent, task).await;
        if got["status"] == status {
            return got;
        }
        assert!(Instant::now() < until, "not {status}: {got}");
        agent.call("continue", json!({"wait_seconds": 1})).await;
    }
}

#[tokio::test]
async fn a_quick_turn_is_answered_at_once_and_a_slow_one_by_a_handle_that_any_client_can_use() {
    let place = place();
    let gate = Gate::new("task").unwrap();
    warm_up(&place).await;
    let mut agent = task_client(&place, false).start().await.unwrap();
    assert_eq!(agent.run_ok("x = 40; x").await, "40\n");
    let task = begin(&mut agent, &format!("{}x + 2", gate.python())).await;
    let running = within(PATIENCE, gate.reached()).await.unwrap();
    assert_eq!(get(&mut agent, &task).await["status"], "working");
    running.open().await.unwrap();
    let mut other = task_client(&place, false).name("another").start().await.unwrap();
    get_once(&mut agent, &task, "completed").await;
    let done = get(&mut other, &task).await;
    assert_eq!(output_of(&done["result"]), "42\n", "{done}");
    for wrong in ["", "nothing", "no-session/t1/1", &task.replacen("/t", "/u", 1)] {
        let refused = other.request("tasks/get", json!({"taskId": wrong})).await.unwrap();
        assert_eq!(refused.unwrap_err()["code"], -32602, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_task_that_fails_has_the_exception_as_its_result() {
    let place = place();
    let gate = Gate::new("fails").unwrap();
    let mut agent = task_client(&place, false).start().await.unwrap();
    let task = begin(&mut agent, &format!("{}1 / 0", gate.python())).await;
    within(PATIENCE, gate.reached()).await.unwrap().open().await.unwrap();
    let done = get_once(&mut agent, &task, "completed").await;
    assert_eq!(done["result"]["isError"], true, "{done}");
    assert_eq!(said(&done["result"], "error")["name"], "ZeroDivisionError", "{done}");
}

#[tokio::test]
async fn a_cancelled_task_is_stopped_and_its_session_goes_on() {
    let place = place();
    let gate = Gate::new("cancelled").unwrap();
    warm_up(&place).await;
    let mut agent = task_client(&place, false).start().await.unwrap();
    assert_eq!(agent.run_ok("x = 5").await, "");
    let task = begin(&mut agent, &gate.python()).await;
    let _running = within(PATIENCE, gate.reached()).await.unwrap();
    let cancelled = agent.request("tasks/cancel", json!({"taskId": task})).await.unwrap();
    assert!(cancelled.is_ok(), "{cancelled:?}");
    get_once(&mut agent, &task, "cancelled").await;
    assert_eq!(agent.run_ok("x").await, "5\n");
    // The task is over: a second cancellation changes nothing.
    let again = agent.request("tasks/cancel", json!({"taskId": task})).await.unwrap();
    assert!(again.is_ok(), "{again:?}");
}

#[tokio::test]
async fn a_task_asks_and_is_answered_by_an_update() {
    let place = place();
    let gate = Gate::new("asks").unwrap();
    let mut agent = task_client(&place, true).start().await.unwrap();
    let code = format!("{}print('hello', input('name? '))", gate.python());
    for (answer, end) in [
        (json!({"action": "accept", "content": {"input": "bob"}}), "completed"),
        (json!({"action": "decline"}), "cancelled"),
    ] {
        let task = begin(&mut agent, &code).await;
        within(PATIENCE, gate.reached()).await.unwrap().open().await.unwrap();
        let asks = get_once(&mut agent, &task, "input_required").await;
        assert_eq!(asks["inputRequests"]["input"]["params"]["message"], "name?", "{asks}");
        let update = json!({"taskId": task, "inputResponses": {"input": answer}});
        let taken = agent.request("tasks/update", update).await.unwrap();
        assert!(taken.is_ok(), "{taken:?}");
        let done = get_once(&mut agent, &task, end).await;
        if end == "completed" {
            assert_eq!(output_of(&done["result"]), "hello bob\n", "{done}");
        }
    }
}

#[tokio::test]
async fn a_task_that_waits_for_a_secret_says_so_and_takes_none() {
    let place = place();
    let gate = Gate::new("secret").unwrap();
    let mut agent = task_client(&place, true).start().await.unwrap();
    let code = format!("{}import getpass\nprint(getpass.getpass('Password: '))", gate.python());
    let task = begin(&mut agent, &code).await;
    within(PATIENCE, gate.reached()).await.unwrap().open().await.unwrap();
    let waits = agent.call("continue", json!({"wait_seconds": 20})).await;
    assert_eq!(said(&waits, "secret"), true, "{waits}");
    let got = get(&mut agent, &task).await;
    assert_eq!(got["status"], "working", "{got}");
    assert!(got["statusMessage"].as_str().unwrap().contains("windlass attach"), "{got}");
    let answer = json!({"action": "accept", "content": {"input": "swordfish"}});
    let update = json!({"taskId": task, "inputResponses": {"input": answer}});
    let refused = agent.request("tasks/update", update).await.unwrap();
    assert_eq!(refused.unwrap_err()["code"], -32602);
    let waits = agent.call("continue", json!({"wait_seconds": 0})).await;
    assert_eq!(said(&waits, "secret"), true, "{waits}");
}

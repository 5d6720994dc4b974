//! What happens to open calls when the node is killed: each runs at most once, the code gets an error, and
//! the session continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use windlass_client::protocol::Outcome;
use windlass_testkit::{PATIENCE, TestToolCall, TestToolHost, run_ok, turn, turn_ended, within};

use super::start_session;

#[tokio::test]
async fn a_node_killed_with_calls_open_fails_them_and_none_runs_twice() {
    let (mut node, client, session) = start_session().await;
    for code in ["tools.hold()", "await tools.hold()", "tools.hold(text='x' * 5_000_000)"] {
        let calls = Arc::new(AtomicUsize::new(0));
        let hold = {
            let calls = calls.clone();
            move |call: TestToolCall| {
                calls.fetch_add(1, Ordering::Relaxed);
                async move {
                    call.cancelled().await;
                    Ok(json!("late"))
                }
            }
        };
        let host = TestToolHost::offer(&client, &session, &["hold"], hold.clone()).await.unwrap();
        run_ok(&client, &session, "x = 7").await;
        let caught = format!(
            "try:\n    {code}\nexcept tools.ToolHostGone as error:\n    print('gone', error.code, x)"
        );
        let pending = client.submit_turn(&session, &turn(caught)).await.unwrap();
        within(PATIENCE, host.called("hold")).await;
        node.kill9();
        drop(host);
        node.restart().await.unwrap();
        // A host that attaches at once receives no call of the former host.
        let next = TestToolHost::offer(&client, &session, &["hold"], hold).await.unwrap();
        let ended = turn_ended(&client, &session, &pending.id, PATIENCE).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Ok), "{ended:?}");
        assert_eq!(ended.output.text, "gone tool_host_gone 7\n");
        assert_eq!(calls.load(Ordering::Relaxed), 1, "{code}");
        drop(next);
    }
}

#[tokio::test]
async fn a_node_killed_at_any_moment_of_large_calls_loses_no_session() {
    let (mut node, client, session) = start_session().await;
    let echo = |call: TestToolCall| async move { Ok(call.arguments["value"].clone()) };
    let code = "
text = 'x' * 3_000_000
try:
    while tools.echo(value=text) == text:
        pass
except (tools.ToolHostGone, tools.ToolNotFound):
    print('gone')";
    for round in 0..12 {
        let host = TestToolHost::offer(&client, &session, &["echo"], echo).await.unwrap();
        let pending = client.submit_turn(&session, &turn(code)).await.unwrap();
        for _ in 0..=round % 4 {
            within(PATIENCE, host.called("echo")).await;
        }
        node.kill9();
        drop(host);
        node.restart().await.unwrap();
        let ended = turn_ended(&client, &session, &pending.id, PATIENCE).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Ok), "round {round}: {ended:?}");
        assert_eq!(ended.output.text, "gone\n");
    }
    assert_eq!(run_ok(&client, &session, "len(text)").await, "3000000\n");
}

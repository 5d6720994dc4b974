//! The life cycle of servers: an exit fails open calls, the server restarts, and nothing outlives the node.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass_client::protocol::api::{CloseQuery, ServerState, StopSessions};
use windlass_testkit::{Gate, PATIENCE, mcp_server, processes, turn, turn_ended, within};

use crate::{Place, with};

#[tokio::test]
async fn a_server_that_dies_fails_its_open_calls_at_once_and_comes_back() {
    let place = Place::start(json!({"shelf": mcp_server(&[])})).await;
    let session = place.session(&["*"]).await;
    place.sees(&session, "shelf.die").await;
    let first = place.server_once(|server| server.pid.is_some()).await.pid.unwrap();
    let gate = Gate::new("dies").unwrap();
    let other = place.session(&["*"]).await;
    let code = format!(
        "try:\n    tools.shelf.pass_gate(path={:?})\n\
         except tools.ToolHostGone as error:\n    print(error)\n",
        gate.path()
    );
    let open = place.client.submit_turn(&other, &turn(code)).await.unwrap().id;
    let _held = within(PATIENCE, gate.reached()).await.unwrap();
    let die = "try:\n    tools.shelf.die()\nexcept tools.ToolHostGone as e:\n    print(e)";
    // It waits for a second only.
    let (died, waiting) = tokio::join!(
        place.run(&session, die),
        place.server_once(|server| server.state == ServerState::Waiting)
    );
    assert_eq!(died, "the MCP server shelf ended before it answered\n");
    let ended = turn_ended(&place.client, &other, &open, PATIENCE).await.unwrap();
    assert_eq!(ended.output.text, died);
    assert_eq!((waiting.tools, waiting.pid), (0, None));
    assert!(waiting.restart_in_ms.unwrap() <= 1000);
    let reason = waiting.reason.unwrap();
    assert!(reason.contains("exit code 3") && reason.contains("a last word"), "{reason}");
    let again = place.server_once(|server| server.state == ServerState::Running).await;
    assert_eq!(again.restarts, 1);
    assert_ne!(again.pid, Some(first));
    place.sees(&session, "shelf.echo").await;
    assert_eq!(place.run(&session, "tools.shelf.echo(text='x')").await, "'x'\n");
}

#[tokio::test]
async fn pauses_between_restarts_of_a_failing_server_grow() {
    let place = Place::start(json!({"ruin": mcp_server(&["--dies"])})).await;
    // More than is left of any shorter pause. A busy machine may miss a pause, and finds a longer one.
    for least in [1, 1001, 2001] {
        let is_so_long = |left| left >= least;
        let server = place.server_once(|one| {
            one.state == ServerState::Waiting && one.restart_in_ms.is_some_and(is_so_long)
        });
        let server = server.await;
        let (left, restarts) = (server.restart_in_ms.unwrap(), server.restarts);
        assert!(left <= 1000 << restarts, "{left} ms after {restarts} restarts");
        let reason = server.reason.unwrap();
        assert!(reason.contains("exit code 7") && reason.contains("cellar"), "{reason}");
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_and_the_others_run() {
    let dumb = with(mcp_server(&["--dumb"]), json!({"start_wait_ms": 300}));
    let absent = json!({"command": "no-such-program-here"});
    let none = json!({"args": []});
    let place = Place::start(
        json!({"absent": absent, "dumb": dumb, "none": none, "shelf": mcp_server(&[])}),
    )
    .await;
    let session = place.session(&["*"]).await;
    place.sees(&session, "shelf.echo").await;
    let list = place
        .servers_once(|list| {
            let reasons = list.servers.iter().filter(|server| server.reason.is_some()).count();
            reasons == 3 && list.servers[3].state == ServerState::Running
        })
        .await;
    let reason = |at: usize| list.servers[at].reason.clone().unwrap();
    assert!(reason(0).contains("no-such-program-here: No such file"), "{}", reason(0));
    assert!(reason(1).contains("was not ready within 300 ms"), "{}", reason(1));
    assert!(reason(2).contains("neither a command nor a url"), "{}", reason(2));
    assert_eq!(list.servers[2].state, ServerState::Failed);
}

#[tokio::test]
async fn an_invalid_file_is_reported_and_the_node_keeps_running() {
    let place = Place::with_file("{", |builder| builder).await;
    let list = place.client.mcp_servers(Default::default()).await.unwrap();
    assert!(list.error.unwrap().contains("mcp.json is not understood"));
    let session = place.session(&["*"]).await;
    assert_eq!(place.run(&session, "1 + 1").await, "2\n");
    let log = std::fs::read_to_string(place.node.dirs().log()).unwrap();
    assert!(log.contains("there are no mcp servers"), "{log}");
}

#[tokio::test]
async fn a_flood_on_standard_error_stays_small_in_the_log() {
    let place = Place::start(json!({"shelf": mcp_server(&[])})).await;
    let session = place.session(&["*"]).await;
    place.sees(&session, "shelf.flood").await;
    assert_eq!(place.run(&session, "tools.shelf.flood(lines=100_000)").await, "'said'\n");
    assert_eq!(place.run(&session, "tools.shelf.flood(lines=10)").await, "'said'\n");
    let log = std::fs::read_to_string(place.node.dirs().log()).unwrap();
    let kept = log.matches("of a flood").count();
    assert!((1..=200).contains(&kept), "{kept} lines");
}

#[tokio::test]
async fn nothing_of_a_server_is_left_after_the_node_was_killed() {
    let mut place = Place::start(json!({"shelf": mcp_server(&[])})).await;
    let all = processes_of(&place).await;
    place.node.kill9();
    for pid in all {
        assert!(processes::wait_gone(pid, PATIENCE), "{:?}", processes::arguments(pid));
    }
}

#[tokio::test]
async fn a_server_that_ignores_signals_ends_with_a_stopping_node() {
    let mut place = Place::start(json!({"shelf": mcp_server(&["--heeds-nothing"])})).await;
    let all = processes_of(&place).await;
    let began = Instant::now();
    place.node.stop(StopSessions::End).await.unwrap();
    for pid in all {
        assert!(processes::wait_gone(pid, PATIENCE), "{:?}", processes::arguments(pid));
    }
    // Two grace periods, and not much more.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// The server, its holders, and a child of it that has left its process group and session.
async fn processes_of(place: &Place) -> Vec<u32> {
    let session = place.session(&["*"]).await;
    place.sees(&session, "shelf.child").await;
    let child = place.run(&session, "print(tools.shelf.child())").await.trim().parse().unwrap();
    let server = place.server_once(|server| server.pid.is_some()).await.pid.unwrap();
    let held = processes::descendants(place.node.pid());
    let held = held.into_iter().filter(|pid| {
        processes::arguments(*pid).get(1).is_some_and(|argument| argument == "hold-server")
    });
    let all: Vec<u32> = held.chain([server, child]).collect();
    assert_eq!(all.len(), 4, "a holder and its guard, the server and its child: {all:?}");
    assert!(all.iter().all(|pid| processes::alive(*pid)));
    all
}

#[tokio::test]
async fn servers_do_not_keep_an_unused_node_running() {
    let file = json!({"mcpServers": {"shelf": mcp_server(&[])}}).to_string();
    let place = Place::with_file(&file, |builder| builder.arg("--idle-exit").arg("6s")).await;
    // The session keeps the node alive until the server runs, which may take longer than the idle time.
    let session = place.session(&[]).await;
    let server = place.server_once(|server| server.pid.is_some()).await.pid.unwrap();
    place.client.close_session(&session, CloseQuery { grace_ms: Some(0) }).await.unwrap();
    assert!(processes::wait_gone(place.node.pid(), PATIENCE));
    assert!(processes::wait_gone(server, PATIENCE));
}

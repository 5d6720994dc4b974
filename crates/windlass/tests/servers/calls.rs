//! Calls: their results, their concurrency, and that one process serves all sessions.

use serde_json::{Value, json};
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::ServerState;
use windlass_testkit::{Gate, PATIENCE, mcp_server, processes, turn, turn_ended, within};

use crate::{Place, with};

/// Number of sessions that share one server.
const SESSIONS: usize = 100;

#[tokio::test]
async fn code_calls_a_servers_tools_under_names_that_it_can_write() {
    let place = Place::start(json!({"my-shelf": mcp_server(&["--pages", "3"])})).await;
    let session = place.session(&["my_shelf.*"]).await;
    place.sees(&session, "my_shelf.pass_gate").await;
    let said = place
        .run(
            &session,
            "print(tools.my_shelf.echo(text='one'))\n\
             print(tools.my_shelf.add(2, 3))\n\
             print(tools.my_shelf.picture()[1])\n\
             print(tools.search('add two numbers')[0]['name'])\n\
             try:\n    tools.my_shelf.fail()\n\
             except tools.ToolError as error:\n    print(repr(str(error)), error.code)\n",
        )
        .await;
    let expected = "one\n{'sum': 5}\n{'type': 'image', 'mime': 'image/png', 'data': 'AAAA'}\n\
                    my_shelf.add\n'the shelf is empty' tool_failed\n";
    assert_eq!(said, expected);
    let server = place.server_once(|server| server.calls == 4).await;
    assert_eq!((server.name.as_str(), server.group.as_str()), ("my-shelf", "my_shelf"));
    assert_eq!((server.state, server.tools, server.open_calls), (ServerState::Running, 11, 0));
}

#[tokio::test]
async fn a_hundred_sessions_share_one_process_and_their_calls_interleave() {
    let place = Place::start(json!({"shelf": mcp_server(&[])})).await;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(place.session(&["shelf.*"]).await);
    }
    place.sees(&sessions[0], "shelf.pass_gate").await;
    let gates: Vec<Gate> =
        sessions.iter().enumerate().map(|(at, _)| Gate::new(&format!("s{at}")).unwrap()).collect();
    let mut turns = Vec::new();
    for (session, gate) in sessions.iter().zip(&gates) {
        let code = format!("tools.shelf.pass_gate(path={:?})", gate.path());
        turns.push(place.client.submit_turn(session, &turn(code)).await.unwrap().id);
    }
    let (tell, mut told) = tokio::sync::mpsc::channel(SESSIONS);
    for (at, gate) in gates.into_iter().enumerate() {
        let tell = tell.clone();
        tokio::spawn(async move { tell.send((at, gate.reached().await.unwrap())).await });
    }
    // The order of the calls is not fixed. The first call ends after the second one has arrived, so that both
    // are in the server at once.
    let (first, held) = within(PATIENCE, told.recv()).await.unwrap();
    let mut pids = Vec::new();
    let mut held = Some(held);
    for _ in 1..SESSIONS {
        let (at, at_gate) = within(PATIENCE, told.recv()).await.unwrap();
        at_gate.open().await.unwrap();
        pids.push(answer(&place, &sessions[at], &turns[at]).await);
        if let Some(held) = held.take() {
            held.open().await.unwrap();
            pids.push(answer(&place, &sessions[first], &turns[first]).await);
        }
    }
    let pid = place.server_once(|server| server.calls == 100).await.pid.unwrap();
    assert!(pids.iter().all(|answered| *answered == pid.to_string()), "{pid}: {pids:?}");
    let script = processes::arguments(pid).into_iter().find(|arg| arg.ends_with(".py")).unwrap();
    let below = processes::descendants(place.node.pid());
    let is_server = |pid: &&u32| {
        let arguments = processes::arguments(**pid);
        arguments.contains(&script) && !arguments.iter().any(|arg| arg == "hold-server")
    };
    assert_eq!(below.iter().filter(is_server).count(), 1);
}

/// The value of the turn's last expression.
async fn answer(
    place: &Place,
    session: &SessionId,
    turn: &windlass_client::protocol::TurnId,
) -> String {
    let ended = turn_ended(&place.client, session, turn, PATIENCE).await.unwrap();
    ended.output.text.trim().trim_matches('\'').to_owned()
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_in_the_server() {
    let place = Place::start(json!({"shelf": mcp_server(&[])})).await;
    let session = place.session(&["*"]).await;
    place.sees(&session, "shelf.wait").await;
    let told = place.node.base().join("told");
    let code = format!(
        "try:\n    tools(deadline=1.0).shelf.wait(told={told:?})\n\
         except tools.ToolDeadlinePassed:\n    print('late')\n"
    );
    assert_eq!(place.run(&session, &code).await, "late\n");
    let server = place.server_once(|server| server.open_calls == 0 && server.calls == 1).await;
    assert_eq!(server.restarts, 0);
    // The server reads in order, so it has received the cancellation before it answers the next call.
    assert_eq!(place.run(&session, "tools.shelf.echo(text='x')").await, "'x'\n");
    let written =
        async { while std::fs::read_to_string(&told).unwrap_or_default() != "cancelled" {} };
    within(PATIENCE, written).await;
}

#[tokio::test]
async fn a_server_gets_its_own_environment_and_nothing_of_the_nodes() {
    let home = std::env::home_dir().unwrap();
    let entry = with(mcp_server(&[]), json!({"env": {"SHELF": "oak"}, "cwd": "/usr"}));
    let place = Place::with_file(&json!({"mcpServers": {"shelf": entry}}).to_string(), |builder| {
        builder.env("NODES_SECRET", "s3cret")
    })
    .await;
    let session = place.session(&["*"]).await;
    place.sees(&session, "shelf.facts").await;
    let said = place.run(&session, "import json\nprint(json.dumps(tools.shelf.facts()))").await;
    let facts: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(facts["cwd"], "/usr");
    let env = facts["env"].as_object().unwrap();
    assert_eq!(env["SHELF"], "oak");
    assert_eq!(env["HOME"], home.to_str().unwrap());
    assert!(
        !env.contains_key("NODES_SECRET") && !env.contains_key("WINDLASS_STATE_DIR"),
        "{env:?}"
    );
    let fds = facts["fds"].as_object().unwrap();
    assert!(
        fds.len() == 3 && fds.values().all(|to| to.as_str().unwrap().starts_with("pipe:")),
        "{fds:?}"
    );
}

#[tokio::test]
async fn a_server_that_has_one_more_tool_offers_it() {
    let place = Place::start(json!({"shelf": mcp_server(&[])})).await;
    let session = place.session(&["*"]).await;
    place.sees(&session, "shelf.grow").await;
    assert_eq!(place.run(&session, "tools.shelf.grow()").await, "'grown'\n");
    place.sees(&session, "shelf.grown").await;
    assert_eq!(place.run(&session, "tools.shelf.grown()").await, "'grown'\n");
}

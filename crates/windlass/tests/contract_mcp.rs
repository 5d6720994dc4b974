//! Contract lines 43, 44, 47 and 48 through `windlass mcp`, as agents start it: bridges come and go, and the
//! state of the node stays.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_client::protocol::api::{CloseQuery, CreateSession};
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_testkit::mcp::{STATELESS, WITH_A_BEGINNING, output_of, text_of};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{Gate, McpClient, OddNode, PATIENCE, TestNode, processes, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Number of agents at once.
const AGENTS: usize = 20;

/// One agent in this many also has a second session.
const WITH_AN_OWN_SESSION: usize = 5;

/// How long a bridge may take to exit after its client closed the input, on a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test]
async fn contract_43_agents_that_come_and_go_add_no_process_but_their_bridges() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let mut first = McpClient::start(&node).await.unwrap();
    assert_eq!(first.run_ok("n = 0; n").await, "0\n");
    node.await_environments().await.unwrap();
    let kept_ready = processes::kept_ready(node.pid());
    let before = &processes::belonging(node.base()) - &kept_ready;

    let mut agents = Vec::new();
    for number in 0..AGENTS {
        let revision = if number % 2 == 0 { STATELESS } else { WITH_A_BEGINNING[number % 3] };
        let mut agent = McpClient::builder(&node).revision(revision).start().await.unwrap();
        let listed = agent.request("tools/list", json!({})).await.unwrap().unwrap();
        assert_eq!(listed["tools"].as_array().unwrap().len(), 6, "{listed}");
        assert_eq!(agent.run_ok("n += 1; n").await, format!("{}\n", number + 1));
        agents.push(agent);
    }
    let own: BTreeSet<u32> = agents.iter().map(McpClient::pid).collect();
    assert_eq!(own.len(), AGENTS);
    let during = &processes::belonging(node.base()) - &kept_ready;
    assert_eq!(during, &before | &own, "20 agents brought more than themselves");

    for (number, mut agent) in agents.into_iter().enumerate() {
        if number % WITH_AN_OWN_SESSION == 0 {
            let session = json!(format!("own-{number}"));
            let ran = agent.call("run", json!({"code": "6 * 7", "session": session})).await;
            assert_eq!(output_of(&ran), "42\n");
            let ended = agent.call("reset", json!({"session": session, "end": true})).await;
            assert_eq!(ended["structuredContent"]["state"], "ended", "{ended}");
        }
        // Some bridges are closed, the others are killed.
        match number % 2 {
            0 => assert!(agent.close().await.unwrap().success()),
            _ => agent.kill9(),
        }
    }
    // Processes of the ended sessions may take a moment to exit.
    node.await_environments().await.unwrap();
    let kept_ready = processes::kept_ready(node.pid());
    for pid in &(&processes::belonging(node.base()) - &before) - &kept_ready {
        let gone = tokio::task::spawn_blocking(move || processes::wait_gone(pid, PATIENCE));
        assert!(gone.await.unwrap(), "left is {pid}, {:?}", processes::arguments(pid));
    }
    let kept_ready = processes::kept_ready(node.pid());
    assert_eq!(&processes::belonging(node.base()) - &kept_ready, before);
    assert_eq!(first.run_ok("n").await, format!("{AGENTS}\n"));
}

#[tokio::test]
async fn contract_44_first_agents_at_the_same_instant_give_one_node_and_each_an_answer() {
    let place = TestNode::builder(PROGRAM).prepare().unwrap();
    let mut agents = Vec::new();
    for _ in 0..AGENTS {
        agents.push(McpClient::builder(&place).revision(STATELESS).hold().unwrap());
    }
    let mut asked = Vec::new();
    for agent in &mut agents {
        agent.write_line("go").unwrap();
        let code = "n = globals().get('n', 0) + 1; n";
        let call = json!({"name": "run", "arguments": {"code": code}});
        asked.push(agent.send("tools/call", call).unwrap());
    }
    let (mut sessions, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (agent, id) in agents.iter_mut().zip(asked) {
        let reply = agent.answer(id).await.unwrap().unwrap();
        assert_eq!(reply["structuredContent"]["outcome"], "ok", "{reply}");
        sessions.insert(reply["structuredContent"]["session"].to_string());
        numbers.insert(output_of(&reply).trim().parse::<usize>().unwrap());
    }
    // They are the same agent in the same directory: one session, in which each ran once.
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!(numbers, (1..=AGENTS).collect());
    let status = place.client().await.unwrap().node_status().await.unwrap();
    assert_eq!(nodes_of(&place), BTreeSet::from([status.pid]));
    let log = fs::read_to_string(place.dirs().log()).unwrap();
    assert_eq!(log.matches("the node serves").count(), 1, "{log}");
    assert_eq!(log.matches("the node cannot run").count(), 0, "{log}");
}

#[tokio::test]
async fn contract_44_a_session_whose_bridge_dies_during_creation_is_there_for_the_next() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    for number in 0..8 {
        let id = SessionId::parse(format!("made-{number}")).unwrap();
        let create = CreateSession { id: Some(id.clone()), ..TestNode::create() };
        let body = serde_json::to_vec(&create).unwrap();
        // Like a bridge that is killed at this point: it sends the request and does not live to read the
        // reply.
        let mut gone = RawHttp::connect(&node.dirs().socket()).await.unwrap();
        gone.write(&request("POST", "/v1/sessions", &body)).await.unwrap();
        // After two more exchanges the node has noticed the end of the bridge. Creating a session takes
        // longer than that.
        for _ in 0..2 {
            client.node_status().await.unwrap();
        }
        drop(gone);
        match within(PATIENCE, client.create_session(&create)).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.api_code(), Some(ErrorCode::SessionExists), "{error}"),
        }
        assert_eq!(run_ok(&client, &id, "6 * 7").await, "42\n");
        client.close_session(&id, CloseQuery { grace_ms: Some(0) }).await.unwrap();
    }
}

#[tokio::test]
async fn contract_47_a_bridge_ends_with_its_client_and_leaves_the_node_and_its_turns() {
    let place = TestNode::builder(PROGRAM).prepare().unwrap();
    let gate = Gate::new("bridge").unwrap();
    // This bridge starts the node, and waits for its turn when its client exits.
    let mut agent = McpClient::builder(&place).with_gates().start().await.unwrap();
    assert_eq!(agent.run_ok("x = 40").await, "");
    let code = format!("{}x + 2", gate.python());
    agent.send("tools/call", json!({"name": "run", "arguments": {"code": code}})).unwrap();
    let running = within(PATIENCE, gate.reached()).await.unwrap();
    let nodes = nodes_of(&place);
    ends_well_and_soon(agent).await;
    assert_eq!((nodes.len(), nodes_of(&place)), (1, nodes));

    running.open().await.unwrap();
    let mut next = McpClient::builder(&place).with_gates().start().await.unwrap();
    let reply = next.call("continue", json!({})).await;
    assert_eq!((output_of(&reply), is_error(&reply)), ("42\n", false), "{reply}");

    // Other bridges exit as well: idle ones, and ones that have not received a message yet.
    ends_well_and_soon(next).await;
    ends_well_and_soon(McpClient::start(&place).await.unwrap()).await;
    ends_well_and_soon(McpClient::builder(&place).spawn().unwrap()).await;
    ends_well_and_soon(McpClient::builder(&place).revision(STATELESS).spawn().unwrap()).await;
    assert_eq!(nodes_of(&place).len(), 1);
}

async fn ends_well_and_soon(agent: McpClient) {
    let began = Instant::now();
    let status = agent.close().await.unwrap();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(began.elapsed() < ENDS_WITHIN, "it took {:?}", began.elapsed());
}

#[tokio::test]
async fn contract_47_an_idle_node_exits_and_the_next_call_of_a_bridge_starts_it_again() {
    let node = TestNode::builder(PROGRAM).arg("--idle-exit").arg("2s").start().await.unwrap();
    let mut agent = McpClient::start(&node).await.unwrap();
    assert_eq!(agent.run_ok("6 * 7").await, "42\n");
    let ended = agent.call("reset", json!({"end": true})).await;
    assert_eq!(ended["structuredContent"]["state"], "ended", "{ended}");
    let pid = node.pid();
    let gone = tokio::task::spawn_blocking(move || processes::wait_gone(pid, PATIENCE));
    assert!(gone.await.unwrap(), "the idle node stays, for a bridge that asks nothing");
    assert!(processes::alive(agent.pid()), "the bridge went with the node");

    let reply = agent.run("6 * 7").await;
    assert_eq!((output_of(&reply), is_error(&reply)), ("42\n", false), "{reply}");
    assert!(text_of(&reply).contains("the previous session ended"), "{reply}");
    let nodes = nodes_of(&node);
    assert!(nodes.len() == 1 && !nodes.contains(&pid), "{nodes:?}");
}

#[tokio::test]
async fn contract_47_a_bridge_goes_on_when_the_node_is_killed_between_calls_and_in_one() {
    for revision in [STATELESS, "2025-11-25"] {
        let mut node = TestNode::start(PROGRAM).await.unwrap();
        let gate = Gate::new("killed").unwrap();
        let builder = McpClient::builder(&node).with_gates().revision(revision);
        let mut agent = builder.start().await.unwrap();
        assert_eq!(agent.run_ok("x = 40").await, "");
        let pid = node.pid();
        node.kill9();
        let reply = agent.run("x").await;
        assert_eq!((output_of(&reply), is_error(&reply)), ("40\n", false), "{revision}: {reply}");
        let second = only_node_of(&node);
        assert_ne!(second, pid);

        // Now while the bridge waits for a reply.
        let code = format!("print('before', flush=True)\n{}x += 2\nx", gate.python());
        let call = json!({"name": "run", "arguments": {"code": code}});
        let id = agent.send("tools/call", call).unwrap();
        let running = within(PATIENCE, gate.reached()).await.unwrap();
        processes::kill(second);
        assert!(processes::wait_gone(second, PATIENCE));
        running.open().await.unwrap();
        let reply = agent.answer(id).await.unwrap().unwrap();
        assert_eq!(output_of(&reply), "before\n42\n", "{revision}: {reply}");
        assert_eq!(agent.run_ok("x").await, "42\n", "{revision}: it ran twice");
        assert_ne!(only_node_of(&node), second);
    }
}

#[tokio::test]
async fn contract_48_a_node_of_another_version_is_an_error_of_the_tool_with_its_remedy() {
    for (said, named) in [("windlass-api: 2.0\r\n", "2.0"), ("", "an unnamed version")] {
        let place = TestNode::builder(PROGRAM).prepare().unwrap();
        let _other = OddNode::start(&place, said).unwrap();
        for revision in [STATELESS, "2025-06-18"] {
            let builder = McpClient::builder(&place).revision(revision);
            let mut agent = builder.start().await.unwrap();
            for (tool, arguments) in [("run", json!({"code": "1"})), ("sessions", json!({}))] {
                let reply = agent.call(tool, arguments).await;
                assert!(is_error(&reply), "{reply}");
                for part in ["version_mismatch", "1.0", named, "the same release"] {
                    assert!(text_of(&reply).contains(part), "{part:?} is not in {reply}");
                }
            }
            // Only the node has the wrong version; the bridge still serves.
            let listed = agent.request("tools/list", json!({})).await.unwrap();
            assert!(listed.is_ok(), "{listed:?}");
            assert!(agent.close().await.unwrap().success());
        }
    }
}

fn is_error(reply: &Value) -> bool {
    reply["isError"] == json!(true)
}

/// The node processes of this directory.
fn nodes_of(place: &TestNode) -> BTreeSet<u32> {
    processes::nodes(place.base())
}

fn only_node_of(place: &TestNode) -> u32 {
    let nodes = nodes_of(place);
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    nodes.into_iter().next().unwrap()
}

//! Line 100: any node answers for any session.

use std::path::PathBuf;

use serde_json::{Value, json};
use windlass_client::files::Expect;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CloseQuery, OutputQuery};
use windlass_testkit::mcp::output_of;
use windlass_testkit::{
    McpClient, PATIENCE, TestFleet, TestFleetPlan, eventually, named_turn, run_ok, within,
};

use crate::calls::Calls;
use crate::http::{HttpAsk, HttpSaid, ask};
use crate::{SEEN_WITHIN, create, id, named, start};

/// The size of a file and of an output that go through another node.
const LARGE_BYTES: usize = 8 * 1024 * 1024;

/// Reads of a session. `SEQ` is the sequence number of a display.
const READS: [&str; 17] = [
    "",
    "/turns/value",
    "/turns/value?wait_ms=1000&output_bytes_max=2",
    "/events",
    "/events?after=2&limit=3",
    "/output",
    "/output?turn=value",
    "/output?from=1&to=3",
    "/output?tail=4",
    "/output/search?query=ou",
    "/egress",
    "/secrets",
    "/tools",
    "/displays/SEQ",
    "/files",
    "/files?recursive=true&limit=1",
    "/files/a/one.txt",
];

/// Reads that a restart of the node does not change.
const KEPT: [&str; 4] = ["/turns/value", "/output?turn=value", "/displays/SEQ", "/files/a/one.txt"];

/// Requests about a session that are refused: method, path, body, status and code.
const REFUSED: [(&str, &str, &str, u16, &str); 14] = [
    ("GET", "/turns/none", "", 404, "turn_not_found"),
    ("GET", "/turns/value?wait_ms=x", "", 400, "bad_request"),
    ("GET", "/turns/a%20b", "", 400, "bad_request"),
    ("GET", "/nothing", "", 404, "not_found"),
    ("GET", "/displays/999999", "", 404, "not_found"),
    ("GET", "/files/none.txt", "", 404, "file_not_found"),
    ("GET", "/files/..%2fone.txt", "", 403, "path_refused"),
    ("PUT", "", "", 405, "method_not_allowed"),
    ("POST", "/turns", "{]", 400, "bad_request"),
    ("POST", "/turns", "{\"code\": 1}", 400, "bad_request"),
    ("POST", "/turns", "{\"code\": \"1\", \"id\": \"a b\"}", 400, "bad_request"),
    ("POST", "/turns/value/input", "{\"text\": \"x\"}", 409, "turn_not_running"),
    ("POST", "/interrupt", "", 409, "turn_not_running"),
    ("POST", "/fork", "{\"copy\": 1}", 400, "bad_request"),
];

#[tokio::test]
async fn contract_100_every_call_gives_the_same_result_through_each_node() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let owner = fleet.node(0).base().to_owned();
    let mut lists = Vec::new();
    for (door, name) in clients.iter().zip(["through-owner", "through-other"]) {
        let session = create(&clients[0], name).await;
        lists.push(Calls::all(door, &session, &owner).await);
    }
    are_equal(&lists[0], &lists[1]);

    fleet.restart(0).await.unwrap();
    fleet.joined(0).await.unwrap();
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "after-restart").await;
    // The other node's connections to the owner ended with the owner's process.
    let list = Calls::all(&clients[1], &session, &owner).await;
    are_equal(&lists[0], &list);
}

/// Compares call by call, so that a difference names its call.
#[track_caller]
fn are_equal(through_owner: &[(&str, Value)], through_other: &[(&str, Value)]) {
    let names = |list: &[(&str, Value)]| -> Vec<String> {
        list.iter().map(|(call, _)| (*call).to_owned()).collect()
    };
    assert_eq!(names(through_owner), names(through_other));
    for ((call, owner), (_, other)) in through_owner.iter().zip(through_other) {
        assert_eq!(owner, other, "{call}: the owner's answer, and that of the other node");
    }
}

/// A session of the first node, and its display.
struct Looked {
    session: SessionId,
    display: u64,
}

impl Looked {
    /// Asks both nodes, whose replies must be the same byte for byte.
    async fn ask_both(&self, fleet: &TestFleet, request: HttpAsk<'_>) -> HttpSaid {
        let path = request.path.replace("SEQ", &self.display.to_string());
        let path = format!("/v1/sessions/{}{path}", self.session);
        let request = HttpAsk { path: &path, ..request };
        let owner = ask(&fleet.node(0).dirs().socket(), request).await;
        let other = ask(&fleet.node(1).dirs().socket(), request).await;
        assert_eq!(owner, other, "{request:?}: the owner's reply, and that of the other node");
        owner
    }

    async fn read(&self, fleet: &TestFleet, path: &str) -> HttpSaid {
        let said = self.ask_both(fleet, HttpAsk::get(path)).await;
        assert_eq!(said.status, 200, "{path}: {said:?}");
        said
    }
}

#[tokio::test]
async fn contract_100_reads_and_refusals_are_the_same_bytes_from_each_node() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let client = fleet.client(0).await.unwrap();
    let session = create(&client, "read").await;
    let code = "x = 20; print('out'); _ = display('<b>one</b>', mime='text/html'); x";
    let ran = within(PATIENCE, client.run_turn(&session, named_turn("value", code))).await.unwrap();
    client.put_file(&session, "a/one.txt", "first", &Expect::Anything).await.unwrap();
    let looked = Looked { session: session.clone(), display: ran.displays[0].seq.0 };

    for path in READS {
        looked.read(&fleet, path).await;
    }
    for (method, path, body, status, code) in REFUSED {
        let said = looked.ask_both(&fleet, HttpAsk { method, path, accept: "*/*", body }).await;
        assert_eq!(said.refusal(), (status, code.to_owned()), "{method} {path} {body}");
    }
    let mut kept = Vec::new();
    for path in KEPT {
        kept.push(looked.read(&fleet, path).await);
    }
    fleet.restart(0).await.unwrap();
    let other = fleet.client(1).await.unwrap();
    let ran = eventually(SEEN_WITHIN, async || {
        other.run_turn(&session, named_turn("after-restart", "x")).await
    });
    assert_eq!(ran.await.output.text, "20\n");
    for path in READS {
        looked.read(&fleet, path).await;
    }
    for (path, before) in KEPT.into_iter().zip(kept) {
        assert_eq!(looked.read(&fleet, path).await, before, "{path} after the restart");
    }
    other.close_session(&session, CloseQuery::default()).await.unwrap();
    // The stream of an ended session ends.
    let stream = HttpAsk { accept: "text/event-stream", ..HttpAsk::get("/events") };
    let said = looked.ask_both(&fleet, stream).await;
    let text = String::from_utf8(said.body).unwrap();
    assert!(text.contains("\"session_ended\""), "{text}");
    assert_eq!(said.headers["content-type"], "text/event-stream");
    for path in READS {
        looked.ask_both(&fleet, HttpAsk::get(path)).await;
    }
    is_unknown_everywhere(&fleet).await;
}

/// A session that no node has, and a name that another node has.
async fn is_unknown_everywhere(fleet: &TestFleet) {
    for node in fleet.nodes() {
        for (method, path) in [
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/events"),
            ("GET", "/output"),
            ("POST", "/interrupt"),
            ("GET", "/files"),
        ] {
            let path = format!("/v1/sessions/none{path}");
            let request = HttpAsk { method, path: &path, accept: "*/*", body: "" };
            let said = ask(&node.dirs().socket(), request).await;
            let refusal = said.refusal();
            assert_eq!(refusal, (404, "session_not_found".to_owned()), "{method} {path}");
        }
    }
    let clients = fleet.clients().await.unwrap();
    create(&clients[1], "taken").await;
    for client in &clients {
        let refused = client.create_session(&named("taken")).await.unwrap_err();
        assert_eq!(refused.code(), "session_exists", "{refused:?}");
    }
}

#[tokio::test]
async fn contract_100_large_bodies_pass_through_another_node_whole() {
    let Some(fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create(&clients[0], "large").await;
    let content: Vec<u8> = (0..LARGE_BYTES).map(|at| (at * 31 + at / 251) as u8).collect();
    let put = clients[1].put_file(&session, "large", content.clone(), &Expect::Anything);
    let written = within(PATIENCE, put).await.unwrap();
    assert_eq!(written.bytes, LARGE_BYTES as u64);
    for client in &clients {
        let read = within(PATIENCE, client.read_file(&session, "large")).await.unwrap();
        assert!(read == content, "{} bytes, or others", read.len());
    }
    let code = format!("print('abcdefgh' * {})", LARGE_BYTES / 8);
    let ran = within(PATIENCE, clients[1].run_turn(&session, named_turn("much", code))).await;
    assert_eq!(ran.unwrap().output.bytes, LARGE_BYTES as u64 + 1);
    let mut output = Vec::new();
    while output.len() <= LARGE_BYTES {
        let from = Some(output.len() as u64);
        let query = OutputQuery { from, ..OutputQuery::default() };
        let slice = within(PATIENCE, clients[1].output(&session, &query)).await.unwrap();
        assert!(!slice.bytes.is_empty() && slice.dropped == 0, "{} bytes", output.len());
        output.extend_from_slice(&slice.bytes);
    }
    assert_eq!(output.len(), LARGE_BYTES + 1);
    assert!(output.chunks(8).take(LARGE_BYTES / 8).all(|part| part == b"abcdefgh"));
}

/// A client in the same directory has the same session, at whichever node it asks.
#[tokio::test]
async fn contract_100_an_agent_reaches_its_session_through_the_door_of_another_node() {
    let Some(fleet) = start(TestFleetPlan::short(2)).await else { return };
    let directory = tempfile::tempdir().unwrap();
    for (number, node) in fleet.nodes().iter().enumerate() {
        let agent = McpClient::builder(node).directory(directory.path().to_path_buf());
        let mut agent = agent.start().await.unwrap();
        let code = "n = globals().get('n', 0) + 1; n";
        let ran = agent.call("run", json!({"code": code})).await;
        assert_eq!(output_of(&ran), format!("{}\n", number + 1), "{ran}");
        assert!(agent.close().await.unwrap().success());
    }
}

/// Each node also creates sessions: an owner is not a special node.
#[tokio::test]
async fn contract_100_each_node_owns_sessions_and_passes_on_requests() {
    let Some(fleet) = start(TestFleetPlan::short(3)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let directories: Vec<PathBuf> =
        fleet.nodes().iter().map(|node| node.dirs().state.clone()).collect();
    for (owner, client) in clients.iter().enumerate() {
        let name = format!("of-{owner}");
        let session = create(client, &name).await;
        run_ok(client, &session, "n = 0").await;
        for (count, door) in clients.iter().enumerate() {
            let said = run_ok(door, &id(&name), "n += 1; n").await;
            assert_eq!(said, format!("{}\n", count + 1), "{name}");
            let workspace = PathBuf::from(door.session(&session).await.unwrap().workspace);
            assert!(workspace.starts_with(&directories[owner]), "{}", workspace.display());
        }
    }
    let status = clients[0].node_status().await.unwrap();
    assert_eq!(status.sessions, 1, "a node counts the sessions that it has");
}

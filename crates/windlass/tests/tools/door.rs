//! Which clients may attach as a host, what a host may send, and how its connection ends.

use serde_json::{Value, json};
use windlass_client::protocol::api::{CloseQuery, StopSessions};
use windlass_client::protocol::host::Declaration;
use windlass_client::protocol::limits::{FRAME_BYTES_MAX, HOST_TOOLS_MAX};
use windlass_client::protocol::{ErrorCode, Owner, frame};
use windlass_client::tools::{DisconnectReason, HostMessage, ToolHost, ToolScope};
use windlass_client::{Client, RemoteNode, Token};
use windlass_testkit::{PATIENCE, TestNode, within};

use crate::socket::{BINARY, CLOSE, LAST, Socket, TEXT, head};
use crate::{PROGRAM, start, start_session};

fn owner() -> ToolScope {
    ToolScope::Owner(Owner::parse("me").unwrap())
}

fn declaration(tools: Value) -> Declaration {
    serde_json::from_value(json!({ "tools": tools })).unwrap()
}

#[tokio::test]
async fn a_host_is_welcomed_first_and_its_tools_are_counted() {
    let (node, client) = start().await;
    let mut socket = Socket::attach(&node.dirs().socket(), "?owner=me").await;
    let (welcome, _) = socket.hear().await;
    assert_eq!(welcome["kind"], "welcome");
    assert_eq!(welcome["api"], client.node_status().await.unwrap().api);
    let declared = br#"{"tools": [{"name": "a"}, {"name": "files.read", "new_field": 1}]}"#;
    socket.say(json!({"kind": "tools", "new_field": 2}), declared).await;
    assert_eq!(socket.hear().await.0, json!({"kind": "tools_accepted", "count": 2}));
    // In pieces, as a large message arrives. The node ignores unknown parts.
    socket.say(json!({"kind": "tools", "more": true}), &declared[..20]).await;
    socket.say(json!({"kind": "newer_word", "x": [1]}), b"any").await;
    socket.say(json!({"kind": "tools"}), &declared[20..]).await;
    assert_eq!(socket.hear().await.0, json!({"kind": "tools_accepted", "count": 2}));
    // A reply to no pending call is ignored.
    let late = json!({"kind": "tool_result", "session": "none", "turn": 1, "call": 1, "ok": true});
    socket.say(late, b"1").await;
    assert!(socket.is_alive().await);
    // A message in two WebSocket fragments is one message.
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, &json!({"kind": "tools"}), br#"{"tools": []}"#).unwrap();
    socket.send(BINARY, &bytes[..9]).await;
    socket.send(LAST, &bytes[9..]).await;
    assert_eq!(socket.hear().await.0, json!({"kind": "tools_accepted", "count": 0}));
    socket.send(LAST | CLOSE, &1000u16.to_be_bytes()).await;
    assert_eq!(socket.close_code().await, Some(1000));
}

#[tokio::test]
async fn an_invalid_offer_is_refused_and_the_connection_stays_open() {
    let (_node, client) = start().await;
    let mut host = ToolHost::attach(&client, &owner()).await.unwrap();
    assert_eq!(host.declare(&declaration(json!([{"name": "a"}]))).await.unwrap(), 1);
    let many: Vec<Value> = (0..=HOST_TOOLS_MAX).map(|n| json!({"name": format!("t{n}")})).collect();
    let large = json!({"x": "y".repeat(65_536)});
    let endless = "x".repeat(5 * 1024 * 1024);
    for (tools, code) in [
        (json!([{"name": "a b"}]), ErrorCode::BadRequest),
        (json!([{"name": "windlass.list"}]), ErrorCode::BadRequest),
        (json!([{"name": "a"}, {"name": "a"}]), ErrorCode::BadRequest),
        (json!([{"name": "a", "input_schema": large}]), ErrorCode::MessageTooLarge),
        (json!([{"name": "a", "description": endless}]), ErrorCode::MessageTooLarge),
        (json!(many), ErrorCode::MessageTooLarge),
    ] {
        let refused = host.declare(&declaration(tools)).await.unwrap_err();
        assert_eq!(refused.api_code(), Some(code), "{refused}");
    }
    let largest: Vec<Value> = (0..1000)
        .map(|n| json!({"name": format!("t{n}"), "description": "d".repeat(4000)}))
        .collect();
    assert_eq!(host.declare(&declaration(json!(largest))).await.unwrap(), 1000);
    host.close().await;
}

#[tokio::test]
async fn unknown_messages_are_refused() {
    let (node, _client) = start().await;
    let mut socket = Socket::attach(&node.dirs().socket(), "?owner=me").await;
    socket.hear().await;
    for (header, body) in [
        (json!({"kind": "tools"}), &b"nonsense"[..]),
        (json!({"kind": "tools"}), br#"{"tools": [{"name": 7}]}"#),
        (json!({"kind": "tool_result", "session": "s"}), b"1"),
        (json!({"no": "kind"}), b""),
        (json!("text"), b""),
    ] {
        socket.say(header.clone(), body).await;
        let (answer, _) = socket.hear().await;
        assert_eq!((&answer["kind"], &answer["code"]), (&json!("refused"), &json!("bad_request")));
    }
    assert!(socket.is_alive().await);
}

#[tokio::test]
async fn an_invalid_frame_closes_the_connection() {
    let (node, client) = start().await;
    let mut whole = Vec::new();
    frame::encode(&mut whole, &json!({"kind": "tools"}), br#"{"tools": []}"#).unwrap();
    let twice = [whole.clone(), whole.clone()].concat();
    let lying = [&u32::MAX.to_be_bytes()[..], &whole[4..]].concat();
    for (what, first, payload, code) in [
        ("text", LAST | TEXT, b"{}".to_vec(), 1003),
        ("nothing", LAST | BINARY, Vec::new(), 1002),
        ("half a frame", LAST | BINARY, whole[..whole.len() - 1].to_vec(), 1002),
        ("two frames", LAST | BINARY, twice, 1002),
        ("a frame that lies", LAST | BINARY, lying, 1002),
        ("too much", LAST | BINARY, vec![b' '; FRAME_BYTES_MAX + 5], 1002),
        ("an unknown kind of message", LAST | 3, Vec::new(), 1002),
    ] {
        let mut socket = Socket::attach(&node.dirs().socket(), "?owner=me").await;
        socket.send(first, &payload).await;
        assert_eq!(socket.close_code().await, Some(code), "{what}");
        socket.send(LAST | CLOSE, &code.to_be_bytes()).await;
        assert_eq!(socket.next().await, None, "{what}");
    }
    let mut socket = Socket::attach(&node.dirs().socket(), "?owner=me").await;
    let unmasked = [head(LAST | BINARY, whole.len()), whole].concat();
    socket.send_bytes(&unmasked).await;
    assert_eq!(socket.close_code().await, Some(1002), "not masked");
    client.node_status().await.unwrap();
}

#[tokio::test]
async fn only_a_session_that_lives_or_an_owner_can_be_attached_to() {
    let (node, client, session) = start_session().await;
    let socket = node.dirs().socket();
    for (query, connection, status) in [
        ("", "upgrade", 400),
        ("?owner=me&session=s", "upgrade", 400),
        ("?owner=a/b", "upgrade", 400),
        ("?owner=", "upgrade", 400),
        ("?session=-", "upgrade", 400),
        ("?session=none", "upgrade", 404),
        ("?owner=me", "keep-alive", 400),
        ("?owner=me", "keep-alive, Upgrade", 101),
    ] {
        let (answered, _) = Socket::ask(&socket, query, connection).await;
        assert_eq!(answered, status, "{query} {connection}");
    }
    let scope = ToolScope::Session(session.clone());
    let mut host = ToolHost::attach(&client, &scope).await.unwrap();
    client.close_session(&session, CloseQuery::default()).await.unwrap();
    match within(PATIENCE, host.next()).await {
        HostMessage::Closed(DisconnectReason::ByNode { code: 1000, .. }) => {}
        other => panic!("{other:?}"),
    }
    let ended = ToolHost::attach(&client, &scope).await.unwrap_err();
    assert_eq!(ended.api_code(), Some(ErrorCode::SessionEnded));
}

#[tokio::test]
async fn hosts_of_a_stopping_node_are_told_to_reconnect() {
    let (mut node, client, session) = start_session().await;
    let scopes = [ToolScope::Session(session), owner()];
    let mut hosts = Vec::new();
    for scope in &scopes {
        hosts.push(ToolHost::attach(&client, scope).await.unwrap());
    }
    node.stop(StopSessions::Keep).await.unwrap();
    for host in &mut hosts {
        match within(PATIENCE, host.next()).await {
            HostMessage::Closed(DisconnectReason::ByNode { code: 1001, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    for scope in &scopes {
        ToolHost::attach(&client, scope).await.unwrap();
    }
}

#[tokio::test]
async fn over_tcp_a_host_needs_the_nodes_token() {
    let node = TestNode::builder(PROGRAM).arg("--listen").arg("127.0.0.1:0").start().await.unwrap();
    let status = node.client().await.unwrap().node_status().await.unwrap();
    let url = format!("http://{}", status.listen.unwrap());
    let tokens = [
        (Token::parse(&"0".repeat(64)).unwrap(), Some(ErrorCode::Unauthorized)),
        (Token::read(&node.dirs().token()).unwrap(), None),
    ];
    for (token, refused) in tokens {
        let remote = RemoteNode::new(&url, &token).unwrap();
        let client = Client::connect_remote(remote, node.dirs().clone()).await.unwrap();
        match ToolHost::attach(&client, &owner()).await {
            Ok(mut host) => {
                assert_eq!(refused, None);
                assert_eq!(host.declare(&declaration(json!([{"name": "a"}]))).await.unwrap(), 1);
            }
            Err(error) => assert_eq!(error.api_code(), refused, "{error}"),
        }
    }
}

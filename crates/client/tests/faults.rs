//! How a client behaves when connections, versions and nodes fail, tested against a stub node that
//! fails on demand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stub;

use std::time::Duration;

use stub::{Reply, Stub, Then, json};
use tempfile::TempDir;
use windlass_client::protocol::api::{StopSessions, SubmitTurn, TurnInput, TurnQuery};
use windlass_client::protocol::{ErrorCode, EventKind, Seq, SessionId, TurnId};
use windlass_client::{Client, ClientError, Dirs, StartNode};

const TURN: &str = r#"{"id":"t1","session":"s","number":1,"state":"ended","outcome":"ok","output":{"text":"2","bytes":1,"from":0}}"#;
const STOPPING: &str = r#"{"code":"shutting_down","message":"m","remedy":"r","retryable":true}"#;

fn dirs() -> (TempDir, Dirs) {
    let base = tempfile::Builder::new().prefix("wl-").tempdir_in("/tmp").unwrap();
    let dirs = Dirs::at(base.path().join("r"), base.path().join("s")).unwrap();
    (base, dirs)
}

async fn client(dirs: &Dirs) -> Client {
    Client::connect(dirs.clone(), StartNode::Never).await.unwrap()
}

fn session() -> SessionId {
    SessionId::parse("s").unwrap()
}

fn turn_id() -> TurnId {
    TurnId::parse("t1").unwrap()
}

fn event(seq: u64, kind: &str) -> String {
    format!(r#"{{"seq":{seq},"at_ms":0,{kind}}}"#)
}

fn output(seq: u64) -> String {
    event(seq, r#""turn":1,"kind":"output","stream":"stdout","text":"x","bytes":1"#)
}

fn session_ended(seq: u64) -> String {
    event(seq, r#""kind":"session_ended","reason":"closed""#)
}

#[tokio::test]
async fn warm_requests_share_one_connection() {
    let (_base, dirs) = dirs();
    let mut stub = Stub::start(&dirs, |_, _| json(200, TURN));
    let client = client(&dirs).await;
    for _ in 0..50 {
        client.turn(&session(), &turn_id(), TurnQuery::default()).await.unwrap();
    }
    assert_eq!(stub.connections(|now| now.open > 0).await.opened, 1);
}

#[tokio::test]
async fn at_most_sixteen_idle_connections_are_kept() {
    let (_base, dirs) = dirs();
    let mut stub = Stub::start(&dirs, |_, _| json(200, r#"{"status":"ok"}"#));
    let client = client(&dirs).await;
    let asking: Vec<_> = (0..40)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.health().await })
        })
        .collect();
    for asked in asking {
        asked.await.unwrap().unwrap();
    }
    let settled = stub.connections(|now| now.opened >= 16 && now.open <= 16);
    tokio::time::timeout(Duration::from_secs(10), settled).await.unwrap();
}

#[tokio::test]
async fn a_read_is_repeated_when_its_connection_is_cut() {
    let (_base, dirs) = dirs();
    let stub =
        Stub::start(&dirs, |before, _| if before < 2 { Reply::Cut } else { json(200, TURN) });
    let client = client(&dirs).await;
    let turn = client.turn(&session(), &turn_id(), TurnQuery::default()).await.unwrap();
    assert_eq!(turn.id, turn_id());
    assert_eq!(stub.seen().len(), 3);
}

#[tokio::test]
async fn a_turn_with_a_chosen_id_is_sent_again_and_one_without_is_not() {
    let (_base, dirs) = dirs();
    let stub =
        Stub::start(&dirs, |before, _| if before == 1 { json(200, TURN) } else { Reply::Cut });
    let client = client(&dirs).await;
    let chosen =
        SubmitTurn { id: Some(turn_id()), code: "1+1".to_owned(), ..SubmitTurn::default() };
    client.submit_turn(&session(), &chosen).await.unwrap();
    assert_eq!(stub.seen().len(), 2);
    assert_eq!(stub.seen()[0].body, stub.seen()[1].body);

    let unnamed = SubmitTurn { code: "1+1".to_owned(), ..SubmitTurn::default() };
    let error = client.submit_turn(&session(), &unnamed).await.unwrap_err();
    assert!(matches!(error, ClientError::Cut { .. }), "{error:?}");
    let input = TurnInput { text: Some("x\n".to_owned()), ..TurnInput::default() };
    let error = client.send_input(&session(), &turn_id(), &input).await.unwrap_err();
    assert!(matches!(error, ClientError::Cut { .. }), "{error:?}");
    assert_eq!(stub.seen().len(), 4);
}

#[tokio::test]
async fn a_node_that_is_about_to_stop_is_asked_again() {
    let (_base, dirs) = dirs();
    let stub = Stub::start(
        &dirs,
        |before, _| {
            if before < 3 { json(503, STOPPING) } else { json(200, TURN) }
        },
    );
    let client = client(&dirs).await;
    let unnamed = SubmitTurn { code: "1+1".to_owned(), ..SubmitTurn::default() };
    client.submit_turn(&session(), &unnamed).await.unwrap();
    assert_eq!(stub.seen().len(), 4);
}

#[tokio::test]
async fn a_poll_sees_nothing_of_a_node_that_goes_and_comes_back() {
    let (_base, dirs) = dirs();
    let stub = Stub::start(&dirs, |_, _| Reply::Hang);
    let client = client(&dirs).await;
    let polling = tokio::spawn({
        let client = client.clone();
        async move { client.turn(&session(), &turn_id(), TurnQuery::default()).await }
    });
    while stub.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    stub.stop().await;
    let _next = Stub::start(&dirs, |_, _| json(200, TURN));
    assert_eq!(polling.await.unwrap().unwrap().id, turn_id());
}

#[tokio::test]
async fn an_absent_node_is_reported_at_once_by_connect_and_after_a_bounded_time_by_a_request() {
    let (_base, dirs) = dirs();
    let error = Client::connect(dirs.clone(), StartNode::Never).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    assert_eq!(error.code(), "unreachable");

    let stub = Stub::start(&dirs, |_, _| Reply::Cut);
    let client = client(&dirs).await.with_retry_for(Duration::from_millis(50));
    stub.stop().await;
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    let error = client.stop_node(StopSessions::End).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn an_error_of_the_api_is_passed_on_whole_and_the_connection_lives() {
    let (_base, dirs) = dirs();
    let mut stub = Stub::start(&dirs, |before, _| match before {
        0 => json(404, r#"{"code":"turn_not_found","message":"m","remedy":"r","retryable":false}"#),
        1 => json(500, "oops"),
        _ => json(200, TURN),
    });
    let client = client(&dirs).await;
    let (session, turn) = (session(), turn_id());
    let ask = || client.turn(&session, &turn, TurnQuery::default());
    let error = ask().await.unwrap_err();
    assert_eq!(error.api_code(), Some(ErrorCode::TurnNotFound));
    assert_eq!((error.to_string(), error.remedy()), ("m".to_owned(), "r".to_owned()));
    let error = ask().await.unwrap_err();
    assert!(matches!(error, ClientError::BadAnswer { .. }), "{error:?}");
    ask().await.unwrap();
    assert_eq!(stub.connections(|now| now.open > 0).await.opened, 1);
}

#[tokio::test]
async fn a_node_of_another_version_is_named_with_the_remedy() {
    for (said, shown) in [(Some("2.3"), "the node speaks 2.3"), (None, "an unnamed version")] {
        let (_base, dirs) = dirs();
        let answer = Reply::Whole { api: said, status: 200, body: TURN.to_owned() };
        let stub = Stub::start(&dirs, move |_, _| answer.clone());
        let error = client(&dirs).await.health().await.unwrap_err();
        assert!(matches!(error, ClientError::VersionMismatch { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("this client speaks API 1.0") && text.contains(shown), "{text}");
        assert!(error.remedy().contains("windlass down --keep-sessions"));
        assert_eq!(stub.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_node_with_a_newer_minor_version_works() {
    let (_base, dirs) = dirs();
    let _stub = Stub::start(&dirs, |_, _| Reply::Whole {
        api: Some("1.7"),
        status: 200,
        body: r#"{"status":"ok"}"#.to_owned(),
    });
    client(&dirs).await.health().await.unwrap();
}

#[tokio::test]
async fn events_resume_after_a_cut_without_loss_or_doubles() {
    let (_base, dirs) = dirs();
    let stub = Stub::start(&dirs, |before, _| match before {
        0 => Reply::Events { data: vec![output(1), output(2)], then: Then::Cut },
        1 => Reply::Cut,
        // The node repeats event 2: it cannot know that the client received it.
        2 => Reply::Events { data: vec![output(2), output(3)], then: Then::Close },
        3 => json(200, &format!(r#"{{"events":[{}],"after":4,"ended":false}}"#, output(4))),
        _ => Reply::Events { data: vec![session_ended(5)], then: Then::Close },
    });
    let mut events = client(&dirs).await.events(&session(), Seq(0));
    let mut seqs = Vec::new();
    let mut last = None;
    while let Some(item) = events.next().await.unwrap() {
        seqs.push(item.event.seq.0);
        last = Some(item.event.kind);
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
    assert!(matches!(last, Some(EventKind::SessionEnded { .. })));
    let paths: Vec<_> = stub.seen().into_iter().map(|seen| seen.path).collect();
    let expected = [0, 2, 2, 3, 4].map(|after| format!("/v1/sessions/s/events?after={after}"));
    assert_eq!(paths, expected);
}

#[tokio::test]
async fn following_a_session_that_has_nothing_more_to_say_ends() {
    let (_base, dirs) = dirs();
    let _stub = Stub::start(&dirs, |before, _| match before {
        0 => Reply::Events { data: vec![], then: Then::Close },
        _ => json(200, r#"{"events":[],"after":9,"ended":true}"#),
    });
    let mut events = client(&dirs).await.events(&session(), Seq(9));
    assert_eq!(events.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_node_that_ends_every_stream_at_once_is_an_error_in_the_end() {
    let (_base, dirs) = dirs();
    let _stub = Stub::start(&dirs, |_, _| Reply::Events { data: vec![], then: Then::Cut });
    let mut events = client(&dirs).await.events(&session(), Seq(0));
    let error = events.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Cut { .. }), "{error:?}");
}

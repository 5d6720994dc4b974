//! Telemetry: a collector gets the spans of sessions, turns and calls, and a collector that fails changes nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod collector;

use std::io::ErrorKind;
use std::net::TcpListener;

use collector::{CollectorReply, ReceivedPart, ReceivedSpan, TestCollector};
use serde_json::json;
use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CloseQuery, StopSessions};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{
    PATIENCE, TestNode, TestNodeBuilder, TestToolHost, eventually, run, run_ok, within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A node whose spans go to this URL.
fn node_with(url: &str) -> TestNodeBuilder {
    TestNode::builder(PROGRAM).env(ENDPOINT, url)
}

async fn close(client: &Client, session: &SessionId) {
    let closed = client.close_session(session, CloseQuery::default());
    within(PATIENCE, closed).await.unwrap();
}

/// Runs code as a turn of a client with this header, and returns the output.
async fn traced_turn(node: &TestNode, session: &SessionId, header: &str, code: &str) -> String {
    let body = json!({"code": code, "wait_ms": 10_000}).to_string();
    let bytes = request("POST", &format!("/v1/sessions/{session}/turns"), body.as_bytes());
    let text = String::from_utf8(bytes).unwrap();
    let text =
        text.replacen("host: node\r\n", &format!("host: node\r\ntraceparent: {header}\r\n"), 1);
    let mut http = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    http.write(text.as_bytes()).await.unwrap();
    let (status, turn) = within(PATIENCE, http.answer()).await.unwrap();
    assert_eq!((status, turn["outcome"].as_str()), (200, Some("ok")), "{turn}");
    turn["output"]["text"].as_str().unwrap().trim().to_owned()
}

fn named<'a>(spans: &'a [ReceivedSpan], name: &str) -> Vec<&'a ReceivedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn is_session(span: &ReceivedSpan) -> bool {
    span.name == "session"
}

#[tokio::test]
async fn a_collector_gets_spans_with_their_parents() {
    let mut collector = TestCollector::start(CollectorReply::Take).await;
    let node = node_with(&collector.url())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b")
        .env("OTEL_SERVICE_NAME", "test")
        .start()
        .await
        .unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let host = TestToolHost::offer(&client, &session, &["echo"], |call| async move {
        Ok(call.arguments["value"].clone())
    });
    let _host = host.await.unwrap();
    run_ok(&client, &session, "print(await tools.echo(value=7))").await;
    run(&client, &session, "1 / 0").await;
    let header = format!("00-{TRACE}-{SPAN}-01");
    let code = "import os; print(os.environ.get('TRACEPARENT'))";
    let seen = traced_turn(&node, &session, &header, code).await;
    close(&client, &session).await;
    let spans = collector.spans_until(is_session).await;

    let (whole, turns) = (named(&spans, "session")[0], named(&spans, "turn"));
    let [own, failed, traced] = turns[..] else { panic!("{turns:?}") };
    assert_eq!(whole.parent, "");
    assert_eq!(whole.attributes["windlass.session.id"], session.as_str());
    let [start] = named(&spans, "session_start")[..] else { panic!("{spans:?}") };
    assert!(start.attributes.contains_key("windlass.session.started_by"), "{start:?}");
    for span in [start, own, failed] {
        assert_eq!((&span.trace, &span.parent), (&whole.trace, &whole.span), "{span:?}");
        assert!(span.began <= span.ended && whole.began <= span.began, "{span:?}");
    }
    assert_eq!((own.failure.as_str(), failed.failure.as_str()), ("", "error"));
    assert_eq!(own.attributes["windlass.turn.usage.output_bytes"], "2");
    // The worker itself asks for the tool's description before its first call.
    let [asked, call] = named(&spans, "tool_call")[..] else { panic!("{spans:?}") };
    for (call, name) in [(asked, "windlass.describe"), (call, "echo")] {
        assert_eq!((&call.trace, &call.parent), (&own.trace, &own.span));
        assert_eq!(call.attributes["windlass.tool.name"], name);
    }

    assert_eq!((traced.trace.as_str(), traced.parent.as_str()), (TRACE, SPAN));
    assert_eq!(traced.link, Some((whole.trace.clone(), whole.span.clone())));
    assert_eq!(seen, format!("00-{TRACE}-{}-01", traced.span));
    let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.span).collect();
    assert_eq!(ids.len(), spans.len(), "every span has an id of its own");
    let shown = format!("{spans:?}");
    assert!(!shown.contains("ZeroDivision") && !shown.contains("os.environ"), "{shown}");
}

#[tokio::test]
async fn requests_have_the_headers_and_the_name_of_the_service() {
    let mut collector = TestCollector::start(CollectorReply::Take).await;
    let url = collector.url();
    let config = format!("[telemetry]\nendpoint = \"{url}/base\"\nservice_name = \"test\"\n");
    let builder = TestNode::builder(PROGRAM).config(config).env(ENDPOINT, "");
    let node = builder.env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b").start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    close(&client, &session).await;
    let ReceivedPart::Head(head) = collector.next().await else { panic!("a head comes first") };
    assert_eq!(head[0], "POST /base/v1/traces HTTP/1.1");
    for line in ["content-type: application/x-protobuf", "x-key: a b"] {
        assert!(head.iter().any(|one| one == line), "{line}: {head:?}");
    }
    let ReceivedPart::Resource(service) = collector.next().await else {
        panic!("then the service")
    };
    assert_eq!(service["service.name"], "test");
}

#[tokio::test]
async fn a_header_that_is_not_of_the_standard_counts_as_absent() {
    let mut collector = TestCollector::start(CollectorReply::Take).await;
    let node = node_with(&collector.url()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let twice = format!("00-{TRACE}-{SPAN}-01\r\ntraceparent: 00-{TRACE}-{SPAN}-01");
    for header in ["", "00-x", "ff-1", &"0".repeat(4000), &twice] {
        assert_eq!(traced_turn(&node, &session, header, "print(1)").await, "1");
    }
    close(&client, &session).await;
    let spans = collector.spans_until(is_session).await;
    let (whole, turns) = (named(&spans, "session")[0], named(&spans, "turn"));
    assert_eq!(turns.len(), 5);
    assert!(turns.iter().all(|turn| turn.trace == whole.trace && turn.parent == whole.span));
}

#[tokio::test]
async fn a_session_stays_in_its_trace_when_the_node_is_replaced() {
    let mut collector = TestCollector::start(CollectorReply::Take).await;
    let mut node = node_with(&collector.url()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "x = 1").await;
    let before = collector.spans_until(|span| span.name == "turn").await;
    node.kill9();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    run_ok(&client, &session, "x").await;
    close(&client, &session).await;
    let after = collector.spans_until(is_session).await;
    let (first, second) = (named(&before, "turn")[0], named(&after, "turn")[0]);
    let whole = named(&after, "session")[0];
    for turn in [first, second] {
        assert_eq!((&turn.trace, &turn.parent), (&whole.trace, &whole.span));
    }
    assert_ne!(first.span, second.span);
}

#[tokio::test]
async fn a_span_in_the_environment_of_a_session_stays_also_when_the_node_is_replaced() {
    let collector = TestCollector::start(CollectorReply::Take).await;
    let mut node = node_with(&collector.url()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let mut create = TestNode::create();
    create.env.insert("TRACEPARENT".to_owned(), "mine".to_owned());
    let session = client.create_session(&create).await.unwrap().session.id;
    let code = "import os; print(os.environ['TRACEPARENT'])";
    assert_eq!(run_ok(&client, &session, code).await.trim(), "mine");
    node.kill9();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    assert_eq!(run_ok(&client, &session, code).await.trim(), "mine");
    close(&client, &session).await;
}

#[tokio::test]
async fn what_waits_is_sent_when_the_node_stops() {
    let mut collector = TestCollector::start(CollectorReply::Take).await;
    let mut node = node_with(&collector.url()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "1").await;
    node.stop(StopSessions::End).await.unwrap();
    let spans = collector.spans_until(is_session).await;
    assert_eq!(named(&spans, "turn").len(), 1);
}

/// Runs turns on a node whose collector fails, and stops the node.
async fn turns_run_with(url: &str) -> TestNode {
    let node = node_with(url).start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    for number in 0..20 {
        assert_eq!(
            run_ok(&client, &session, &format!("{number}")).await.trim(),
            number.to_string()
        );
    }
    close(&client, &session).await;
    node
}

async fn a_failing_collector_changes_nothing(answer: CollectorReply) {
    let mut collector = TestCollector::start(answer).await;
    let mut node = turns_run_with(&collector.url()).await;
    // The node has tried.
    let ReceivedPart::Head(_) = collector.next().await else { panic!("a head comes first") };
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    assert_eq!(run_ok(&client, &session, "6 * 7").await.trim(), "42");
    node.stop(StopSessions::End).await.unwrap();
}

#[tokio::test]
async fn a_collector_that_is_unavailable_changes_nothing() {
    a_failing_collector_changes_nothing(CollectorReply::Unavailable).await;
}

#[tokio::test]
async fn a_collector_that_sends_garbage_changes_nothing() {
    a_failing_collector_changes_nothing(CollectorReply::Garbage).await;
}

#[tokio::test]
async fn a_collector_that_never_answers_changes_nothing() {
    a_failing_collector_changes_nothing(CollectorReply::Silent).await;
}

#[tokio::test]
async fn spans_that_are_refused_are_dropped_and_counted() {
    let collector = TestCollector::start(CollectorReply::Refuse).await;
    let node = turns_run_with(&collector.url()).await;
    let client = node.client().await.unwrap();
    eventually(PATIENCE, async || {
        let metrics = client.metrics().await.map_err(|error| error.to_string())?;
        let prefix = "windlass_telemetry_spans_total{result=\"dropped\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(prefix));
        // The start of the session, 20 turns, and the session.
        if line == Some("22") { Ok(()) } else { Err(format!("{line:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_collector_that_is_not_there_changes_nothing() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut node = turns_run_with(&format!("http://127.0.0.1:{port}")).await;
    node.stop(StopSessions::End).await.unwrap();
}

/// The names of the threads of a process.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter_map(|name| Some(name.ok()?.trim().to_owned())).collect()
}

#[tokio::test]
async fn without_an_endpoint_there_is_no_thread_no_connection_and_no_metric() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let config = "[telemetry]\nservice_name = \"test\"\n";
    let off = TestNode::builder(PROGRAM).env(ENDPOINT, "").config(config).start();
    let mut off = off.await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let invalid = node_with(&url).env("OTEL_EXPORTER_OTLP_HEADERS", "no value").start();
    let mut invalid = invalid.await.unwrap();
    for node in [&mut off, &mut invalid] {
        let client = node.client().await.unwrap();
        let session = node.session(&client).await.unwrap().id;
        let seen = run_ok(&client, &session, "import os; os.environ.get('TRACEPARENT')").await;
        assert_eq!(seen.trim(), "");
        let names = threads(node.pid());
        assert!(!names.iter().any(|name| name == "telemetry"), "{names:?}");
        let metrics = client.metrics().await.unwrap();
        assert!(!metrics.contains("windlass_telemetry_spans_total{"), "{metrics}");
        node.stop(StopSessions::End).await.unwrap();
    }
    let refused = listener.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::WouldBlock));
}

#[tokio::test]
async fn a_node_with_telemetry_has_its_thread() {
    let collector = TestCollector::start(CollectorReply::Take).await;
    let node = node_with(&collector.url()).start().await.unwrap();
    assert!(threads(node.pid()).iter().any(|name| name == "telemetry"));
}

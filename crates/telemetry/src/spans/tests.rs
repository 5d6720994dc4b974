//! Spans of sequences of reports.

use std::sync::Arc;

use windlass_protocol::SessionId;

use super::*;

fn session(parent: Option<TraceParent>, sample: f64) -> Arc<SessionIdentity> {
    let id = SessionId::parse("a@acme").unwrap();
    Arc::new(SessionIdentity::new(id, "python".to_owned(), 1000, parent, sample))
}

fn caller(sampled: bool) -> TraceParent {
    TraceParent { trace: TraceId([9; 16]), span: SpanId([8; 8]), sampled }
}

fn accepted(turn: u64, parent: Option<TraceParent>) -> Fact {
    let id = TurnId::chosen(format!("t{turn}")).unwrap();
    Fact::TurnAccepted { turn: TurnNo(turn), id, parent }
}

fn ended(turn: u64, outcome: Outcome, code: Option<ErrorCode>) -> Fact {
    let usage = Usage { wall_ms: 40.0, cpu_ms: 3.5, peak_rss_bytes: 7, output_bytes: 9 };
    Fact::TurnEnded { turn: TurnNo(turn), outcome, code, usage }
}

fn called(turn: u64, call: u64) -> Fact {
    Fact::ToolCall { turn: TurnNo(turn), call: CallNo(call), name: "search".to_owned() }
}

fn answered(turn: u64, call: u64, code: Option<ErrorCode>) -> Fact {
    let (turn, call, ok) = (TurnNo(turn), CallNo(call), code.is_none());
    Fact::ToolEnded { turn, call, ok, code, bytes: 5, wall_ms: 20.0 }
}

/// The spans of facts, the first at 2000 ms and each a second after the one before it.
fn spans(session: &Arc<SessionIdentity>, facts: Vec<Fact>) -> Vec<FinishedSpan> {
    let (mut builder, mut spans) = (SpanBuilder::default(), Vec::new());
    for (at_ms, fact) in (2..).map(|second| second * 1000).zip(facts) {
        let report = SessionReport { session: session.clone(), facts: vec![(at_ms, fact)] };
        builder.take(report, &mut spans);
    }
    assert!(builder.turns.is_empty(), "{builder:?}");
    spans
}

fn attribute<'a>(span: &'a FinishedSpan, name: &str) -> Option<&'a AttributeValue> {
    span.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

#[test]
fn a_session_has_spans_of_its_start_its_turns_and_their_calls() {
    let session = session(None, 1.0);
    let found = spans(
        &session,
        vec![
            Fact::WorkerReady { start: StartedBy::Pool, restarts: 0 },
            accepted(1, None),
            called(1, 1),
            answered(1, 1, None),
            ended(1, Outcome::Ok, None),
            Fact::SessionEnded { reason: EndReason::Closed },
        ],
    );
    let rows: Vec<_> = found
        .iter()
        .map(|span| (span.name, span.began_at_ms, span.ended_at_ms, span.failure))
        .collect();
    let expected = [
        ("session_start", 1000, 2000, None),
        ("tool_call", 4000, 5000, None),
        ("turn", 3000, 6000, None),
        ("session", 1000, 7000, None),
    ];
    assert_eq!(rows, expected);
    let [start, call, turn, whole] = &found[..] else { panic!("{found:?}") };
    assert!(found.iter().all(|span| span.trace == session.trace));
    assert_eq!((whole.span, whole.parent), (session.span, None));
    assert_eq!(start.parent, Some(whole.span));
    assert_eq!((turn.parent, turn.span), (Some(whole.span), session.turn_span(TurnNo(1))));
    assert_eq!(call.parent, Some(turn.span));
    for (span, name, value) in [
        (start, "windlass.session.started_by", "pool"),
        (call, "windlass.tool.name", "search"),
        (turn, "windlass.turn.id", "t1"),
        (turn, "windlass.turn.outcome", "ok"),
        (whole, "windlass.session.id", "a@acme"),
        (whole, "windlass.session.tenant", "acme"),
        (whole, "windlass.session.end_reason", "closed"),
    ] {
        assert_eq!(attribute(span, name), Some(&value.into()), "{name}");
    }
    let bytes = AttributeValue::Number(9);
    assert_eq!(attribute(turn, "windlass.turn.usage.output_bytes"), Some(&bytes));
}

#[test]
fn a_turn_of_a_traced_client_is_in_the_clients_trace_and_links_to_its_session() {
    let session = session(None, 1.0);
    let parent = caller(true);
    let facts = vec![
        accepted(1, Some(parent)),
        called(1, 1),
        answered(1, 1, None),
        ended(1, Outcome::Ok, None),
    ];
    let found = spans(&session, facts);
    let [call, turn] = &found[..] else { panic!("{found:?}") };
    assert_eq!((turn.trace, turn.parent), (parent.trace, Some(parent.span)));
    assert_eq!((turn.kind, turn.link), (SpanKind::Server, Some((session.trace, session.span))));
    assert_eq!((call.trace, call.parent), (parent.trace, Some(turn.span)));
}

#[test]
fn only_what_is_sampled_becomes_a_span() {
    let all = |parent| {
        vec![
            Fact::WorkerReady { start: StartedBy::Exec, restarts: 0 },
            accepted(1, parent),
            called(1, 1),
            Fact::Egress { turn: None, host: "a.org".to_owned(), port: 443, allowed: true },
            answered(1, 1, None),
            ended(1, Outcome::Ok, None),
            Fact::SessionEnded { reason: EndReason::Idle },
        ]
    };
    for (sample, of_turn, expected) in [
        (0.0, None, vec![]),
        (0.0, Some(caller(false)), vec![]),
        (0.0, Some(caller(true)), vec!["tool_call", "turn"]),
        (1.0, Some(caller(false)), vec!["session_start", "egress", "session"]),
        (1.0, None, vec!["session_start", "egress", "tool_call", "turn", "session"]),
    ] {
        let found = spans(&session(None, sample), all(of_turn));
        let names: Vec<&str> = found.iter().map(|span| span.name).collect();
        assert_eq!(names, expected, "{sample} {of_turn:?}");
    }
}

#[test]
fn failures_are_named_by_their_codes() {
    let session = session(None, 1.0);
    let refused = Fact::Egress { turn: None, host: "a.org".to_owned(), port: 443, allowed: false };
    let file = FileTransfer {
        direction: FileDirection::Upload,
        path: "data/in.csv".to_owned(),
        bytes: None,
        began_at_ms: 1500,
        parent: None,
    };
    for (facts, expected) in [
        (vec![ended(1, Outcome::Error, None)], "error"),
        (vec![ended(1, Outcome::Error, Some(ErrorCode::DiskFull))], "disk_full"),
        (vec![ended(1, Outcome::TimedOut, None)], "timed_out"),
        (vec![answered(1, 1, Some(ErrorCode::ToolHostGone))], "tool_host_gone"),
        (vec![refused], "refused"),
        (vec![Fact::File(Box::new(file))], "failed"),
        (vec![Fact::SessionEnded { reason: EndReason::KeeperLost }], "keeper_lost"),
    ] {
        let found = spans(&session, facts);
        assert_eq!(found.iter().map(|span| span.failure).collect::<Vec<_>>(), [Some(expected)]);
    }
}

#[test]
fn a_turn_that_an_earlier_node_accepted_begins_by_its_wall_time() {
    let found = spans(&session(None, 1.0), vec![ended(7, Outcome::Ok, None)]);
    assert_eq!((found[0].began_at_ms, found[0].ended_at_ms), (1960, 2000));
    assert_eq!(attribute(&found[0], "windlass.turn.id"), Some(&"7".into()));
}

#[test]
fn nothing_stays_open_of_a_session_that_ends_or_leaves() {
    for last in [Fact::SessionEnded { reason: EndReason::KeeperLost }, Fact::Released] {
        // `spans` looks at what is open in the end.
        spans(&session(None, 1.0), vec![accepted(1, None), accepted(2, None), called(1, 1), last]);
    }
}

#[test]
fn what_a_hostile_session_reports_is_bounded() {
    let session = session(None, 1.0);
    let (mut builder, mut found) = (SpanBuilder::default(), Vec::new());
    let calls = (0..2 * OPEN_CALLS_MAX as u64).map(|call| (1, called(1, call)));
    let facts = std::iter::once((1, accepted(1, None))).chain(calls).collect();
    builder.take(SessionReport { session: session.clone(), facts }, &mut found);
    assert_eq!(builder.turns[&(session.span, TurnNo(1))].calls.len(), OPEN_CALLS_MAX);
    let host = "é".repeat(TEXT_BYTES_MAX);
    let facts = vec![(2, Fact::Egress { turn: None, host, port: 1, allowed: true })];
    builder.take(SessionReport { session, facts }, &mut found);
    match attribute(&found[0], "windlass.egress.host") {
        Some(AttributeValue::Text(text)) => assert_eq!(text.len(), TEXT_BYTES_MAX),
        other => panic!("{other:?}"),
    }
    for wall_ms in [f64::NAN, f64::INFINITY, -1.0, f64::MAX] {
        assert!(before(5, wall_ms) <= 5, "{wall_ms}");
    }
}

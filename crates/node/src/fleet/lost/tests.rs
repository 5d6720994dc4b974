//! Tests of folding a copy into a session, and of pages of a copy.

use windlass_protocol::event::{EventKind, Outcome, Stream, Usage};
use windlass_protocol::{Event, TurnId, TurnNo};

use super::*;
use crate::event_stream::sse;

fn lost() -> LostSession {
    let session = SessionId::parse("s1").unwrap();
    LostSession { session, node: NodeName::parse("n1").unwrap(), incarnation: Revision(7) }
}

fn created_comment() -> Vec<u8> {
    let created = NewSession {
        created_at_ms: 1_234,
        workspace: "/srv/team/s1".to_owned(),
        worker_kind: "python".to_owned(),
        spec: serde_json::json!({ "idle_s": 9, "owner": "team" }),
        ..nothing_known(&lost())
    };
    format!(": {CREATED}{}\n\n", serde_json::to_string(&created).unwrap()).into_bytes()
}

fn event(seq: u64, turn: Option<u64>, kind: EventKind, body: &'static str) -> (Event, Bytes) {
    let turn = turn.map(TurnNo);
    (
        Event { seq: Seq(seq), at_ms: seq, turn, link: None, kind },
        Bytes::from_static(body.as_bytes()),
    )
}

/// The events of a session with one turn, of whose output a part is left out.
fn turn() -> Vec<(Event, Bytes)> {
    let id = TurnId::chosen("t1").unwrap();
    let accepted = EventKind::TurnAccepted { id, deadline_ms: None, more: false, context: None };
    let output = EventKind::Output { stream: Stream::Stdout, background: false };
    let reason = windlass_protocol::event::DropReason::NotCopied;
    let ended = EventKind::TurnEnded {
        outcome: Outcome::Ok,
        error: None,
        usage: Usage::default(),
        receipt: None,
        refusal: None,
        exit_code: None,
        value: None,
    };
    vec![
        event(2, Some(1), accepted, "print(1)"),
        event(3, Some(1), output.clone(), "head"),
        event(8, Some(1), EventKind::OutputDropped { bytes: 100, reason }, ""),
        event(9, Some(1), output, "tail!"),
        event(10, Some(1), ended, ""),
    ]
}

/// The session that the batches fold into.
fn fold(batches: &[Bytes]) -> Session {
    let mut fold = CopyFold::default();
    for batch in batches {
        fold.add(batch).unwrap();
    }
    fold.session(&lost(), Some(Seq(10))).unwrap()
}

#[test]
fn a_copy_folds_into_the_session_wherever_its_batches_begin() {
    let frames: Vec<Bytes> = turn().into_iter().map(|event| sse(vec![event])).collect();
    for split in 0..=frames.len() {
        let mut first = created_comment();
        first.extend_from_slice(&frames[..split].concat());
        let session = fold(&[first.into(), frames[split..].concat().into()]);
        assert_eq!((session.kind.as_str(), session.workspace.as_str()), ("python", "/srv/team/s1"));
        assert_eq!((session.created_at_ms, session.idle_s), (1_234, Some(9)));
        assert_eq!(session.owner.map(String::from).as_deref(), Some("team"));
        assert_eq!((session.turns, session.seq), (1, Seq(10)));
        assert_eq!((session.output_bytes, session.output_dropped_bytes), (109, 100));
        assert_eq!(session.state, SessionState::Ended);
        let ended = session.ended.unwrap();
        assert_eq!(ended.reason, EndReason::Lost);
        let message = ended.message.unwrap();
        assert_eq!(message, "node n1 was lost; events up to 10 were copied");
        let receipt = ended.receipt.unwrap();
        assert!(receipt.kept[0].contains("up to event 10"), "{receipt:?}");
        assert!(receipt.lost.iter().any(|lost| lost.contains("variables")), "{receipt:?}");
    }
}

#[test]
fn a_session_whose_end_was_copied_ended_for_its_own_reason() {
    let reason = EndReason::Closed;
    let end = EventKind::SessionEnded { reason, message: None, receipt: None };
    let mut batch = created_comment();
    batch.extend_from_slice(&sse(vec![event(2, None, end, "")]));
    assert_eq!(fold(&[batch.into()]).ended.unwrap().reason, EndReason::Closed);
}

#[test]
fn a_copy_is_complete_with_the_end_of_its_session() {
    let reason = EndReason::Closed;
    let end = EventKind::SessionEnded { reason, message: None, receipt: None };
    let end = sse(vec![event(11, None, end, "")]);
    let later = b"id: 12\ndata: {\"seq\":12,\"at_ms\":1,\"kind\":\"unheard_of\"}\n\n".to_vec();
    for (batch, expected) in [
        ([sse(turn()), end.clone()].concat(), true),
        (sse(turn()).to_vec(), false),
        ([end.to_vec(), later].concat(), false),
        (created_comment(), false),
    ] {
        assert_eq!(ends_session(&batch.into()).unwrap(), expected);
    }
}

#[test]
fn an_event_of_a_later_release_is_passed_over() {
    let mut batch = created_comment();
    batch.extend_from_slice(b"id: 1\ndata: {\"seq\":1,\"at_ms\":1,\"kind\":\"unheard_of\"}\n\n");
    batch.extend_from_slice(&sse(turn()));
    assert_eq!(fold(&[batch.into()]).turns, 1);
}

#[test]
fn a_session_without_a_copy_still_has_an_end() {
    let session = CopyFold::default().session(&lost(), None).unwrap();
    let ended = session.ended.unwrap();
    assert_eq!((session.seq, ended.reason), (Seq(0), EndReason::Lost));
    assert_eq!(ended.receipt.unwrap().kept, Vec::<String>::new());
}

#[test]
fn a_batch_that_is_no_event_stream_is_an_error() {
    for batch in ["id: 1\ndata: {}", "data: {}\n\n", ": created {}\n\n"] {
        let added = CopyFold::default().add(&Bytes::from_static(batch.as_bytes()));
        assert!(added.is_err(), "{batch}");
    }
}

#[test]
fn only_what_is_recorded_can_be_read() {
    let output = LostQuestion::Recorded(RecordedPart::Output);
    let display = LostQuestion::Recorded(RecordedPart::Display(Seq(7)));
    for (method, path, question) in [
        (Method::GET, "/v1/sessions/s1", Some(LostQuestion::Session)),
        (Method::GET, "/v1/sessions/s1/events?after=3", Some(LostQuestion::Events)),
        (Method::DELETE, "/v1/sessions/s1", None),
        (Method::POST, "/v1/sessions/s1/turns", None),
        (Method::GET, "/v1/sessions/s1/output?tail=5", Some(output)),
        (Method::GET, "/v1/sessions/s1/output/search?query=x", Some(output)),
        (Method::GET, "/v1/sessions/s1/output/other", None),
        (Method::GET, "/v1/sessions/s1/turns/t1", Some(output)),
        (Method::POST, "/v1/sessions/s1/turns/t1/input", None),
        (Method::GET, "/v1/sessions/s1/turns/t1/input", None),
        (Method::GET, "/v1/sessions/s1/displays/7", Some(display)),
        (Method::GET, "/v1/sessions/s1/displays/x", None),
        (Method::GET, "/v1/sessions/s1/files/a", None),
        (Method::GET, "/v1/sessions/s1/events/1", None),
        (Method::GET, "/v1/tools/host?session=s1", None),
    ] {
        let uri: Uri = path.parse().unwrap();
        assert_eq!(LostQuestion::of(&method, &uri), question, "{method} {path}");
    }
}

#[test]
fn the_refusal_says_where_the_copy_ends_and_is_read() {
    let failure = lost().refusal(Some(Seq(41)));
    assert_eq!(failure.code, ErrorCode::SessionLost);
    for part in ["n1", "up to 41", "/v1/sessions/s1/events"] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
    assert!(lost().refusal(None).message.contains("no events"));
}

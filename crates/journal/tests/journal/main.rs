//! The journal through its public interface: appended events are read back after crashes, cuts and restarts.

mod cost;
mod disk;
mod following;
mod indexing;
mod output;
mod quota;
mod recovery;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use windlass_journal::{
    Journal, JournalOptions, NewEvent, NewSession, OutputRange, OutputScope, QUOTA_BYTES_DEFAULT,
    SessionLog, SessionReader,
};
use windlass_protocol::event::{EndReason, EventKind, Outcome, Stream, Usage};
use windlass_protocol::{Event, LinkSeq, Seq, SessionId, TurnId, TurnNo};

fn open(dir: &Path) -> Journal {
    let options = JournalOptions { index_gather: Duration::from_millis(5) };
    Journal::open(dir, options).expect("the journal opens")
}

fn id(text: &str) -> SessionId {
    SessionId::parse(text).expect("a good id")
}

fn turn_id(text: &str) -> TurnId {
    TurnId::parse(text).expect("a good id")
}

fn new_session(name: &str) -> NewSession {
    NewSession {
        id: id(name),
        created_at_ms: 1_000,
        workspace: "/work".into(),
        worker_kind: "python".into(),
        spec: serde_json::json!({"env": {"A": "1"}}),
        quota_bytes: QUOTA_BYTES_DEFAULT,
    }
}

fn create(journal: &Journal, name: &str) -> SessionLog {
    journal.create(new_session(name)).expect("the session is new")
}

fn event(turn: Option<u64>, kind: EventKind, body: &[u8]) -> NewEvent {
    let body = Bytes::copy_from_slice(body);
    NewEvent { at_ms: 2_000, turn: turn.map(TurnNo), link: None, kind, body }
}

fn accepted(turn: u64, code: &str) -> NewEvent {
    let kind = EventKind::TurnAccepted {
        id: turn_id(&format!("t{turn}")),
        deadline_ms: None,
        more: false,
        context: None,
    };
    event(Some(turn), kind, code.as_bytes())
}

fn accepted_part(turn: u64, code: &str) -> NewEvent {
    let kind = EventKind::TurnAccepted {
        id: turn_id(&format!("t{turn}")),
        deadline_ms: None,
        more: true,
        context: None,
    };
    event(Some(turn), kind, code.as_bytes())
}

fn output(turn: u64, bytes: &[u8]) -> NewEvent {
    let kind = EventKind::Output { stream: Stream::Stdout, background: false };
    NewEvent { link: Some(LinkSeq(7)), ..event(Some(turn), kind, bytes) }
}

fn background(turn: u64, bytes: &[u8]) -> NewEvent {
    event(Some(turn), EventKind::Output { stream: Stream::Stdout, background: true }, bytes)
}

fn display(turn: u64, name: Option<&str>, update: bool, more: bool, bytes: &[u8]) -> NewEvent {
    let (mime, id) = ("image/png".to_owned(), name.map(str::to_owned));
    event(Some(turn), EventKind::Display { mime, id, update, more }, bytes)
}

fn ended(turn: u64) -> NewEvent {
    let kind = EventKind::TurnEnded {
        outcome: Outcome::Ok,
        error: None,
        usage: Usage { wall_ms: 1.5, ..Usage::default() },
        receipt: None,
        refusal: None,
        exit_code: None,
        value: None,
    };
    event(Some(turn), kind, b"")
}

fn session_ended() -> NewEvent {
    event(
        None,
        EventKind::SessionEnded { reason: EndReason::Closed, message: None, receipt: None },
        b"",
    )
}

/// All events of a reader, read in small portions.
fn all_events(reader: &mut SessionReader) -> Vec<(Event, Bytes)> {
    let (mut all, mut after) = (Vec::new(), Seq(0));
    loop {
        let some = reader.events(after, 3, 1000).expect("the events are readable");
        let Some((last, _)) = some.last() else { return all };
        after = last.seq;
        all.extend(some);
    }
}

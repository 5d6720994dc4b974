//! The copy of a session's journal, in memory. It gives the turns and the output that the journal gives, as far as the
//! copy has the events. It holds all that it is given, so the caller bounds that.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use windlass_protocol::event::EventKind;
use windlass_protocol::{Event, Seq, Stream, TurnId};

use crate::event_log::EventReader;
use crate::facts::{NewSession, SessionFacts, Stamp, TurnRecord};
use crate::reader::{
    OutputPiece, OutputRange, OutputScope, OutputSlice, ReadError, StreamEnds, head_of,
    stream_ends_of, tail_of,
};
use crate::search::{OutputMatches, search_in};

/// See the module documentation.
#[derive(Debug)]
pub struct CopiedSession {
    facts: SessionFacts,
    turns: Vec<TurnRecord>,
    events: Vec<CopiedEvent>,
}

/// An event, with the numbers that the journal adds to it.
#[derive(Debug)]
struct CopiedEvent {
    event: Event,
    stamp: Stamp,
    body: Bytes,
    /// The length of the body in the journal. The copy may lack the body.
    bytes: u64,
}

impl CopiedSession {
    pub fn new(created: NewSession) -> Self {
        Self { facts: SessionFacts::new(created), turns: Vec::new(), events: Vec::new() }
    }

    /// Adds the next event of the copy. `bytes` is the length of its body in the journal.
    pub fn push(&mut self, event: Event, body: Bytes, bytes: u64) {
        let (stamp, ended) = self.facts.apply_copied(&event, bytes);
        self.turns.extend(ended);
        self.events.push(CopiedEvent { event, stamp, body, bytes });
    }

    /// Whether the copy has the end of the session, and so all of it.
    pub fn has_end(&self) -> bool {
        self.facts.ended.is_some()
    }

    /// A turn whose end the copy has.
    pub fn turn(&self, id: &TurnId) -> Option<&TurnRecord> {
        self.turns.iter().rev().find(|turn| turn.id == *id)
    }

    /// Whether the session has this display, and the copy lacks bytes of it.
    pub fn lacks_display(&self, seq: Seq) -> bool {
        let parts = self.display_parts(seq);
        parts.is_some_and(|(_, parts)| parts.iter().any(|part| !part.is_whole()))
    }

    /// The events of the display that an event completed, and its mime type.
    fn display_parts(&self, seq: Seq) -> Option<(&str, Vec<&CopiedEvent>)> {
        let at = self.events.binary_search_by_key(&seq, |one| one.event.seq).ok()?;
        let EventKind::Display { mime, more: false, .. } = &self.events[at].event.kind else {
            return None;
        };
        let first = self.events[at].stamp.first?;
        let from = self.events.partition_point(|one| one.event.seq < first);
        let parts = self.events[from..=at].iter().filter(|one| one.stamp.first == Some(first));
        Some((mime.as_str(), parts.collect()))
    }

    /// The pieces of a range of output, in order.
    fn pieces(&self, range: OutputRange) -> impl FnMut() -> Result<Option<OutputPiece>, ReadError> {
        let mut rest = self.events.iter();
        move || Ok(rest.find_map(|one| one.piece(range)))
    }
}

impl CopiedEvent {
    fn is_whole(&self) -> bool {
        self.body.len() as u64 == self.bytes
    }

    /// The output of this event that is in the range.
    fn piece(&self, range: OutputRange) -> Option<OutputPiece> {
        let EventKind::Output { stream, background } = &self.event.kind else { return None };
        let OutputRange { from, to, scope } = range;
        let out = self.stamp.out?;
        let end = out.saturating_add(self.body.len() as u64);
        let (first, last) = (out.max(from), end.min(to));
        if first >= last {
            return None;
        }
        let bytes = self.body.slice((first - out) as usize..(last - out) as usize);
        let shown = match scope {
            OutputScope::Session => true,
            OutputScope::Turn(number) => self.event.turn == Some(number) && !background,
        };
        Some(OutputPiece { offset: first, bytes, shown, stream: Some(*stream) })
    }
}

/// Reads the copy of a session.
#[derive(Debug, Clone)]
pub struct CopiedReader(Arc<CopiedSession>);

impl CopiedReader {
    pub fn new(copy: Arc<CopiedSession>) -> Self {
        Self(copy)
    }

    /// The range up to the end of the output.
    fn within_output(&self, range: OutputRange) -> OutputRange {
        OutputRange { to: range.to.min(self.output_end()), ..range }
    }
}

impl EventReader for CopiedReader {
    fn last_seq(&self) -> Seq {
        self.0.facts.last_seq
    }

    fn output_end(&self) -> u64 {
        self.0.facts.output_bytes
    }

    fn events(
        &mut self,
        after: Seq,
        events_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(Event, Bytes)>, ReadError> {
        let from = self.0.events.partition_point(|one| one.event.seq <= after);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for one in self.0.events[from..].iter().take(events_max) {
            bytes += one.body.len();
            if !taken.is_empty() && bytes > bytes_max {
                break;
            }
            taken.push((one.event.clone(), one.body.clone()));
        }
        Ok(taken)
    }

    fn head(&self, count: usize, range: OutputRange) -> Result<OutputSlice, ReadError> {
        let range = self.within_output(range);
        head_of(self.0.pieces(range), count, range)
    }

    fn tail(&self, count: u64, range: OutputRange) -> Result<OutputSlice, ReadError> {
        let output = |range| self.head(crate::OUTPUT_SLICE_BYTES_MAX, range);
        tail_of(output, count, self.within_output(range))
    }

    fn stream_ends(
        &self,
        streams: &[Stream],
        ends_max: usize,
        range: OutputRange,
    ) -> Result<StreamEnds, ReadError> {
        let range = self.within_output(range);
        stream_ends_of(self.0.pieces(range), streams, ends_max, range)
    }

    fn display(&self, seq: Seq) -> Result<Option<(String, Bytes)>, ReadError> {
        let Some((mime, parts)) = self.0.display_parts(seq) else { return Ok(None) };
        if !parts.iter().all(|part| part.is_whole()) {
            return Ok(None);
        }
        let mut whole = BytesMut::new();
        parts.iter().for_each(|part| whole.extend_from_slice(&part.body));
        Ok(Some((mime.to_owned(), whole.freeze())))
    }

    fn search(
        &self,
        needle: &[u8],
        range: OutputRange,
        matches_max: usize,
    ) -> Result<OutputMatches, ReadError> {
        search_in(self.0.pieces(range), needle, range, matches_max)
    }

    fn again(&self) -> Box<dyn EventReader> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::event::{DropReason, Usage};
    use windlass_protocol::{Outcome, SessionId, TurnNo};

    use super::*;

    fn accepted(id: &str) -> EventKind {
        let id = TurnId::chosen(id).unwrap();
        EventKind::TurnAccepted { id, deadline_ms: None, more: false, context: None }
    }

    fn display(more: bool) -> EventKind {
        EventKind::Display { mime: "image/png".to_owned(), id: None, update: false, more }
    }

    /// A session with a turn of which output is left out, and one that has not ended.
    fn copy() -> CopiedSession {
        let created = NewSession {
            id: SessionId::parse("s1").unwrap(),
            created_at_ms: 1,
            workspace: String::new(),
            worker_kind: "python".to_owned(),
            spec: serde_json::json!({}),
            quota_bytes: 0,
        };
        let output = || EventKind::Output { stream: Stream::Stdout, background: false };
        let reason = DropReason::NotCopied;
        let ended = EventKind::TurnEnded {
            outcome: Outcome::Ok,
            error: None,
            usage: Usage::default(),
            receipt: None,
            refusal: None,
            exit_code: None,
            value: None,
        };
        let mut copy = CopiedSession::new(created);
        for (seq, turn, kind, body, missing) in [
            (1, 1, accepted("t1"), "print(1)", 0),
            (2, 1, output(), "head", 0),
            (7, 1, EventKind::OutputDropped { bytes: 100, reason }, "", 0),
            (8, 1, output(), "the tail", 0),
            (9, 1, display(true), "first,", 0),
            (10, 1, display(false), "last", 0),
            (11, 1, display(false), "", 500),
            (12, 1, ended, "", 0),
            (13, 2, accepted("t2"), "print(2)", 0),
            (14, 2, output(), "cut", 0),
        ] {
            let turn = Some(TurnNo(turn));
            let event = Event { seq: Seq(seq), at_ms: seq, turn, link: None, kind };
            let bytes = body.len() as u64 + missing;
            copy.push(event, Bytes::from_static(body.as_bytes()), bytes);
        }
        copy
    }

    #[test]
    fn turns_and_output_are_those_of_the_journal() {
        let copy = copy();
        assert!(!copy.has_end());
        assert_eq!(copy.turn(&TurnId::chosen("t2").unwrap()), None, "its end is not copied");
        let turn = copy.turn(&TurnId::chosen("t1").unwrap()).unwrap();
        assert_eq!((turn.outcome, turn.output_from, turn.output_to), (Outcome::Ok, 0, 112));
        let one = OutputRange { from: 0, to: 112, scope: OutputScope::Turn(turn.number) };
        let two = OutputRange { from: 112, to: 115, scope: OutputScope::Turn(TurnNo(2)) };
        let reader = CopiedReader::new(Arc::new(copy));
        let head = reader.head(1000, one).unwrap();
        assert_eq!((&head.bytes[..], head.next), (&b"head"[..], 4));
        let rest = reader.head(1000, OutputRange { from: 4, ..one }).unwrap();
        assert_eq!((&rest.bytes[..], rest.from, rest.dropped_before), (&b"the tail"[..], 104, 100));
        assert_eq!(&reader.tail(4, one).unwrap().bytes[..], b"tail");
        assert_eq!(&reader.head(1000, two).unwrap().bytes[..], b"cut");
        let ends = reader.stream_ends(&[Stream::Stdout], 4, one).unwrap();
        assert_eq!((&ends.head[..], &ends.tail[..]), (&b"head"[..], &b"tail"[..]));
        assert_eq!((ends.bytes, ends.missing), (12, 100));
        // The head ends at the gap, also if it has room.
        let ends = reader.stream_ends(&[Stream::Stdout], 1000, one).unwrap();
        assert_eq!((&ends.head[..], &ends.tail[..]), (&b"head"[..], &b"the tail"[..]));
        // The end of this range is not kept.
        let cut = OutputRange { to: 50, ..one };
        let ends = reader.stream_ends(&[Stream::Stdout], 1000, cut).unwrap();
        assert_eq!((&ends.head[..], &ends.tail[..]), (&b"head"[..], &b""[..]));
        assert_eq!((ends.bytes, ends.missing), (4, 46));
        let found = reader.search(b"tail", OutputRange::ALL, 9).unwrap();
        assert_eq!(found.matches.iter().map(|one| one.offset).collect::<Vec<_>>(), [108]);
        assert_eq!((reader.last_seq(), reader.output_end()), (Seq(14), 115));
        let events = reader.clone().events(Seq(8), 2, 1000).unwrap();
        assert_eq!(events.iter().map(|(event, _)| event.seq.0).collect::<Vec<_>>(), [9, 10]);
    }

    #[test]
    fn a_display_without_its_bytes_is_known_and_not_shown() {
        let copy = copy();
        for (seq, lacks) in [(9, false), (10, false), (11, true), (12, false)] {
            assert_eq!(copy.lacks_display(Seq(seq)), lacks, "{seq}");
        }
        let reader = CopiedReader::new(Arc::new(copy));
        let (mime, whole) = reader.display(Seq(10)).unwrap().unwrap();
        assert_eq!((mime.as_str(), &whole[..]), ("image/png", &b"first,last"[..]));
        assert_eq!(reader.display(Seq(9)).unwrap(), None);
        assert_eq!(reader.display(Seq(11)).unwrap(), None);
    }
}

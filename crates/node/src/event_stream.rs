//! The text form of events, `text/event-stream`: each event is a frame `id: N`, `data: {...}`, and an empty line. The
//! HTTP door sends it, and the batches of the fleet's copy have it (`docs/fleet-records.md`).

use axum::http::HeaderMap;
use base64::Engine as _;
use bytes::Bytes;
use windlass_protocol::api::EventItem;
use windlass_protocol::{Event, Seq};

/// The header by which a client resumes a stream.
const LAST_EVENT_ID: &str = "last-event-id";

/// The event after which a client resumes a stream.
pub(crate) fn resume_after(headers: &HeaderMap) -> Option<Seq> {
    headers.get(LAST_EVENT_ID)?.to_str().ok()?.parse().ok().map(Seq)
}

/// Events as a piece of a stream.
pub(crate) fn sse(events: Vec<(Event, Bytes)>) -> Bytes {
    let bodies: usize = events.iter().map(|(_, body)| body.len()).sum();
    let mut piece = Vec::with_capacity(events.len() * 160 + bodies);
    for (event, body) in events {
        write_item(&mut piece, &item(event, &body));
    }
    piece.shrink_to_fit();
    piece.into()
}

/// Appends one event to a piece of a stream.
pub(crate) fn write_item(piece: &mut Vec<u8>, item: &EventItem) {
    piece.extend_from_slice(format!("id: {}\ndata: ", item.event.seq).as_bytes());
    serde_json::to_writer(&mut *piece, item).expect("events always serialise");
    piece.extend_from_slice(b"\n\n");
}

pub(crate) fn item(event: Event, body: &Bytes) -> EventItem {
    let bytes = body.len() as u64;
    let (text, base64) = match std::str::from_utf8(body) {
        Ok("") => (None, None),
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(base64::engine::general_purpose::STANDARD.encode(body))),
    };
    EventItem { event, text, base64, bytes }
}

/// A frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamFrame {
    /// A line that clients ignore.
    Comment(Bytes),
    Event {
        seq: Seq,
        /// The JSON of an [`EventItem`].
        data: Bytes,
        /// The frame with its empty line.
        whole: Bytes,
    },
}

/// A text that is no sequence of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} does not begin a frame of an event stream")]
pub(crate) struct EventTextError {
    at: usize,
}

/// The frames of a piece. They share its bytes.
pub(crate) fn frames(piece: &Bytes) -> Result<Vec<StreamFrame>, EventTextError> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < piece.len() {
        // JSON has no line breaks, so an empty line ends the frame.
        let end = piece[at..].windows(2).position(|pair| pair == b"\n\n");
        let end = end.ok_or(EventTextError { at })? + at + 2;
        found.push(frame(piece.slice(at..end)).ok_or(EventTextError { at })?);
        at = end;
    }
    Ok(found)
}

fn frame(whole: Bytes) -> Option<StreamFrame> {
    let text = whole.strip_suffix(b"\n\n")?;
    if let Some(comment) = text.strip_prefix(b": ") {
        return Some(StreamFrame::Comment(whole.slice_ref(comment)));
    }
    let rest = text.strip_prefix(b"id: ")?;
    let line = rest.iter().position(|byte| *byte == b'\n')?;
    let seq = std::str::from_utf8(&rest[..line]).ok()?.parse().ok()?;
    let data = whole.slice_ref(rest[line + 1..].strip_prefix(b"data: ")?);
    Some(StreamFrame::Event { seq: Seq(seq), data, whole })
}

#[cfg(test)]
mod tests {
    use windlass_protocol::event::{EventKind, Stream};

    use super::*;

    fn output(seq: u64) -> Event {
        let kind = EventKind::Output { stream: Stream::Stdout, background: false };
        Event { seq: Seq(seq), at_ms: 7, turn: None, link: None, kind }
    }

    #[test]
    fn a_piece_is_split_into_the_frames_that_it_was_made_of() {
        let bodies: [&[u8]; 4] = [b"one\n\ntwo", b"", b"\xff\n\n", b"id: 9\ndata: {}\n\n"];
        let events = bodies.iter().enumerate();
        let events = events.map(|(at, body)| (output(at as u64 + 3), Bytes::copy_from_slice(body)));
        let events: Vec<_> = events.collect();
        let mut piece = b": a comment\n\n".to_vec();
        piece.extend_from_slice(&sse(events.clone()));
        let found = frames(&piece.into()).unwrap();
        assert_eq!(found[0], StreamFrame::Comment(Bytes::from_static(b"a comment")));
        assert_eq!(found.len(), events.len() + 1);
        for (frame, (event, body)) in found[1..].iter().zip(events) {
            let StreamFrame::Event { seq, data, whole } = frame else { panic!("{frame:?}") };
            let read: EventItem = serde_json::from_slice(data).unwrap();
            assert_eq!((*seq, &read), (event.seq, &item(event.clone(), &body)));
            assert_eq!(*whole, sse(vec![(event, body)]));
        }
    }

    #[test]
    fn a_text_that_was_cut_is_refused() {
        let whole = sse(vec![(output(1), Bytes::from_static(b"x"))]);
        for length in 1..whole.len() {
            assert!(frames(&whole.slice(..length)).is_err(), "{length}");
        }
        assert!(frames(&Bytes::from_static(b"data: {}\n\n")).is_err());
    }
}

//! Reads a session: events after a sequence number, output by byte range, whole displays. A reader sees only
//! whole records, also while the log writes. It opens files per call and closes them again.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use windlass_protocol::event::EventKind;
use windlass_protocol::limits::MESSAGE_BYTES_MAX;
use windlass_protocol::turn::TurnContext;
use windlass_protocol::{Event, Seq, SessionId, Stream, TurnNo};

use crate::record::{JournalRecord, Scanner};
use crate::segment::{self, parse_event, parse_output};
use crate::shared::{ReadPosition, SharedSession};

/// Maximum output bytes that one call returns.
pub const OUTPUT_SLICE_BYTES_MAX: usize = 1024 * 1024;

/// Why a session could not be read. Dropped or removed data is not an error; it is only missing.
#[derive(Debug, thiserror::Error)]
#[error("cannot read journal {path}")]
pub struct ReadError {
    path: PathBuf,
    #[source]
    cause: io::Error,
}

/// Which output to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputScope {
    /// All output of the session.
    Session,
    /// The output that this turn wrote while it ran, without background output.
    Turn(TurnNo),
}

/// A range of a session's output, `from..to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputRange {
    pub from: u64,
    pub to: u64,
    pub scope: OutputScope,
}

impl OutputRange {
    pub const ALL: Self = Self { from: 0, to: u64::MAX, scope: OutputScope::Session };
}

/// Contiguous output. It ends before the next gap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputSlice {
    pub bytes: Bytes,
    /// Where it starts: the requested start, or the end of a gap there.
    pub from: u64,
    /// Where the next read starts.
    pub next: u64,
    /// Bytes between the requested start and `from` that are not kept.
    pub dropped_before: u64,
}

/// The start and the end of some streams of a turn's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamEnds {
    /// The first bytes, up to the first gap in the output.
    pub head: Vec<u8>,
    /// The last bytes: what follows the head, or the end of it. After a gap in the output, what follows the last gap.
    pub tail: Vec<u8>,
    /// Number of bytes of these streams that are kept.
    pub bytes: u64,
    /// Number of bytes of the range that are not kept. Which streams they were of is not known.
    pub missing: u64,
}

/// Reads a session. Cheap to create and to clone. Each clone has its own position in the events.
#[derive(Debug, Clone)]
pub struct SessionReader {
    shared: Arc<SharedSession>,
    /// Where the last call to `events` stopped, so that a follower reads only new records.
    cursor: Option<ReadPosition>,
}

impl SessionReader {
    pub(crate) fn new(shared: Arc<SharedSession>) -> Self {
        Self { shared, cursor: None }
    }

    pub fn id(&self) -> &SessionId {
        &self.shared.id
    }

    /// The last event appended.
    pub fn last_seq(&self) -> Seq {
        self.shared.last_seq()
    }

    /// The end of the output so far.
    pub fn output_end(&self) -> u64 {
        self.shared.output_end()
    }

    /// Where the output is at an event before which events were dropped. `None` if none were dropped right before it.
    pub fn output_start(&self, first: Seq) -> Option<u64> {
        self.shared.output_start(first)
    }

    /// The events after `after`, in order. At most `events_max` events and `bytes_max` bytes of bodies, but
    /// always one event if there is one. Sequence numbers have gaps where events are not kept.
    pub fn events(
        &mut self,
        after: Seq,
        events_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(Event, Bytes)>, ReadError> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let wanted = after.next();
        if wanted > self.shared.last_seq() {
            return Ok(taken);
        }
        let known = self.cursor.take().filter(|cursor| cursor.seq == wanted);
        let start = known.and_then(|cursor| self.shared.refresh(cursor));
        let start = start.or_else(|| self.shared.position_of_event(wanted));
        let mut records = RecordCursor::new(&self.shared, start);
        while taken.len() < events_max {
            let here = records.position();
            let Some((seq, record)) = records.next()? else { break };
            if seq < wanted {
                continue;
            }
            if !taken.is_empty() && bytes + record.body.len() > bytes_max {
                self.cursor = here;
                return Ok(taken);
            }
            let Some((event, _)) = parse_event(&record) else { continue };
            bytes += record.body.len();
            taken.push((event, record.body));
        }
        self.cursor = records.position();
        Ok(taken)
    }

    /// The output in a range, at most [`OUTPUT_SLICE_BYTES_MAX`].
    pub fn output(&self, range: OutputRange) -> Result<OutputSlice, ReadError> {
        self.head(OUTPUT_SLICE_BYTES_MAX, range)
    }

    /// Reads the start of a range: at most its first `count` bytes, up to the first gap.
    pub fn head(&self, count: usize, range: OutputRange) -> Result<OutputSlice, ReadError> {
        let range = OutputRange { to: range.to.min(self.shared.output_end()), ..range };
        let mut pieces = OutputPieces::new(&self.shared, range);
        head_of(|| pieces.next(), count, range)
    }

    /// The end of a range: at most its last `count` bytes, after the last gap.
    pub fn tail(&self, count: u64, range: OutputRange) -> Result<OutputSlice, ReadError> {
        let range = OutputRange { to: range.to.min(self.shared.output_end()), ..range };
        tail_of(|range| self.output(range), count, range)
    }

    /// Some streams of a range on their own: their first bytes, their last bytes, at most `ends_max` each, and
    /// their number of bytes. Reads the whole range.
    pub fn stream_ends(
        &self,
        streams: &[Stream],
        ends_max: usize,
        range: OutputRange,
    ) -> Result<StreamEnds, ReadError> {
        let range = OutputRange { to: range.to.min(self.shared.output_end()), ..range };
        let mut pieces = OutputPieces::new(&self.shared, range);
        stream_ends_of(|| pieces.next(), streams, ends_max, range)
    }

    /// The whole display that an event completed: its mime type and bytes.
    pub fn display(&self, seq: Seq) -> Result<Option<(String, Bytes)>, ReadError> {
        let Some((last, first, body)) = self.display_part(seq)? else { return Ok(None) };
        let EventKind::Display { mime, id, more: false, .. } = last.kind else { return Ok(None) };
        if first == seq {
            return Ok(Some((mime, body)));
        }
        let mut whole = BytesMut::new();
        let mut records = RecordCursor::new(&self.shared, self.shared.position_of_event(first));
        while let Some((at, record)) = records.next()? {
            if at > seq {
                break;
            }
            let Some((event, stamp)) = parse_event(&record) else { continue };
            let same = matches!(&event.kind, EventKind::Display { mime: other, id: named, .. }
                if *other == mime && *named == id);
            if at >= first && stamp.first == Some(first) && event.turn == last.turn && same {
                // Without its first part, the display is not kept. No worker can have sent a display over the
                // limit.
                let headless = whole.is_empty() && at != first;
                if headless || whole.len() + record.body.len() > MESSAGE_BYTES_MAX {
                    return Ok(None);
                }
                whole.extend_from_slice(&record.body);
            }
            if at == seq {
                return Ok(Some((mime, whole.freeze())));
            }
        }
        Ok(None)
    }

    fn display_part(&self, seq: Seq) -> Result<Option<(Event, Seq, Bytes)>, ReadError> {
        let mut records = RecordCursor::new(&self.shared, self.shared.position_of_event(seq));
        while let Some((at, record)) = records.next()? {
            if at >= seq {
                let found = parse_event(&record).filter(|_| at == seq);
                return Ok(
                    found.map(|(event, stamp)| (event, stamp.first.unwrap_or(seq), record.body))
                );
            }
        }
        Ok(None)
    }

    /// The code of a turn, joined from the events that carry it, and its context.
    pub(crate) fn request(
        &self,
        number: TurnNo,
        from: Seq,
        to: Seq,
    ) -> Result<(Bytes, Option<Box<TurnContext>>), ReadError> {
        let (mut whole, mut surroundings) = (BytesMut::new(), None);
        let mut records = RecordCursor::new(&self.shared, self.shared.position_of_event(from));
        while let Some((at, record)) = records.next()? {
            if at > to {
                break;
            }
            let Some((event, _)) = parse_event(&record).filter(|_| at >= from) else { continue };
            if event.turn == Some(number)
                && let EventKind::TurnAccepted { context, .. } = event.kind
            {
                whole.extend_from_slice(&record.body);
                surroundings = surroundings.or(context);
            }
        }
        Ok((whole.freeze(), surroundings))
    }

    pub(crate) fn pieces(&self, range: OutputRange) -> OutputPieces<'_> {
        OutputPieces::new(&self.shared, range)
    }
}

/// The start of a range. `next` gives the pieces of the range, which ends where the output does.
pub(crate) fn head_of(
    mut next: impl FnMut() -> Result<Option<OutputPiece>, ReadError>,
    count: usize,
    range: OutputRange,
) -> Result<OutputSlice, ReadError> {
    let count = count.clamp(1, OUTPUT_SLICE_BYTES_MAX);
    let mut slice = OutputSlice { from: range.from, next: range.from, ..Default::default() };
    let mut bytes = BytesMut::new();
    while let Some(piece) = next()? {
        if piece.offset > slice.next {
            if !bytes.is_empty() {
                break;
            }
            slice.dropped_before += piece.offset - slice.next;
        }
        if bytes.is_empty() {
            slice.from = piece.offset;
        }
        let room = count - bytes.len();
        let part = match piece.shown {
            true => piece.bytes.slice(..piece.bytes.len().min(room)),
            false => Bytes::new(),
        };
        let whole = !piece.shown || part.len() == piece.bytes.len();
        slice.next = match whole {
            true => piece.offset + piece.bytes.len() as u64,
            false => piece.offset + part.len() as u64,
        };
        bytes.extend_from_slice(&part);
        if bytes.len() == count {
            slice.bytes = bytes.freeze();
            return Ok(slice);
        }
    }
    if bytes.is_empty() && slice.next < range.to {
        // The rest of the range is not kept.
        let end = range.to;
        slice.dropped_before += end - slice.next;
        (slice.from, slice.next) = (end, end);
    }
    slice.bytes = bytes.freeze();
    Ok(slice)
}

/// The end of a range. `output` reads the start of a range, which ends where the output does.
pub(crate) fn tail_of(
    output: impl Fn(OutputRange) -> Result<OutputSlice, ReadError>,
    count: u64,
    range: OutputRange,
) -> Result<OutputSlice, ReadError> {
    let count = count.min(OUTPUT_SLICE_BYTES_MAX as u64);
    let to = range.to;
    let from = range.from.max(to.saturating_sub(count)).min(to);
    let mut slice = output(OutputRange { from, to, ..range })?;
    while slice.next < to {
        let later = output(OutputRange { from: slice.next, to, ..range })?;
        if later.bytes.is_empty() {
            break;
        }
        slice = later;
    }
    Ok(slice)
}

/// The ends of some streams of a range. `next` gives the pieces of the range, which ends where the output does.
pub(crate) fn stream_ends_of(
    mut next: impl FnMut() -> Result<Option<OutputPiece>, ReadError>,
    streams: &[Stream],
    ends_max: usize,
    range: OutputRange,
) -> Result<StreamEnds, ReadError> {
    let mut ends = StreamEnds::default();
    let mut tail = VecDeque::new();
    let mut expected = range.from;
    while let Some(piece) = next()? {
        if piece.offset > expected {
            // Bytes before a gap and bytes behind it are never joined.
            ends.missing += piece.offset - expected;
            tail.clear();
        }
        expected = piece.offset + piece.bytes.len() as u64;
        if !piece.shown || !piece.stream.is_some_and(|stream| streams.contains(&stream)) {
            continue;
        }
        ends.bytes += piece.bytes.len() as u64;
        let room = match ends.missing {
            0 => ends_max.saturating_sub(ends.head.len()),
            _ => 0,
        };
        let to_head = piece.bytes.len().min(room);
        let (head, rest) = piece.bytes.split_at(to_head);
        ends.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(ends_max)..];
        tail.drain(..(tail.len() + rest.len()).saturating_sub(ends_max));
        tail.extend(rest);
    }
    if expected < range.to {
        ends.missing += range.to - expected;
        tail.clear();
    }
    ends.tail = tail.into();
    Ok(ends)
}

/// Iterates over the event records from a position to the newest segment.
struct RecordCursor<'a> {
    shared: &'a SharedSession,
    position: Option<ReadPosition>,
    scanner: Option<Scanner>,
}

impl<'a> RecordCursor<'a> {
    fn new(shared: &'a SharedSession, position: Option<ReadPosition>) -> Self {
        Self { shared, position, scanner: None }
    }

    /// Where the next record will be read.
    fn position(&self) -> Option<ReadPosition> {
        self.position
    }

    fn next(&mut self) -> Result<Option<(Seq, JournalRecord)>, ReadError> {
        while let Some(position) = self.position {
            let found = self.in_segment(position).map_err(|cause| ReadError {
                path: segment::path(&self.shared.dir, position.segment),
                cause,
            })?;
            if found.is_some() {
                return Ok(found);
            }
            // Keep the position in the newest segment: later records are appended there.
            let Some(next) = self.shared.position_after(position) else { return Ok(None) };
            self.position = Some(next);
            self.scanner = None;
        }
        Ok(None)
    }

    fn in_segment(
        &mut self,
        mut position: ReadPosition,
    ) -> io::Result<Option<(Seq, JournalRecord)>> {
        let scanner = match &mut self.scanner {
            Some(scanner) => scanner,
            None if position.at >= position.end => return Ok(None),
            none => match File::open(segment::path(&self.shared.dir, position.segment)) {
                Ok(file) => none.insert(Scanner::new(file, position.at, position.end)),
                // The segment was dropped or removed meanwhile.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(cause) => return Err(cause),
            },
        };
        let mut record = scanner.next()?;
        if record.as_ref().is_some_and(|record| record.at == 0) {
            record = scanner.next()?;
        }
        position.at = scanner.at();
        let seq = position.seq;
        if record.is_some() {
            position.seq = seq.next();
        }
        self.position = Some(position);
        Ok(record.map(|record| (seq, record)))
    }
}

/// The output bytes of one record, cut to the range.
#[derive(Debug)]
pub(crate) struct OutputPiece {
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
    /// Whether it belongs to the requested scope.
    pub(crate) shown: bool,
    pub(crate) stream: Option<Stream>,
}

/// The output of a range, piece by piece.
pub(crate) struct OutputPieces<'a> {
    records: RecordCursor<'a>,
    range: OutputRange,
}

impl<'a> OutputPieces<'a> {
    fn new(shared: &'a SharedSession, range: OutputRange) -> Self {
        let position = match range.from < range.to.min(shared.output_end()) {
            true => shared.position_of_output(range.from),
            false => None,
        };
        Self { records: RecordCursor::new(shared, position), range }
    }

    pub(crate) fn next(&mut self) -> Result<Option<OutputPiece>, ReadError> {
        let OutputRange { from, to, scope } = self.range;
        while let Some((_, record)) = self.records.next()? {
            let Some(header) = parse_output(&record) else { continue };
            let Some(out) = header.out else { continue };
            if out >= to {
                return Ok(None);
            }
            let end = out.saturating_add(record.body.len() as u64);
            if end <= from {
                continue;
            }
            let (first, last) = (out.max(from), end.min(to));
            let bytes = record.body.slice((first - out) as usize..(last - out) as usize);
            let shown = match scope {
                OutputScope::Session => true,
                OutputScope::Turn(number) => header.turn == Some(number) && !header.background,
            };
            // Stop here: a further read would walk the rest of the session for nothing.
            if end >= to {
                self.records = RecordCursor::new(self.records.shared, None);
            }
            return Ok(Some(OutputPiece { offset: first, bytes, shown, stream: header.stream }));
        }
        Ok(None)
    }
}

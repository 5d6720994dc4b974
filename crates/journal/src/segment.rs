//! Segment files: their names, their heads, and the in-memory list entry of each. Owns the format of a
//! record's header. It does not decide when a segment is created or dropped.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass_protocol::event::EventKind;
use windlass_protocol::{Event, LinkSeq, Seq, SessionId, Stream, TurnNo};

use crate::facts::{SessionFacts, Stamp};
use crate::record::{self, BodyPlacement, JournalRecord, RecordTooLong, Scanner};

/// The format version in every segment's head. A newer version is refused.
pub const FORMAT: u32 = 1;

const NAME_DIGITS: usize = 20;

/// The distance between seek points in the newest segment: a reader scans at most about this many bytes.
const MARK_BYTES: u64 = 4 * 1024;

/// The distance between seek points in older segments, which are read less often.
const OLD_MARK_BYTES: u64 = 64 * 1024;

/// The header of a segment's first record. The body of that record is the session's facts so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHead {
    pub(crate) journal: u32,
    pub(crate) session: SessionId,
    /// The first event of this segment.
    pub(crate) first_seq: Seq,
    /// Bytes of the session's output before this segment.
    pub(crate) out: u64,
    /// The first event of the previous segment. Absent in the first segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prev: Option<Seq>,
    /// Segments dropped when this segment was created. Recovery deletes any that remain, so that the facts'
    /// count of dropped bytes is right even if the node died in between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) drops: Vec<Seq>,
}

/// The version field of a head, which every format version has.
#[derive(Deserialize)]
struct HeadVersion {
    journal: u32,
}

/// Why a segment cannot be read from its start.
#[derive(Debug)]
pub(crate) enum HeadError {
    /// The first record is not whole, or is not a head.
    Torn,
    Newer(u32),
    Io(io::Error),
}

impl From<io::Error> for HeadError {
    fn from(cause: io::Error) -> Self {
        Self::Io(cause)
    }
}

/// An event's header as written: the event, and the numbers that the journal adds.
#[derive(Serialize)]
pub(crate) struct EventHeaderOut<'a> {
    pub(crate) seq: Seq,
    pub(crate) at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) turn: Option<TurnNo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<LinkSeq>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<Seq>,
    #[serde(flatten)]
    pub(crate) kind: &'a EventKind,
}

#[derive(Deserialize)]
struct EventHeaderIn {
    seq: Seq,
    at_ms: u64,
    turn: Option<TurnNo>,
    link: Option<LinkSeq>,
    out: Option<u64>,
    first: Option<Seq>,
    #[serde(flatten)]
    kind: EventKind,
}

/// The header of an output event. Most events are output. Without the generic `kind`, their headers parse
/// several times faster, and this parsing takes most of the time when a node takes over a session.
#[derive(Deserialize)]
struct OutputEventHeaderIn {
    seq: Seq,
    at_ms: u64,
    turn: Option<TurnNo>,
    link: Option<LinkSeq>,
    out: Option<u64>,
    #[expect(dead_code, reason = "reading fails where the event is of another kind")]
    kind: OutputKind,
    stream: Stream,
    #[serde(default)]
    background: bool,
}

#[derive(Deserialize)]
enum OutputKind {
    #[serde(rename = "output")]
    Output,
}

/// The fields that all event headers have, including kinds that this release does not know.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct CommonHeader {
    pub(crate) seq: Seq,
    pub(crate) at_ms: u64,
    pub(crate) link: Option<LinkSeq>,
}

/// The header fields that a reader of output needs. Parsing only these is several times faster.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct OutputHeader {
    pub(crate) out: Option<u64>,
    pub(crate) turn: Option<TurnNo>,
    #[serde(default)]
    pub(crate) background: bool,
    pub(crate) stream: Option<Stream>,
}

/// The event of a record, or `None` if this release does not know its kind.
pub(crate) fn parse_event(record: &JournalRecord) -> Option<(Event, Stamp)> {
    if let Ok(output) = serde_json::from_slice::<OutputEventHeaderIn>(&record.header) {
        let OutputEventHeaderIn { seq, at_ms, turn, link, out, stream, background, .. } = output;
        let kind = EventKind::Output { stream, background };
        return Some((Event { seq, at_ms, turn, link, kind }, Stamp { seq, out, first: None }));
    }
    let EventHeaderIn { seq, at_ms, turn, link, out, first, kind } =
        serde_json::from_slice(&record.header).ok()?;
    Some((Event { seq, at_ms, turn, link, kind }, Stamp { seq, out, first }))
}

pub(crate) fn parse_common(record: &JournalRecord) -> Option<CommonHeader> {
    serde_json::from_slice(&record.header).ok()
}

pub(crate) fn parse_output(record: &JournalRecord) -> Option<OutputHeader> {
    serde_json::from_slice(&record.header).ok()
}

pub(crate) fn path(dir: &Path, first_seq: Seq) -> PathBuf {
    dir.join(format!("{:0width$}.seg", first_seq.0, width = NAME_DIGITS))
}

/// The first event of each segment in a session's directory, in order.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<Seq>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(".seg"));
        if let Some(digits) = digits.filter(|digits| digits.len() == NAME_DIGITS)
            && let Ok(first_seq) = digits.parse()
        {
            found.push(Seq(first_seq));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The bytes of a segment that contains only its head.
pub(crate) fn encode_head(
    head: &SegmentHead,
    facts: &SessionFacts,
) -> Result<Vec<u8>, RecordTooLong> {
    let body = serde_json::to_vec(facts).expect("facts always serialise");
    let mut bytes = Vec::with_capacity(body.len() + 256);
    record::encode(&mut bytes, head, &body, BodyPlacement::Inline, record::HEAD_BYTES_MAX)?;
    Ok(bytes)
}

/// A segment that is open for reading after its head.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) head: SegmentHead,
    pub(crate) facts: SessionFacts,
    pub(crate) scanner: Scanner,
    pub(crate) file_bytes: u64,
}

pub(crate) fn open(dir: &Path, first_seq: Seq) -> Result<OpenSegment, HeadError> {
    let file = File::open(path(dir, first_seq))?;
    let file_bytes = file.metadata()?.len();
    let mut scanner = Scanner::new(file, 0, file_bytes);
    let record = scanner.next()?.ok_or(HeadError::Torn)?;
    let version: HeadVersion =
        serde_json::from_slice(&record.header).map_err(|_| HeadError::Torn)?;
    if version.journal > FORMAT {
        return Err(HeadError::Newer(version.journal));
    }
    let head: SegmentHead = serde_json::from_slice(&record.header).map_err(|_| HeadError::Torn)?;
    let facts: SessionFacts = serde_json::from_slice(&record.body).map_err(|_| HeadError::Torn)?;
    if head.first_seq != first_seq || facts.last_seq.next() != first_seq {
        return Err(HeadError::Torn);
    }
    Ok(OpenSegment { head, facts, scanner, file_bytes })
}

/// A position in a segment from which reading can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeekPoint {
    pub(crate) at: u64,
    /// The event that starts there.
    pub(crate) seq: Seq,
    /// Bytes of the session's output before that event.
    pub(crate) out: u64,
}

/// A segment as readers see it: only whole records.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) first_seq: Seq,
    pub(crate) first_out: u64,
    pub(crate) out_end: u64,
    pub(crate) bytes: u64,
    /// No segment is missing between this one and the previous one in the list.
    pub(crate) contiguous: bool,
    marks: Vec<SeekPoint>,
}

impl Segment {
    pub(crate) fn new(head: &SegmentHead, bytes: u64) -> Self {
        Self {
            first_seq: head.first_seq,
            first_out: head.out,
            out_end: head.out,
            bytes,
            contiguous: true,
            marks: Vec::new(),
        }
    }

    /// Adds a seek point if the last one is far enough away.
    pub(crate) fn mark(&mut self, mark: SeekPoint) {
        if mark.at >= self.marks.last().map_or(0, |last| last.at) + MARK_BYTES {
            self.marks.push(mark);
        }
    }

    /// Thins out the seek points once the segment is no longer the newest.
    pub(crate) fn thin_marks(&mut self) {
        let mut last = 0;
        self.marks.retain(|mark| {
            let keep = mark.at >= last + OLD_MARK_BYTES;
            if keep {
                last = mark.at;
            }
            keep
        });
        self.marks.shrink_to_fit();
    }

    fn start(&self) -> SeekPoint {
        SeekPoint { at: 0, seq: self.first_seq, out: self.first_out }
    }

    /// The last seek point at or before an event.
    pub(crate) fn position_of_event(&self, seq: Seq) -> SeekPoint {
        let after = self.marks.partition_point(|mark| mark.seq <= seq);
        after.checked_sub(1).map_or_else(|| self.start(), |index| self.marks[index])
    }

    /// The last seek point at or before the record with an output byte.
    pub(crate) fn position_of_output(&self, out: u64) -> SeekPoint {
        let after = self.marks.partition_point(|mark| mark.out <= out);
        after.checked_sub(1).map_or_else(|| self.start(), |index| self.marks[index])
    }
}

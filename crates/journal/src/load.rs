//! Reads a session from its files: the heads of all segments, the fold over the newest segment, and the
//! ended turns of any segment. It only reads; `journal` removes torn data.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use windlass_protocol::{Seq, SessionId};

use crate::facts::{SessionFacts, TurnRecord};
use crate::segment::{self, HeadError, SeekPoint, Segment, SegmentHead};

/// Why a session's files cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the journal has no session {0}")]
    NotFound(SessionId),
    #[error(
        "{path} was written by a newer release: its journal format is {version}, this one reads up to {max}",
        max = segment::FORMAT
    )]
    Newer { path: PathBuf, version: u32 },
    #[error("{path} has no whole record")]
    Damaged { path: PathBuf },
    #[error("cannot read {path}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl LoadError {
    pub(crate) fn io(path: &Path, cause: io::Error) -> Self {
        Self::Io { path: path.to_owned(), cause }
    }
}

/// A session as read from its files.
#[derive(Debug)]
pub(crate) struct LoadedSession {
    pub(crate) segments: Vec<Segment>,
    pub(crate) facts: SessionFacts,
    /// The head of the newest segment. The segments that it lists as dropped may still exist.
    pub(crate) head: SegmentHead,
    /// Bytes of the newest segment's file, including a torn tail.
    pub(crate) file_bytes: u64,
    /// Later segments without a whole head.
    pub(crate) torn: Vec<PathBuf>,
}

/// One segment, folded from its head to its last whole record.
struct FoldedSegment {
    head: SegmentHead,
    segment: Segment,
    facts: SessionFacts,
    file_bytes: u64,
}

/// Reads a session: the heads of all its segments, and the records of the newest.
pub(crate) fn load(dir: &Path, id: &SessionId) -> Result<LoadedSession, LoadError> {
    let mut names = list(dir, id)?;
    let mut torn = Vec::new();
    let newest = loop {
        let Some(first_seq) = names.pop() else {
            return Err(LoadError::Damaged { path: dir.to_owned() });
        };
        match fold(dir, first_seq, &mut |_| {}) {
            Ok(folded) if folded.head.session == *id => break folded,
            Ok(_) | Err(HeadError::Torn) => torn.push(segment::path(dir, first_seq)),
            Err(error) => return Err(head_error(dir, first_seq, error)),
        }
    };
    names.retain(|name| !newest.head.drops.contains(name));
    let mut segments: Vec<Segment> = Vec::with_capacity(names.len() + 1);
    let mut add = |head: &SegmentHead, mut segment: Segment| {
        if let Some(before) = segments.last_mut() {
            segment.contiguous = head.prev == Some(before.first_seq);
            before.out_end = match segment.contiguous {
                true => head.out,
                // The next segment was dropped, so only this segment's own records tell where its output
                // ends.
                false => fold(dir, before.first_seq, &mut |_| {})
                    .map_or(before.first_out, |folded| folded.segment.out_end),
            };
        }
        segments.push(segment);
    };
    for first_seq in names {
        match segment::open(dir, first_seq) {
            Ok(opened) => add(&opened.head, Segment::new(&opened.head, opened.file_bytes)),
            // An unreadable older segment is a gap. The other segments are still usable.
            Err(HeadError::Torn) => {}
            Err(error) => return Err(head_error(dir, first_seq, error)),
        }
    }
    let FoldedSegment { head, segment, facts, file_bytes } = newest;
    add(&head, segment);
    Ok(LoadedSession { segments, facts, head, file_bytes, torn })
}

/// The turns that ended after an event, in order, and the session's latest facts.
pub(crate) fn ended_turns(
    dir: &Path,
    id: &SessionId,
    after: Seq,
) -> Result<(Vec<TurnRecord>, SessionFacts), LoadError> {
    let names = list(dir, id)?;
    let from = names.partition_point(|first| *first <= after.next()).saturating_sub(1);
    let (mut turns, mut last) = (Vec::new(), None);
    for first_seq in &names[from..] {
        let mut take = |turn: TurnRecord| {
            if turn.ended_seq > after {
                turns.push(turn);
            }
        };
        match fold(dir, *first_seq, &mut take) {
            Ok(folded) => last = Some(folded.facts),
            Err(HeadError::Torn) => {}
            Err(error) => return Err(head_error(dir, *first_seq, error)),
        }
    }
    match last {
        Some(facts) => Ok((turns, facts)),
        // The newest segment has no whole head, so the segment before it is the last one.
        None if from > 0 => ended_turns(dir, id, Seq(names[from - 1].0.saturating_sub(1))),
        None => Err(LoadError::Damaged { path: dir.to_owned() }),
    }
}

pub(crate) fn kept_bytes(dir: &Path) -> u64 {
    let Ok(names) = segment::list(dir) else { return 0 };
    let bytes = |name: &Seq| fs::metadata(segment::path(dir, *name)).map_or(0, |meta| meta.len());
    names.iter().map(bytes).sum()
}

fn list(dir: &Path, id: &SessionId) -> Result<Vec<Seq>, LoadError> {
    segment::list(dir).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => LoadError::NotFound(id.clone()),
        _ => LoadError::io(dir, cause),
    })
}

fn fold(
    dir: &Path,
    first_seq: Seq,
    ended: &mut dyn FnMut(TurnRecord),
) -> Result<FoldedSegment, HeadError> {
    let segment::OpenSegment { head, mut facts, mut scanner, file_bytes } =
        segment::open(dir, first_seq)?;
    let mut segment = Segment::new(&head, scanner.at());
    while let Some(record) = scanner.next()? {
        let out = facts.output_bytes;
        let seq = facts.last_seq.next();
        match segment::parse_event(&record) {
            Some((event, stamp)) if stamp.seq == seq => {
                if let Some(turn) = facts.apply(&event, stamp, record.body.len() as u64) {
                    ended(turn);
                }
            }
            Some(_) => break,
            None => match segment::parse_common(&record).filter(|any| any.seq == seq) {
                Some(any) => facts.skip_event(any.seq, any.at_ms, any.link),
                None => break,
            },
        }
        segment.mark(SeekPoint { at: record.at, seq, out });
        segment.bytes = scanner.at();
    }
    segment.out_end = facts.output_bytes;
    Ok(FoldedSegment { head, segment, facts, file_bytes })
}

fn head_error(dir: &Path, first_seq: Seq, error: HeadError) -> LoadError {
    let path = segment::path(dir, first_seq);
    match error {
        HeadError::Torn => LoadError::Damaged { path },
        HeadError::Newer(version) => LoadError::Newer { path, version },
        HeadError::Io(cause) => LoadError::Io { path, cause },
    }
}

//! The state that a session's log, its readers and the index writer share: the list of segments with their
//! whole records, and the backlog of the index. It never touches a file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_protocol::{Seq, SessionId, TurnId};

use crate::facts::{SessionFacts, TurnRecord};
use crate::segment::{SeekPoint, Segment};

/// Maximum number of ended turns of one session that wait in memory for the index. Past it, they are dropped
/// from memory, and the index writer reads them from the segments.
pub const PENDING_TURNS_MAX: usize = 4096;

/// Locks a mutex and ignores poisoning: every holder leaves the data consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct SharedSession {
    pub(crate) id: SessionId,
    pub(crate) dir: PathBuf,
    segments: Mutex<Vec<Segment>>,
    last_seq: AtomicU64,
    output_end: AtomicU64,
    /// A log of the session is open.
    pub(crate) open: AtomicBool,
    /// The session is in the index writer's queue.
    pub(crate) queued: AtomicBool,
    backlog: Mutex<IndexBacklog>,
}

/// Changes of a session that are not in the index yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct IndexBacklog {
    pub(crate) turns: BTreeMap<Seq, Arc<TurnRecord>>,
    pub(crate) row: Option<IndexRow>,
    /// Turns that were dropped from `turns`: the index writer must read them from the segments.
    pub(crate) dropped_turns: u64,
}

/// A session's row in the index.
#[derive(Debug, Clone)]
pub(crate) struct IndexRow {
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) kept_bytes: u64,
}

/// Where a reader continues, and the end of that segment when the reader looked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadPosition {
    pub(crate) segment: Seq,
    pub(crate) at: u64,
    pub(crate) seq: Seq,
    pub(crate) end: u64,
}

impl IndexBacklog {
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.row.is_none() && self.dropped_turns == 0
    }
}

impl SharedSession {
    pub(crate) fn new(
        id: SessionId,
        dir: PathBuf,
        segments: Vec<Segment>,
        facts: &SessionFacts,
    ) -> Self {
        Self {
            id,
            dir,
            segments: Mutex::new(segments),
            last_seq: AtomicU64::new(facts.last_seq.0),
            output_end: AtomicU64::new(facts.output_bytes),
            open: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            backlog: Mutex::default(),
        }
    }

    pub(crate) fn last_seq(&self) -> Seq {
        Seq(self.last_seq.load(Ordering::Acquire))
    }

    pub(crate) fn output_end(&self) -> u64 {
        self.output_end.load(Ordering::Acquire)
    }

    pub(crate) fn segments(&self) -> MutexGuard<'_, Vec<Segment>> {
        lock(&self.segments)
    }

    pub(crate) fn backlog(&self) -> MutexGuard<'_, IndexBacklog> {
        lock(&self.backlog)
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.segments().iter().map(|segment| segment.bytes).sum()
    }

    /// Publishes to readers the records that an append has written to the newest segment.
    pub(crate) fn publish(&self, bytes: u64, marks: &[SeekPoint], facts: &SessionFacts) {
        let mut segments = self.segments();
        let newest = segments.last_mut().expect("a session has at least one segment");
        newest.bytes = bytes;
        newest.out_end = facts.output_bytes;
        for mark in marks {
            newest.mark(*mark);
        }
        drop(segments);
        self.output_end.store(facts.output_bytes, Ordering::Release);
        self.last_seq.store(facts.last_seq.0, Ordering::Release);
    }

    /// The position to read an event from, or the first kept event after it.
    pub(crate) fn position_of_event(&self, seq: Seq) -> Option<ReadPosition> {
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.first_seq <= seq);
        let segment = segments.get(after.saturating_sub(1))?;
        Some(position(segment, segment.position_of_event(seq)))
    }

    /// Where the output is at the first event of a segment. `None` if no segment begins with this event.
    pub(crate) fn output_start(&self, first: Seq) -> Option<u64> {
        let segments = self.segments();
        let segment = segments.iter().find(|segment| segment.first_seq == first);
        segment.map(|segment| segment.first_out)
    }

    /// The position to read an output byte from, or the first kept output byte after it.
    pub(crate) fn position_of_output(&self, out: u64) -> Option<ReadPosition> {
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.first_out <= out);
        let segment = segments.get(after.saturating_sub(1))?;
        Some(position(segment, segment.position_of_output(out)))
    }

    /// Where a reader continues at the known end of a segment; `None` while that segment is the newest.
    /// Checks the segment and its successor under one lock: the segment may have grown before it got a
    /// successor, and only a segment with a successor grows no more.
    pub(crate) fn position_after(&self, read: ReadPosition) -> Option<ReadPosition> {
        let segments = self.segments();
        let after = segments.partition_point(|other| other.first_seq <= read.segment);
        let next = segments.get(after)?;
        let same = segments[..after].last().filter(|same| same.first_seq == read.segment);
        Some(match same {
            Some(grown) if grown.bytes > read.end => ReadPosition { end: grown.bytes, ..read },
            _ => ReadPosition {
                segment: next.first_seq,
                at: 0,
                seq: next.first_seq,
                end: next.bytes,
            },
        })
    }

    /// An earlier position with the current end of its segment; `None` if the segment was dropped.
    pub(crate) fn refresh(&self, old: ReadPosition) -> Option<ReadPosition> {
        let segments = self.segments();
        let found = segments.binary_search_by_key(&old.segment, |other| other.first_seq).ok()?;
        Some(ReadPosition { end: segments[found].bytes, ..old })
    }

    /// Keeps an ended turn in the backlog until the index has it.
    pub(crate) fn add_ended_turn(&self, turn: Arc<TurnRecord>) {
        let mut backlog = self.backlog();
        if backlog.turns.len() >= PENDING_TURNS_MAX {
            backlog.dropped_turns += backlog.turns.len() as u64;
            backlog.turns.clear();
        }
        backlog.turns.insert(turn.ended_seq, turn);
    }

    pub(crate) fn pending_turn(&self, id: &TurnId) -> Option<Arc<TurnRecord>> {
        self.backlog().turns.values().rev().find(|turn| turn.id == *id).cloned()
    }

    /// Removes what was just indexed from the backlog.
    pub(crate) fn remove_indexed(&self, done: &IndexBacklog) {
        let mut backlog = self.backlog();
        for seq in done.turns.keys() {
            backlog.turns.remove(seq);
        }
        backlog.dropped_turns -= done.dropped_turns;
        let same = |row: &IndexRow| {
            done.row.as_ref().is_some_and(|old| Arc::ptr_eq(&old.facts, &row.facts))
        };
        if backlog.row.as_ref().is_some_and(same) {
            backlog.row = None;
        }
    }

    /// The turn ends that the index does not have yet.
    pub(crate) fn unindexed(&self) -> Unindexed {
        let backlog = self.backlog();
        if backlog.dropped_turns > 0 {
            return Unindexed::Unknown;
        }
        Unindexed::Turns(backlog.turns.keys().copied().collect())
    }
}

/// The turn ends that exist only in the segments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unindexed {
    Turns(Vec<Seq>),
    Unknown,
}

fn position(segment: &Segment, mark: SeekPoint) -> ReadPosition {
    ReadPosition { segment: segment.first_seq, at: mark.at, seq: mark.seq, end: segment.bytes }
}

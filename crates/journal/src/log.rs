//! The log of one session: appends events to the newest segment, starts new segments, and drops old ones
//! past the quota. It has one owner and one descriptor. An append is one write and never waits for the disk,
//! the index or a reader.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use windlass_protocol::event::EventKind;
use windlass_protocol::{Epoch, Event, LinkSeq, Seq, SessionId, TurnNo};

use crate::facts::{SessionFacts, Stamp, Stamper, TurnRecord};
use crate::indexer::Indexer;
use crate::quota;
use crate::reader::SessionReader;
use crate::record::{self, BodyPlacement};
use crate::segment::{self, EventHeaderOut, FORMAT, SeekPoint, Segment, SegmentHead};
use crate::shared::{IndexRow, SharedSession};

/// A body up to this length is copied next to its header. A longer body is written from its own buffer.
const COPIED_BODY_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of slices in one write: the kernel's limit.
const WRITE_SLICES_MAX: usize = 1024;

/// Maximum buffer capacity that an append keeps for the next append.
const BUFFER_BYTES_KEPT: usize = 256 * 1024;

/// A full segment is synced to the disk only if it took at least this long to fill.
const SYNC_AFTER_MS: u64 = 1000;

/// An event to append. The log assigns its sequence number.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub at_ms: u64,
    pub turn: Option<TurnNo>,
    pub link: Option<LinkSeq>,
    pub kind: EventKind,
    pub body: Bytes,
}

/// The result of an append.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AppendedBatch {
    /// The first and the last event of the batch. For an empty batch, both are the last event before it.
    pub first: Seq,
    pub last: Seq,
    /// The turns that the batch ended.
    pub turns: Vec<Arc<TurnRecord>>,
    /// Output bytes that were dropped to stay within the quota.
    pub dropped_bytes: u64,
}

/// Why no event of a batch was appended. The log stays usable.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("journal {path} has no space left")]
    DiskFull {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot write journal {path}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("an event of {bytes} bytes is over the limit of {max}", max = record::EVENT_BYTES_MAX)]
    TooLarge { bytes: usize },
    #[error("session {0} has ended and takes no more events")]
    Ended(SessionId),
}

impl AppendError {
    fn new(path: &Path, cause: io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::DiskFull { path, cause },
            _ => Self::Io { path, cause },
        }
    }
}

/// The open log of a session.
#[derive(Debug)]
pub struct SessionLog {
    indexer: Arc<Indexer>,
    shared: Arc<SharedSession>,
    facts: SessionFacts,
    newest: NewestSegment,
    segment_bytes: u64,
    /// When the newest segment was started, by the events' timestamps.
    rolled_at_ms: u64,
    buffer: Vec<u8>,
    /// Bodies that are not copied into the buffer: the offset in the buffer, and the index in the batch.
    separate_bodies: Vec<(usize, usize)>,
    marks: Vec<SeekPoint>,
}

/// The segment being written.
#[derive(Debug)]
pub(crate) struct NewestSegment {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) first_seq: Seq,
    /// The end of the last whole record.
    pub(crate) bytes: u64,
    /// The length limit counts from here: the end of the head, or 0 for a segment of an earlier node.
    pub(crate) grown_from: u64,
    /// Bytes of a failed write may follow the last whole record.
    pub(crate) has_torn_tail: bool,
    /// The next append starts a new segment, even if this one is not full.
    pub(crate) must_roll: bool,
}

impl SessionLog {
    pub(crate) fn new(
        indexer: Arc<Indexer>,
        shared: Arc<SharedSession>,
        facts: SessionFacts,
        newest: NewestSegment,
    ) -> Self {
        shared.open.store(true, Ordering::Release);
        Self {
            segment_bytes: quota::segment_bytes(facts.created.quota_bytes),
            rolled_at_ms: facts.last_at_ms,
            indexer,
            shared,
            facts,
            newest,
            buffer: Vec::new(),
            separate_bodies: Vec::new(),
            marks: Vec::new(),
        }
    }

    pub fn id(&self) -> &SessionId {
        &self.shared.id
    }

    pub fn facts(&self) -> &SessionFacts {
        &self.facts
    }

    /// Sets the epoch of the session's owner. The head of the next segment records it.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        self.facts.epoch = epoch;
    }

    pub fn reader(&self) -> SessionReader {
        SessionReader::new(self.shared.clone())
    }

    /// Appends all events, or none on an error. When it returns, the events survive the death of this
    /// process.
    pub fn append(&mut self, mut batch: Vec<NewEvent>) -> Result<AppendedBatch, AppendError> {
        self.append_from(&mut batch)
    }

    /// Like [`SessionLog::append`], but takes the events out of `batch`. On an error, `batch` is unchanged.
    pub fn append_from(&mut self, batch: &mut Vec<NewEvent>) -> Result<AppendedBatch, AppendError> {
        if self.facts.ended.is_some() {
            return Err(AppendError::Ended(self.shared.id.clone()));
        }
        let before = self.facts.last_seq;
        if batch.is_empty() {
            return Ok(AppendedBatch { first: before, last: before, ..AppendedBatch::default() });
        }
        self.cut_torn_tail()?;
        let full = self.newest.bytes - self.newest.grown_from >= self.segment_bytes;
        let dropped_bytes = if full || self.newest.must_roll { self.roll()? } else { 0 };
        self.encode(batch)?;
        self.write(batch)?;
        let turns = self.publish(batch);
        let first = before.next();
        Ok(AppendedBatch { first, last: self.facts.last_seq, turns, dropped_bytes })
    }

    /// Encodes the batch's records into the buffer, with their sequence numbers.
    fn encode(&mut self, batch: &[NewEvent]) -> Result<(), AppendError> {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        self.separate_bodies.clear();
        self.marks.clear();
        let mut stamper = Stamper::after(&self.facts);
        let mut at = self.newest.bytes;
        for (index, event) in batch.iter().enumerate() {
            let NewEvent { at_ms, turn, link, kind, body } = event;
            let before = stamper.output_end();
            let Stamp { seq, out, first } = stamper.stamp(*turn, kind, body.len() as u64);
            let header =
                EventHeaderOut { seq, at_ms: *at_ms, turn: *turn, link: *link, out, first, kind };
            let placing = match body.len() > COPIED_BODY_BYTES_MAX {
                true => BodyPlacement::Separate,
                false => BodyPlacement::Inline,
            };
            let max = record::EVENT_BYTES_MAX;
            let length = record::encode(&mut self.buffer, &header, body, placing, max)
                .map_err(|long| AppendError::TooLarge { bytes: long.bytes })?;
            if placing == BodyPlacement::Separate {
                self.separate_bodies.push((self.buffer.len(), index));
            }
            self.marks.push(SeekPoint { at, seq, out: before });
            at += length;
        }
        Ok(())
    }

    /// Writes the buffer, with the separate bodies in between.
    fn write(&mut self, batch: &[NewEvent]) -> Result<(), AppendError> {
        let at = self.newest.bytes;
        let written = if self.separate_bodies.is_empty() {
            self.newest.file.write_all_at(&self.buffer, at).map(|()| self.buffer.len() as u64)
        } else {
            let mut slices = Vec::with_capacity(2 * self.separate_bodies.len() + 1);
            let mut from = 0;
            for (to, index) in &self.separate_bodies {
                slices.push(IoSlice::new(&self.buffer[from..*to]));
                slices.push(IoSlice::new(&batch[*index].body));
                from = *to;
            }
            slices.push(IoSlice::new(&self.buffer[from..]));
            write_all_slices(&self.newest.file, &mut slices, at)
        };
        match written {
            Ok(bytes) => {
                self.newest.bytes += bytes;
                Ok(())
            }
            Err(cause) => {
                self.newest.has_torn_tail = true;
                // If the cut fails too, the next append retries it before writing.
                let _ = self.cut_torn_tail();
                Err(AppendError::new(&self.newest.path, cause))
            }
        }
    }

    /// Cuts off the bytes of a failed write. They may contain a whole record, which a reader must not
    /// mistake for a later one.
    fn cut_torn_tail(&mut self) -> Result<(), AppendError> {
        if self.newest.has_torn_tail {
            let cut = self.newest.file.set_len(self.newest.bytes);
            cut.map_err(|cause| AppendError::new(&self.newest.path, cause))?;
            self.newest.has_torn_tail = false;
        }
        Ok(())
    }

    /// Applies the written events to the facts, and publishes them to readers and the index.
    fn publish(&mut self, batch: &mut Vec<NewEvent>) -> Vec<Arc<TurnRecord>> {
        let mut stamper = Stamper::after(&self.facts);
        let mut turns = Vec::new();
        for NewEvent { at_ms, turn, link, kind, body } in batch.drain(..) {
            let stamp = stamper.stamp(turn, &kind, body.len() as u64);
            let event = Event { seq: stamp.seq, at_ms, turn, link, kind };
            turns.extend(self.facts.apply(&event, stamp, body.len() as u64).map(Arc::new));
        }
        self.shared.publish(self.newest.bytes, &self.marks, &self.facts);
        for turn in &turns {
            self.shared.add_ended_turn(turn.clone());
        }
        if self.facts.ended.is_some() {
            if let Ok(file) = self.newest.file.try_clone() {
                self.indexer.sync_later(file);
            }
            self.index_row();
        } else if !turns.is_empty() {
            self.indexer.notify(&self.shared);
        }
        turns
    }

    /// Starts a new segment, and drops old segments past the quota. Returns the dropped output bytes.
    pub(crate) fn roll(&mut self) -> Result<u64, AppendError> {
        let needed: Vec<Seq> = self
            .facts
            .open_turns
            .iter()
            .chain(&self.facts.accepting)
            .flat_map(|turn| (turn.accepted_seq.0..=turn.code_to_seq.0).map(Seq))
            .collect();
        let quota_bytes = self.facts.created.quota_bytes;
        let unindexed = self.shared.unindexed();
        let (drops, dropped_bytes) = {
            let segments = self.shared.segments();
            let drops = quota::segments_to_drop(&segments, quota_bytes, &needed, &unindexed);
            let lost = |segment: &&Segment| drops.contains(&segment.first_seq);
            let bytes = |segment: &Segment| segment.out_end - segment.first_out;
            let dropped_bytes: u64 = segments.iter().filter(lost).map(bytes).sum();
            (drops, dropped_bytes)
        };
        self.facts.output_dropped_bytes += dropped_bytes;
        let head = SegmentHead {
            journal: FORMAT,
            session: self.shared.id.clone(),
            first_seq: self.facts.last_seq.next(),
            out: self.facts.output_bytes,
            prev: Some(self.newest.first_seq),
            drops,
        };
        let fresh = match start_segment(&self.shared.dir, &head, &self.facts) {
            Ok(fresh) => fresh,
            Err(error) => {
                self.facts.output_dropped_bytes -= dropped_bytes;
                return Err(error);
            }
        };
        let old = std::mem::replace(&mut self.newest, fresh);
        // A flood of output fills segments faster than the disk can sync them, and most of them are dropped
        // again.
        let took_ms = self.facts.last_at_ms.saturating_sub(self.rolled_at_ms);
        self.rolled_at_ms = self.facts.last_at_ms;
        if took_ms >= SYNC_AFTER_MS {
            self.indexer.sync_later(old.file);
        }
        self.replace_in_list(&head);
        for first_seq in &head.drops {
            remove_segment(&segment::path(&self.shared.dir, *first_seq));
        }
        self.index_row();
        Ok(dropped_bytes)
    }

    fn replace_in_list(&self, head: &SegmentHead) {
        let mut segments = self.shared.segments();
        if let Some(last) = segments.last_mut() {
            last.thin_marks();
        }
        let mut gap = false;
        segments.retain_mut(|segment| {
            let dropped = head.drops.contains(&segment.first_seq);
            if !dropped && gap {
                segment.contiguous = false;
            }
            gap = dropped;
            !dropped
        });
        segments.push(Segment::new(head, self.newest.bytes));
    }

    /// Makes the index writer read the ended turns that it misses from the segments.
    pub(crate) fn index_from_segments(&self) {
        self.shared.backlog().dropped_turns += 1;
        self.indexer.notify(&self.shared);
    }

    fn index_row(&self) {
        let facts = Arc::new(self.facts.clone());
        let kept_bytes = self.shared.kept_bytes();
        self.shared.backlog().row = Some(IndexRow { facts, kept_bytes });
        self.indexer.notify(&self.shared);
    }
}

impl Drop for SessionLog {
    fn drop(&mut self) {
        self.shared.open.store(false, Ordering::Release);
        // The index writer stores the last facts, and then removes the session from the registry.
        self.index_row();
    }
}

/// Creates the file of a new segment with its head. On an error, no file remains.
pub(crate) fn start_segment(
    dir: &Path,
    head: &SegmentHead,
    facts: &SessionFacts,
) -> Result<NewestSegment, AppendError> {
    let path = segment::path(dir, head.first_seq);
    let file = create_segment(&path)?;
    fill_segment(file, path, head, facts)
}

/// Creates the empty file of a new segment.
pub(crate) fn create_segment(path: &Path) -> Result<File, AppendError> {
    let made = OpenOptions::new().write(true).create(true).truncate(true).open(path);
    made.map_err(|cause| AppendError::new(path, cause))
}

/// Writes the head into an empty segment. On an error, removes the file.
pub(crate) fn fill_segment(
    file: File,
    path: PathBuf,
    head: &SegmentHead,
    facts: &SessionFacts,
) -> Result<NewestSegment, AppendError> {
    let written = segment::encode_head(head, facts)
        .map_err(|long| AppendError::TooLarge { bytes: long.bytes })
        .and_then(|bytes| match file.write_all_at(&bytes, 0) {
            Ok(()) => Ok(bytes.len() as u64),
            Err(cause) => Err(AppendError::new(&path, cause)),
        });
    match written {
        Ok(bytes) => {
            let first_seq = head.first_seq;
            Ok(NewestSegment {
                file,
                path,
                first_seq,
                bytes,
                grown_from: bytes,
                has_torn_tail: false,
                must_roll: false,
            })
        }
        Err(error) => {
            remove_segment(&path);
            Err(error)
        }
    }
}

pub(crate) fn remove_segment(path: &Path) {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %cause, "cannot remove a dropped journal segment");
        }
        _ => {}
    }
}

fn write_all_slices(file: &File, slices: &mut [IoSlice<'_>], at: u64) -> io::Result<u64> {
    let (mut slices, mut written) = (slices, 0);
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let some = &slices[..slices.len().min(WRITE_SLICES_MAX)];
        match rustix::io::pwritev(file, some, at + written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                written += bytes as u64;
                IoSlice::advance_slices(&mut slices, bytes);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(written)
}

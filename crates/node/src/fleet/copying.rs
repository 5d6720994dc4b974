//! Copies the events of this node's sessions to the fleet's store, behind the turns: no turn waits for it. Each session
//! has a task, which ends when the session has ended and its last event is copied. The journal is the truth, so a task
//! that cannot reach the store keeps only its position and tries again.
//!
//! A task knows at each start from the store how far the copy goes. [`ended`] copies the sessions further that have no task
//! any more.

mod ended;

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use windlass_fleet::copies::{CopiedEvents, CopyProgress, EventCopyError, SessionCopy};
use windlass_journal::{IndexError, Journal, NewSession, ReadError, SessionReader};
use windlass_lifecycle::fleet::{LeaseStanding, SessionFate};
use windlass_protocol::api::Durability;
use windlass_protocol::{Event, Revision, Seq, SessionId};

use super::trim::{CopyItem, OutputTrim, ReadOutput};
use super::{FleetNode, JoinedFleet};
use crate::session::SessionHandle;

pub(super) use ended::copy_ended;

/// Maximum number of batches that are made or on their way to the store, and of lookups of entries, of all sessions.
const BATCHES_MAX: usize = 32;

/// Maximum number of concurrent reads of journals on other threads.
const READS_MAX: usize = 4;

/// Maximum number of events and bytes in one read of a journal.
const PAGE_EVENTS_MAX: usize = 1000;
const PAGE_BYTES: usize = 64 * 1024;

/// The first and the longest pause between two tries to reach the store.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long the store keeps copies of events.
pub(super) const COPIES_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a copy gathers events before it sends them. A session that runs one turn after another then costs the node
/// some batches a second, and not one for each event.
const GATHER: Duration = Duration::from_millis(50);

/// The comment of a copy that says how its session was made, before the first event of a batch.
pub(super) const CREATED: &str = "created ";

/// How often the comment is written. The store forgets old batches, also of a session that goes on.
const CREATED_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// A longer record of a session's creation is copied without the node's part of it.
const CREATED_BYTES_MAX: usize = 256 * 1024;

/// The copies of all sessions of this node.
#[derive(Debug)]
pub(super) struct SessionCopies {
    batches: Semaphore,
    reads: Arc<Semaphore>,
    /// The last copied event of each session whose copy goes on.
    copied: Mutex<HashMap<SessionId, watch::Receiver<Seq>>>,
}

impl Default for SessionCopies {
    fn default() -> Self {
        Self {
            batches: Semaphore::new(BATCHES_MAX),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            copied: Mutex::default(),
        }
    }
}

impl FleetNode {
    /// Begins to copy the events of a live session.
    pub fn copy_events(self: &Arc<Self>, handle: &SessionHandle, journal: &Journal) {
        let (copied, watermark) = watch::channel(Seq(0));
        let session = handle.id.clone();
        self.copies.copied().insert(session.clone(), watermark.clone());
        let reads = self.copies.reads.clone();
        let task = CopyTask {
            fleet: self.clone(),
            // Now, because the entry is forgotten when the session ends.
            incarnation: self.entries().get(&session).copied().flatten(),
            session,
            seen: handle.seen.clone(),
            durability: handle.durability,
            has_ended: false,
            copied,
            source: JournalEvents::new(handle.reader.clone(), journal.clone(), reads),
        };
        tokio::spawn(async move {
            let (fleet, session) = (task.fleet.clone(), task.session.clone());
            task.run().await;
            let mut all = fleet.copies.copied();
            // A later session of the same name has its own copy.
            if all.get(&session).is_some_and(|other| other.same_channel(&watermark)) {
                all.remove(&session);
            }
        });
    }

    /// The last copied event of a session whose events this node copies.
    pub fn watermark(&self, session: &SessionId) -> Option<watch::Receiver<Seq>> {
        self.copies.copied().get(session).cloned()
    }

    /// Whether this node still is the one that joined.
    fn may_copy(&self, joined: &Arc<JoinedFleet>) -> bool {
        let is_same = self.joined().is_some_and(|now| Arc::ptr_eq(&now, joined));
        is_same && joined.membership.standing() != LeaseStanding::Fenced
    }
}

impl SessionCopies {
    fn copied(&self) -> MutexGuard<'_, HashMap<SessionId, watch::Receiver<Seq>>> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The copy of one session.
struct CopyTask {
    fleet: Arc<FleetNode>,
    session: SessionId,
    /// The revision of the session's entry when the session was created, if this start of the node wrote it.
    incarnation: Option<Revision>,
    seen: watch::Receiver<Seq>,
    durability: Durability,
    /// No event follows in the journal.
    has_ended: bool,
    copied: watch::Sender<Seq>,
    source: JournalEvents,
}

impl CopyTask {
    async fn run(mut self) {
        let Some(joined) = self.joined().await else { return };
        let Some(incarnation) = self.incarnation(&joined).await else { return };
        let last = self.source.reader.last_seq();
        let mut copy =
            SessionCopy::new(joined.store.clone(), self.session.clone(), incarnation, last);
        let mut pause = PAUSE;
        while self.fleet.may_copy(&joined) {
            let appended = self.source.reader.last_seq();
            copy.appended(appended);
            let Ok(permit) = self.fleet.copies.batches.acquire().await else { return };
            let step = copy.step(joined.membership.stamp(), &mut self.source).await;
            drop(permit);
            self.copied.send_if_modified(|copied| {
                std::mem::replace(copied, copy.copied()) != copy.copied()
            });
            match step {
                Ok(CopyProgress::Moved) => pause = PAUSE,
                Ok(CopyProgress::Complete) if self.has_ended => return,
                Ok(CopyProgress::Complete) => self.wait_for_events(appended).await,
                Ok(CopyProgress::Unanswered) => back_off(&mut pause).await,
                Err(error) => {
                    let session = &self.session;
                    tracing::debug!(%session, %error, "the events of the session are not copied yet");
                    // The journal of an ended session may be removed meanwhile.
                    if self.has_ended && matches!(error, EventCopyError::Source(_)) {
                        return;
                    }
                    back_off(&mut pause).await;
                }
            }
        }
    }

    /// The fleet, once the node has joined it. `None` if the session ends before.
    async fn joined(&mut self) -> Option<Arc<JoinedFleet>> {
        let mut changes = self.fleet.joined.subscribe();
        loop {
            if let Some(joined) = self.fleet.joined() {
                return Some(joined);
            }
            tokio::select! {
                changed = changes.changed() => changed.ok()?,
                () = closed(&mut self.seen) => return None,
            }
        }
    }

    /// The revision of the session's entry when the session was created. `None` if the session is not this node's.
    async fn incarnation(&mut self, joined: &Arc<JoinedFleet>) -> Option<Revision> {
        if self.incarnation.is_some() {
            return self.incarnation;
        }
        let mut pause = PAUSE;
        while self.fleet.may_copy(joined) {
            // After a restart of the node, all sessions look at once.
            let Ok(permit) = self.fleet.copies.batches.acquire().await else { return None };
            let found = self.entry(joined).await;
            drop(permit);
            match found {
                ControlFlow::Break(found) => return found,
                ControlFlow::Continue(()) if self.has_ended => return None,
                ControlFlow::Continue(()) => {}
            }
            tokio::select! {
                () = back_off(&mut pause) => {}
                () = closed(&mut self.seen) => self.has_ended = true,
            }
        }
        None
    }

    /// Reads the entry of a session that an earlier start of the node created. The entry may not be written yet.
    async fn entry(&self, joined: &JoinedFleet) -> ControlFlow<Option<Revision>> {
        match joined.directory.find(&self.session).await {
            Ok(Some(found)) if found.entry.owner != *self.fleet.name() => ControlFlow::Break(None),
            Ok(Some(found)) if found.fate == SessionFate::Live => {
                ControlFlow::Break(Some(found.revision))
            }
            Ok(_) | Err(_) => ControlFlow::Continue(()),
        }
    }

    async fn wait_for_events(&mut self, after: Seq) {
        let mut gone = self.seen.wait_for(|seq| *seq > after).await.is_err();
        if !gone && self.durability == Durability::Local {
            tokio::time::sleep(GATHER).await;
            gone = self.seen.has_changed().is_err();
        }
        // The sender is dropped when the session ends. Its last events are in the journal by then.
        self.has_ended = gone;
        // Gathered events may be in the file only.
        self.source.is_fresh = !gone && self.durability == Durability::Replicated;
    }
}

/// Returns when the session has ended.
async fn closed(seen: &mut watch::Receiver<Seq>) {
    while seen.changed().await.is_ok() {}
}

async fn back_off(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

/// The events of a session's journal, as the copy has them.
struct JournalEvents {
    reader: SessionReader,
    journal: Journal,
    reads: Arc<Semaphore>,
    trim: OutputTrim,
    output: ReadOutput,
    /// Events that are ready to be copied.
    ready: VecDeque<CopyItem>,
    ready_bytes: usize,
    /// The last event that was read from the journal.
    read: Seq,
    /// The last event of the last batch.
    handed: Seq,
    /// The next events were appended a moment ago, so they are in memory.
    is_fresh: bool,
    /// When a batch last said how the session was made. `None` if it is not known whether that batch is in the copy.
    told_creation: Option<Instant>,
}

/// Whether the batch behind this event says how the session was made, which a batch did `told` ago.
fn tells_creation(after: Seq, told: Option<Duration>) -> bool {
    after == Seq(0) || told.is_none_or(|ago| ago >= CREATED_PAUSE)
}

/// Why events cannot be read for the copy.
#[derive(Debug, thiserror::Error)]
pub(super) enum JournalEventsError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error("the node stops")]
    Stopped,
}

impl CopiedEvents for JournalEvents {
    type Error = JournalEventsError;

    async fn events(
        &mut self,
        after: Seq,
        bytes_max: usize,
    ) -> Result<Option<(Bytes, Seq)>, Self::Error> {
        if after != self.handed {
            self.begin_at(after);
        }
        while self.ready_bytes < bytes_max {
            let page = self.page().await?;
            if page.is_empty() {
                break;
            }
            for (event, body) in page {
                let known = self.ready.len();
                if event.seq > self.read.next() {
                    let start = self.reader.output_start(event.seq);
                    if let Some(dropped) = self.output.dropped_before(&event, start) {
                        self.trim.push(dropped, &Bytes::new(), &mut self.ready);
                    }
                }
                self.read = event.seq;
                self.output.add(&event.kind, body.len() as u64);
                self.trim.push(event, &body, &mut self.ready);
                let new = self.ready.iter().skip(known);
                self.ready_bytes += new.map(|item| item.text.len()).sum::<usize>();
            }
        }
        if self.ready.is_empty() {
            return Ok(None);
        }
        let mut batch = Vec::new();
        if tells_creation(after, self.told_creation.map(|at| at.elapsed())) {
            batch = self.created().await?;
            self.told_creation = Some(Instant::now());
        }
        let mut count = 0;
        while let Some(item) = self.ready.front() {
            if count > 0 && batch.len() + item.text.len() > bytes_max {
                break;
            }
            let Some(item) = self.ready.pop_front() else { break };
            self.ready_bytes -= item.text.len();
            batch.extend_from_slice(&item.text);
            self.handed = item.seq;
            count += 1;
        }
        Ok(Some((batch.into(), self.handed)))
    }
}

impl JournalEvents {
    fn new(reader: SessionReader, journal: Journal, reads: Arc<Semaphore>) -> Self {
        Self {
            reader,
            journal,
            reads,
            trim: OutputTrim::default(),
            output: ReadOutput::behind(Seq(0)),
            ready: VecDeque::new(),
            ready_bytes: 0,
            read: Seq(0),
            handed: Seq(0),
            is_fresh: false,
            told_creation: None,
        }
    }

    /// Begins anew behind an event: the copy does not go on where the last batch ended. If the event is inside a turn,
    /// the rest of the turn's output is trimmed like that of a new turn.
    fn begin_at(&mut self, after: Seq) {
        self.trim = OutputTrim::default();
        self.output = ReadOutput::behind(after);
        self.ready.clear();
        self.ready_bytes = 0;
        (self.read, self.handed) = (after, after);
        self.is_fresh = false;
        self.told_creation = None;
    }

    /// The next events of the journal. Reads recent events on this thread, others on a thread that may block.
    async fn page(&mut self) -> Result<Vec<(Event, Bytes)>, JournalEventsError> {
        if self.reader.last_seq() <= self.read {
            return Ok(Vec::new());
        }
        if std::mem::take(&mut self.is_fresh) {
            return Ok(self.reader.events(self.read, PAGE_EVENTS_MAX, PAGE_BYTES)?);
        }
        let (mut reader, after) = (self.reader.clone(), self.read);
        let (reader, page) = self
            .blocking(move || {
                let page = reader.events(after, PAGE_EVENTS_MAX, PAGE_BYTES);
                (reader, page)
            })
            .await?;
        self.reader = reader;
        Ok(page?)
    }

    /// The comment that says how the session was made.
    async fn created(&self) -> Result<Vec<u8>, JournalEventsError> {
        let (journal, session) = (self.journal.clone(), self.reader.id().clone());
        let facts = self.blocking(move || journal.session(&session)).await??;
        Ok(facts.map_or_else(Vec::new, |facts| created_comment(facts.created)))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JournalEventsError> {
        let permit = self.reads.clone().acquire_owned().await;
        let permit = permit.map_err(|_| JournalEventsError::Stopped)?;
        let work = move || {
            let done = work();
            drop(permit);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| JournalEventsError::Stopped)
    }
}

fn created_comment(mut created: NewSession) -> Vec<u8> {
    let comment = |created: &NewSession| {
        let json = serde_json::to_string(created);
        json.map(|json| format!(": {CREATED}{json}\n\n").into_bytes()).unwrap_or_default()
    };
    let whole = comment(&created);
    if whole.len() <= CREATED_BYTES_MAX {
        return whole;
    }
    created.spec = serde_json::Value::Object(serde_json::Map::new());
    comment(&created)
}

#[cfg(test)]
mod tests {
    use windlass_journal::{JournalOptions, NewEvent, SessionLog};
    use windlass_protocol::event::{EventKind, Stream};

    use super::*;
    use crate::event_stream::{StreamFrame, frames};

    fn append(log: &mut SessionLog, numbers: std::ops::RangeInclusive<u64>) {
        let event = |number: u64| NewEvent {
            at_ms: number,
            turn: None,
            link: None,
            kind: EventKind::Output { stream: Stream::Stdout, background: true },
            body: format!("line {number}").into(),
        };
        log.append(numbers.map(event).collect()).unwrap();
    }

    fn new_session() -> NewSession {
        NewSession {
            id: SessionId::parse("s1").unwrap(),
            created_at_ms: 3,
            workspace: "/work".to_owned(),
            worker_kind: "python".to_owned(),
            spec: serde_json::json!({ "idle_s": 5 }),
            quota_bytes: 0,
        }
    }

    /// The next batch: whether it says how the session was made, and the numbers of its events.
    async fn batch(source: &mut JournalEvents, after: u64, bytes: usize) -> (bool, Vec<u64>) {
        let found = source.events(Seq(after), bytes).await.unwrap();
        let Some((batch, last)) = found else { return (false, Vec::new()) };
        let (mut has_created, mut numbers) = (false, Vec::new());
        for frame in frames(&batch).unwrap() {
            match frame {
                StreamFrame::Comment(text) => has_created |= text.starts_with(CREATED.as_bytes()),
                StreamFrame::Event { seq, .. } => numbers.push(seq.0),
            }
        }
        assert_eq!(numbers.last(), Some(&last.0));
        (has_created, numbers)
    }

    #[tokio::test]
    async fn batches_follow_the_journal_from_wherever_the_copy_is() {
        const NOTHING: (bool, Vec<u64>) = (false, Vec::new());
        let all = |range: std::ops::RangeInclusive<u64>| range.collect::<Vec<u64>>();
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), JournalOptions::default()).unwrap();
        let mut log = journal.create(new_session()).unwrap();
        let reads = Arc::new(Semaphore::new(1));
        let mut source = JournalEvents::new(log.reader(), journal.clone(), reads);
        assert_eq!(batch(&mut source, 0, 1000).await, NOTHING);
        append(&mut log, 1..=20);
        assert_eq!(batch(&mut source, 0, 1).await, (true, all(1..=1)));
        assert_eq!(batch(&mut source, 1, 64 * 1024).await, (false, all(2..=20)));
        assert_eq!(batch(&mut source, 20, 64 * 1024).await, NOTHING);
        // The store did not get the last batches, or has more than this start of the node has sent.
        assert_eq!(batch(&mut source, 5, 64 * 1024).await, (true, all(6..=20)));
        assert_eq!(batch(&mut source, 0, 64 * 1024).await, (true, all(1..=20)));
        append(&mut log, 21..=22);
        source.is_fresh = true;
        assert_eq!(batch(&mut source, 20, 64 * 1024).await, (false, all(21..=22)));
    }

    #[test]
    fn how_a_session_was_made_is_told_first_and_again_after_a_day() {
        let (hour, day) = (Duration::from_secs(3600), Duration::from_secs(24 * 3600));
        for (after, told, expected) in [
            (0, None, true),
            (0, Some(hour), true),
            (7, None, true),
            (7, Some(hour), false),
            (7, Some(day), true),
        ] {
            assert_eq!(tells_creation(Seq(after), told), expected, "{after} {told:?}");
        }
    }

    #[test]
    fn a_long_record_of_a_creation_is_copied_without_the_nodes_part() {
        let mut long = new_session();
        long.spec = serde_json::json!({ "policy": "x".repeat(CREATED_BYTES_MAX) });
        let comment = created_comment(long);
        assert!(comment.len() < 1000);
        let found = frames(&comment.into()).unwrap();
        let [StreamFrame::Comment(text)] = &found[..] else { panic!("{found:?}") };
        let json = text.strip_prefix(CREATED.as_bytes()).unwrap();
        let read: NewSession = serde_json::from_slice(json).unwrap();
        assert_eq!((read.id.as_str(), read.spec), ("s1", serde_json::json!({})));
    }
}

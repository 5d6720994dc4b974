//! The background threads of the journal: one writes the index, the other syncs full segments to the disk.
//! A log notifies the index thread and never waits. If the queue is full, the change stays in the session's
//! backlog, and the thread finds it later.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use windlass_protocol::{Seq, SessionId};

use crate::index::{self, IndexError};
use crate::load;
use crate::shared::{IndexBacklog, SharedSession, lock};

/// Maximum number of queued messages to the index writer. A session is queued at most once at a time.
const QUEUE_MAX: usize = 1024;

/// Sessions written in one transaction.
const BATCH_SESSIONS_MAX: usize = 256;

/// Maximum number of full segments that wait for a sync. Further segments are left to the kernel.
const SYNC_QUEUE_MAX: usize = 16;

/// Delay before a retry after a failed write to the index.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The sessions with an open log or with changes that are not indexed yet.
pub(crate) type Registry = Mutex<HashMap<SessionId, Arc<SharedSession>>>;

enum IndexerMessage {
    SessionChanged(Arc<SharedSession>),
    Flush(SyncSender<()>),
    RemoveSession(SessionId, SyncSender<rusqlite::Result<()>>),
}

/// The handle of the background threads. Dropping it lets them finish their work and joins them.
#[derive(Debug)]
pub(crate) struct Indexer {
    messages: Option<SyncSender<IndexerMessage>>,
    files: Option<SyncSender<File>>,
    /// A message found the queue full, so the writer must scan all sessions for a backlog.
    queue_overflowed: Arc<AtomicBool>,
    path: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

impl Indexer {
    pub(crate) fn start(
        connection: Connection,
        path: &Path,
        registry: Arc<Registry>,
        gather: Duration,
    ) -> std::io::Result<Self> {
        let (messages, inbox) = sync_channel(QUEUE_MAX);
        let (files, full) = sync_channel::<File>(SYNC_QUEUE_MAX);
        let queue_overflowed = Arc::new(AtomicBool::new(false));
        let writer = IndexWriter {
            connection,
            path: path.to_owned(),
            registry,
            queue_overflowed: queue_overflowed.clone(),
            gather,
            failing: false,
        };
        let index = thread::Builder::new()
            .name("journal-index".into())
            .spawn(move || writer.run(&inbox))?;
        let sync = thread::Builder::new().name("journal-sync".into()).spawn(move || {
            for file in full {
                // The sync only protects against power loss. After a failed sync, the kernel still has the
                // data.
                let _ = file.sync_data();
            }
        })?;
        let path = path.to_owned();
        let (messages, files) = (Some(messages), Some(files));
        Ok(Self { messages, files, queue_overflowed, path, threads: vec![index, sync] })
    }

    /// Notifies the index writer that a session has a backlog.
    pub(crate) fn notify(&self, shared: &Arc<SharedSession>) {
        if shared.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(messages) = &self.messages else { return };
        if let Err(TrySendError::Full(_)) =
            messages.try_send(IndexerMessage::SessionChanged(shared.clone()))
        {
            shared.queued.store(false, Ordering::Release);
            self.queue_overflowed.store(true, Ordering::Release);
        }
    }

    /// Syncs a finished segment to the disk in the background. Skips it if the queue is full.
    pub(crate) fn sync_later(&self, file: File) {
        if let Some(files) = &self.files {
            let _ = files.try_send(file);
        }
    }

    /// Waits until the writer has tried to index everything that was appended before this call.
    pub(crate) fn flush(&self) -> Result<(), IndexError> {
        let (done, wait) = sync_channel(1);
        self.send(IndexerMessage::Flush(done))?;
        wait.recv().map_err(|_| IndexError::Stopped)
    }

    pub(crate) fn remove_session(&self, session: SessionId) -> Result<(), IndexError> {
        let (done, wait) = sync_channel(1);
        self.send(IndexerMessage::RemoveSession(session, done))?;
        let result = wait.recv().map_err(|_| IndexError::Stopped)?;
        result.map_err(|cause| IndexError::Sqlite { path: self.path.clone(), cause })
    }

    fn send(&self, message: IndexerMessage) -> Result<(), IndexError> {
        let messages = self.messages.as_ref().ok_or(IndexError::Stopped)?;
        messages.send(message).map_err(|_| IndexError::Stopped)
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.messages = None;
        self.files = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct IndexWriter {
    connection: Connection,
    path: PathBuf,
    registry: Arc<Registry>,
    queue_overflowed: Arc<AtomicBool>,
    /// How long to wait for more messages after the first, so that busy sessions share a transaction.
    gather: Duration,
    failing: bool,
}

#[derive(Default)]
struct IndexBatch {
    sessions: Vec<Arc<SharedSession>>,
    flushes: Vec<SyncSender<()>>,
    removals: Vec<(SessionId, SyncSender<rusqlite::Result<()>>)>,
}

impl IndexBatch {
    fn take(&mut self, message: IndexerMessage) {
        match message {
            IndexerMessage::SessionChanged(shared) => self.sessions.push(shared),
            IndexerMessage::Flush(done) => self.flushes.push(done),
            IndexerMessage::RemoveSession(session, done) => self.removals.push((session, done)),
        }
    }

    /// Whether to write now: a caller waits, or the batch is full.
    fn is_due(&self) -> bool {
        !self.flushes.is_empty()
            || !self.removals.is_empty()
            || self.sessions.len() >= BATCH_SESSIONS_MAX
    }
}

impl IndexWriter {
    fn run(mut self, inbox: &Receiver<IndexerMessage>) {
        let mut open = true;
        while open {
            let mut batch = IndexBatch::default();
            open = self.gather(inbox, &mut batch);
            self.work(batch);
        }
        let _ = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
    }

    /// Collects messages into a batch. Returns false once the channel is closed.
    fn gather(&self, inbox: &Receiver<IndexerMessage>, batch: &mut IndexBatch) -> bool {
        let first = match self.failing {
            true => inbox.recv_timeout(RETRY_AFTER),
            false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match first {
            Ok(message) => batch.take(message),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        let until = Instant::now() + self.gather;
        while !batch.is_due() {
            match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => batch.take(message),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    fn work(&mut self, batch: IndexBatch) {
        let IndexBatch { mut sessions, flushes, removals } = batch;
        if self.queue_overflowed.swap(false, Ordering::AcqRel) {
            let registry = lock(&self.registry);
            sessions.extend(registry.values().filter(|known| !known.backlog().is_empty()).cloned());
        }
        self.failing = false;
        for some in sessions.chunks(BATCH_SESSIONS_MAX) {
            if let Err(cause) = self.write(some) {
                tracing::warn!(path = %self.path.display(), %cause, "cannot write the index; will retry");
                if index::is_damage(&cause) {
                    // The next start rebuilds the index. Until then, lookups read the segments.
                    let _ = File::create(rebuild_marker(&self.path));
                }
                self.failing = true;
                self.queue_overflowed.store(true, Ordering::Release);
            }
        }
        for (session, done) in removals {
            let _ = done.send(self.delete(&session));
        }
        for done in flushes {
            let _ = done.send(());
        }
    }

    fn write(&mut self, sessions: &[Arc<SharedSession>]) -> rusqlite::Result<()> {
        let tx = self.connection.transaction()?;
        let mut done: Vec<(&Arc<SharedSession>, IndexBacklog)> = Vec::with_capacity(sessions.len());
        for shared in sessions {
            // Reset the flag before reading the backlog: a later change then queues the session again.
            shared.queued.store(false, Ordering::Release);
            let backlog = shared.backlog().clone();
            let mut seq = backlog.turns.keys().next_back().copied();
            if backlog.dropped_turns > 0 {
                let after = index::indexed_seq(&tx, &shared.id)?.unwrap_or(Seq(0));
                match load::ended_turns(&shared.dir, &shared.id, after) {
                    Ok((turns, _)) => {
                        for turn in &turns {
                            index::put_turn(&tx, &shared.id, turn)?;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(session = %shared.id, %error, "cannot read segments to index turns");
                    }
                }
            }
            for turn in backlog.turns.values() {
                index::put_turn(&tx, &shared.id, turn)?;
            }
            if let Some(row) = &backlog.row {
                index::put_session(&tx, row)?;
                seq = seq.max(Some(row.facts.last_seq));
            }
            if let Some(seq) = seq {
                index::set_indexed(&tx, &shared.id, seq)?;
            }
            done.push((shared, backlog));
        }
        tx.commit()?;
        let mut registry = lock(&self.registry);
        for (shared, backlog) in done {
            shared.remove_indexed(&backlog);
            let idle = !shared.open.load(Ordering::Acquire) && shared.backlog().is_empty();
            if idle && registry.get(&shared.id).is_some_and(|known| Arc::ptr_eq(known, shared)) {
                registry.remove(&shared.id);
            }
        }
        Ok(())
    }

    fn delete(&mut self, session: &SessionId) -> rusqlite::Result<()> {
        let tx = self.connection.transaction()?;
        index::delete_session(&tx, session.as_str())?;
        tx.commit()
    }
}

/// The marker file that makes the next start rebuild the index.
pub(crate) fn rebuild_marker(index: &Path) -> PathBuf {
    index.with_extension("rebuild")
}

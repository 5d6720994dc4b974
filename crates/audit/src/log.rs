//! Takes records without waiting: a bounded queue leads to the writer's thread. A record that does not fit, or that cannot
//! be written, is counted, and the next record tells the count.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::entry::AuditEntry;
use crate::queue::{LogCounters, QueueItem};
use crate::retention::AuditOptions;
use crate::writer::AuditWriter;

/// Maximum number of records that wait for the writer.
const QUEUE_MAX: usize = 4096;

/// The log of a running node.
#[derive(Debug, Clone)]
pub struct AuditLog(Option<Arc<OpenLog>>);

#[derive(Debug)]
struct OpenLog {
    queue: SyncSender<QueueItem>,
    shared: Arc<LogCounters>,
    /// Tells that the writer has ended.
    ended: Mutex<Receiver<()>>,
}

/// How the log stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditStanding {
    /// Records written since the node started.
    pub written: u64,
    /// Records that were lost since the node started.
    pub dropped: u64,
    /// Whether records are missing that no record tells of yet, or wait for long.
    pub is_behind: bool,
}

impl AuditLog {
    /// A log that takes no records.
    pub fn disabled() -> Self {
        Self(None)
    }

    /// Starts the writer. It makes the directory and continues the log that is there. If that fails, records are dropped
    /// and counted, and the writer tries again with each record.
    pub fn start(dir: PathBuf, options: AuditOptions) -> Self {
        if !options.enabled {
            return Self::disabled();
        }
        let (queue, inbox) = sync_channel(QUEUE_MAX);
        let (has_ended, ended) = sync_channel(1);
        let shared = Arc::new(LogCounters::default());
        let writer = AuditWriter::new(dir, options, shared.clone());
        let run = move || {
            writer.run(&inbox);
            // Nobody may wait for it.
            let _ = has_ended.try_send(());
        };
        if let Err(error) = std::thread::Builder::new().name("audit".to_owned()).spawn(run) {
            tracing::error!(%error, "cannot start the writer of the audit log: its records are lost");
        }
        Self(Some(Arc::new(OpenLog { queue, shared, ended: Mutex::new(ended) })))
    }

    /// Whether records are taken at all.
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a record. Never waits.
    pub fn record(&self, mut entry: AuditEntry) {
        let Some(log) = &self.0 else { return };
        log.shared.count_code(&mut entry);
        let refused = match log.queue.try_send(QueueItem::Entry(Box::new(entry))) {
            Ok(()) => return,
            Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) => item,
        };
        log.shared.drop_records(1);
        if let QueueItem::Entry(entry) = refused {
            log.shared.forget_code(&entry);
        }
    }

    pub fn standing(&self) -> AuditStanding {
        let Some(log) = &self.0 else { return AuditStanding::default() };
        let LogCounters { written, dropped, untold, .. } = &*log.shared;
        AuditStanding {
            written: written.load(Ordering::Relaxed),
            dropped: dropped.load(Ordering::Relaxed),
            is_behind: untold.load(Ordering::Relaxed) > 0 || log.shared.is_stuck(Instant::now()),
        }
    }

    /// Waits until the records so far are on the disk, but not longer than `limit`. Later records are dropped. Blocks.
    pub fn finish(&self, limit: Duration) {
        let Some(log) = &self.0 else { return };
        log.shared.is_stopping.store(true, Ordering::Release);
        // If the queue is full, the writer looks after the records in it.
        let _ = log.queue.try_send(QueueItem::Wake);
        let ended = log.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(limit).is_err() {
            tracing::warn!("the last records of the audit log may be lost: the disk is slow");
        }
    }
}

#[cfg(test)]
impl AuditLog {
    /// A log without a writer, and its queue.
    pub(crate) fn stuck() -> (Self, Receiver<QueueItem>) {
        let (queue, inbox) = sync_channel(QUEUE_MAX);
        let (_, ended) = sync_channel(1);
        let (shared, ended) = (Arc::default(), Mutex::new(ended));
        (Self(Some(Arc::new(OpenLog { queue, shared, ended }))), inbox)
    }

    pub(crate) fn waiting_code(&self) -> usize {
        self.0.as_ref().map_or(0, |log| log.shared.waiting_code.load(Ordering::Relaxed))
    }

    pub(crate) const QUEUE_MAX: usize = QUEUE_MAX;
}

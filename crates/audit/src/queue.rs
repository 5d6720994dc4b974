//! What the senders of records and the writer share: the items of the queue, and counts.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::entry::{AuditDetail, AuditEntry};
use crate::line::sha256;

/// Maximum bytes of code that wait to be hashed by the writer. The sender hashes what is more.
pub(crate) const WAITING_CODE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A writer that takes longer for one batch is stuck.
const BATCH_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) enum QueueItem {
    Entry(Box<AuditEntry>),
    /// The writer looks whether it is to end.
    Wake,
}

/// What the senders and the writer share.
#[derive(Debug, Default)]
pub(crate) struct LogCounters {
    pub written: AtomicU64,
    pub dropped: AtomicU64,
    /// Dropped records that no record tells of yet.
    pub untold: AtomicU64,
    /// Bytes of code in the queue.
    pub waiting_code: AtomicUsize,
    pub is_stopping: AtomicBool,
    /// Since when the writer is busy; `None` while it waits for records.
    pub busy_since: Mutex<Option<Instant>>,
}

impl LogCounters {
    pub fn set_busy(&self, since: Option<Instant>) {
        *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Whether records wait for a writer that waits for the disk, or for the node that had the log before.
    pub fn is_stuck(&self, now: Instant) -> bool {
        let since = *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| now.saturating_duration_since(since) > BATCH_TIME_MAX)
    }

    pub fn drop_records(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
        self.untold.fetch_add(count, Ordering::Relaxed);
    }

    /// The code of this entry waits no longer.
    pub fn forget_code(&self, entry: &AuditEntry) {
        for (_, detail) in &entry.what.0 {
            if let AuditDetail::Code(code) = detail {
                self.waiting_code.fetch_sub(code.len(), Ordering::Relaxed);
            }
        }
    }

    /// Counts the code of a new entry. Code that would be too much is hashed.
    pub fn count_code(&self, entry: &mut AuditEntry) {
        for (_, detail) in &mut entry.what.0 {
            let AuditDetail::Code(code) = detail else { continue };
            let bytes = code.len();
            let waiting = self.waiting_code.fetch_add(bytes, Ordering::Relaxed);
            if waiting.saturating_add(bytes) > WAITING_CODE_BYTES_MAX {
                self.waiting_code.fetch_sub(bytes, Ordering::Relaxed);
                *detail = AuditDetail::HashedCode { bytes, sha256: sha256(code) };
            }
        }
    }
}

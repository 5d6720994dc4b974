//! The copy of sessions' events. It runs behind the turns: nobody waits for it, unless a session asks for that.

use bytes::Bytes;
use windlass_lifecycle::fleet::{CopyHead, CopyRequest, EventCopy};
use windlass_protocol::fleet::WriteStamp;
use windlass_protocol::{Revision, Seq, SessionId};

use crate::store::{CopiedBatch, FleetStore, FleetStoreError};

/// Maximum number of bytes of events in one batch.
pub const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Gives the events of one session, from its journal.
pub trait CopiedEvents {
    type Error: std::error::Error + Send + Sync + 'static;

    /// Events after `after`, at least one and about `bytes_max` bytes, and the last of them. `None` if there is none.
    fn events(
        &mut self,
        after: Seq,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Option<(Bytes, Seq)>, Self::Error>> + Send;
}

/// Why a copy could not go on.
#[derive(Debug, thiserror::Error)]
pub enum EventCopyError {
    #[error("the events to copy cannot be read")]
    Source(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Store(#[from] FleetStoreError),
}

/// What one step of a copy did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyProgress {
    /// All events are copied, or a newer session has the name.
    Complete,
    /// There is more to do.
    Moved,
    /// The store gave no answer: wait, and try again.
    Unanswered,
}

/// The copy of one session's events.
#[derive(Debug)]
pub struct SessionCopy {
    store: FleetStore,
    session: SessionId,
    machine: EventCopy,
}

impl SessionCopy {
    /// `appended` is the last event in the journal.
    pub fn new(
        store: FleetStore,
        session: SessionId,
        incarnation: Revision,
        appended: Seq,
    ) -> Self {
        Self { store, session, machine: EventCopy::new(incarnation, appended) }
    }

    /// The last event that is known to be copied.
    pub fn copied(&self) -> Seq {
        self.machine.copied()
    }

    /// The journal has events up to this one.
    pub fn appended(&mut self, last: Seq) {
        self.machine.appended(last);
    }

    /// Copies one batch. `stamp` marks the write.
    pub async fn step(
        &mut self,
        stamp: WriteStamp,
        source: &mut impl CopiedEvents,
    ) -> Result<CopyProgress, EventCopyError> {
        match self.machine.next_request() {
            None => Ok(CopyProgress::Complete),
            Some(CopyRequest::ReadHead) => match self.store.read_copy_head(&self.session).await {
                Ok(current) => {
                    self.machine.head_read(current);
                    Ok(CopyProgress::Moved)
                }
                Err(FleetStoreError::Unavailable(_)) => {
                    self.machine.unanswered();
                    Ok(CopyProgress::Unanswered)
                }
                Err(error) => {
                    self.machine.unanswered();
                    Err(error.into())
                }
            },
            Some(CopyRequest::SendBatch { after, expected }) => {
                let read = source.events(after, BATCH_BYTES_MAX).await;
                let found = read.map_err(|error| EventCopyError::Source(Box::new(error)))?;
                let Some((events, last)) = found else { return Ok(CopyProgress::Complete) };
                self.machine.sending(last);
                let head = CopyHead { stamp, incarnation: self.machine.incarnation(), last };
                let batch = CopiedBatch { head, events };
                let answer = self.store.write_copy(&self.session, batch, expected).await;
                self.machine.sent(answer);
                Ok(match answer {
                    windlass_lifecycle::fleet::WriteAnswer::Unknown => CopyProgress::Unanswered,
                    _ => CopyProgress::Moved,
                })
            }
        }
    }
}

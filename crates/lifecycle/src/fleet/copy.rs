//! How far the events of one session are in the fleet's copy. The owner's journal is the truth, and the copy follows it
//! in batches, one at a time.
//!
//! Each batch is a conditional write behind the last one. If its answer is lost, the last batch of the copy is read: it
//! says how far the copy goes. So no event is copied twice, and none is left out.

use windlass_protocol::fleet::{Stamped, WriteStamp};
use windlass_protocol::{Revision, Seq};

use super::write::{Current, WriteAnswer};

/// What the last batch of a session's copy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyHead {
    pub stamp: WriteStamp,
    /// The revision of the session's entry when the session was created. A later session of the same name has a higher
    /// one.
    pub incarnation: Revision,
    /// The last event of the batch.
    pub last: Seq,
}

impl Stamped for CopyHead {
    fn stamp(&self) -> WriteStamp {
        self.stamp
    }
}

/// The next request of a session's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyRequest {
    /// Read the last batch of the copy, from the leader of the store.
    ReadHead,
    /// Send a batch of the events after `after`, if the last batch has this revision.
    SendBatch { after: Seq, expected: Revision },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyView {
    /// How far the copy goes is not known.
    Unknown,
    Known {
        revision: Revision,
    },
    /// The copy has events of another session of this name, which is newer.
    Superseded,
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct EventCopy {
    incarnation: Revision,
    copied: Seq,
    appended: Seq,
    view: CopyView,
    /// The last event of the batch that is being sent, or `None` while the head is read.
    pending: Option<Option<Seq>>,
}

impl EventCopy {
    /// A copy of a session's journal. Nothing is known of the copy yet: a former start of the node may have begun it.
    pub fn new(incarnation: Revision, appended: Seq) -> Self {
        Self { incarnation, copied: Seq(0), appended, view: CopyView::Unknown, pending: None }
    }

    /// The revision of the session's entry when the session was created.
    pub fn incarnation(&self) -> Revision {
        self.incarnation
    }

    /// The last event that is known to be in the copy.
    pub fn copied(&self) -> Seq {
        self.copied
    }

    /// How many events the copy is behind.
    pub fn behind(&self) -> u64 {
        self.appended.0.saturating_sub(self.copied.0)
    }

    /// The journal has events up to this one.
    pub fn appended(&mut self, last: Seq) {
        self.appended = self.appended.max(last);
    }

    /// The next request, if one is due. After a request without an answer the caller waits before it asks again. The answer to [`CopyRequest::SendBatch`] is told with the batch's last event.
    pub fn next_request(&mut self) -> Option<CopyRequest> {
        if self.pending.is_some() {
            return None;
        }
        match self.view {
            CopyView::Unknown => {
                self.pending = Some(None);
                Some(CopyRequest::ReadHead)
            }
            CopyView::Known { revision } if self.copied < self.appended => {
                Some(CopyRequest::SendBatch { after: self.copied, expected: revision })
            }
            CopyView::Known { .. } | CopyView::Superseded => None,
        }
    }

    /// A batch up to this event is on its way.
    pub fn sending(&mut self, last: Seq) {
        self.pending = Some(Some(last));
    }

    /// The answer to the batch.
    pub fn sent(&mut self, answer: WriteAnswer) {
        let Some(Some(last)) = self.pending.take() else { return };
        self.view = match answer {
            WriteAnswer::Stored(revision) => {
                self.copied = self.copied.max(last);
                CopyView::Known { revision }
            }
            WriteAnswer::Conflict | WriteAnswer::Unknown => CopyView::Unknown,
        };
    }

    /// The store did not answer in time. The batch may still be stored.
    pub fn unanswered(&mut self) {
        self.pending = None;
        self.view = CopyView::Unknown;
    }

    /// The answer to [`CopyRequest::ReadHead`].
    pub fn head_read(&mut self, current: Current<CopyHead>) {
        self.pending = None;
        let Current { record, revision } = current;
        self.view = match record {
            None => CopyView::Known { revision },
            Some(head) if head.incarnation == self.incarnation => {
                self.copied = head.last;
                CopyView::Known { revision }
            }
            // An earlier session of this name has ended: this session's events follow.
            Some(head) if head.incarnation < self.incarnation => CopyView::Known { revision },
            Some(_) => CopyView::Superseded,
        };
    }
}

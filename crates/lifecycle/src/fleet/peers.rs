//! One node judges another: alive, unreachable, or lost. It declares the other node lost by one conditional write.
//!
//! The judge reads the member record first and the lease second, and remembers the revision of the first. After
//! [`LeaseTiming::lost_after_ms`] it marks the member record as lost, if the record still has that revision. A node
//! that gets its lease again writes the lease first and the member record second. So a node that was back in between
//! has changed the revision, and the declaration fails. The judge needs no unbroken watch of the lease.

use windlass_protocol::fleet::{LeaseRecord, MemberRecord, WriteStamp};
use windlass_protocol::{Generation, NodeName, Revision};

use super::timing::{ClockMs, LeaseTiming};
use super::write::{ConditionalWrite, Current, WriteAnswer, WriteEnd, WriteStep};

/// What other nodes tell about a node's sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerStatus {
    Alive,
    /// The lease is gone. The sessions may come back.
    Unreachable,
    /// The sessions of this generation and of earlier ones are lost.
    Lost(Generation),
}

/// The next request to the store. Each goes to its leader: a replica may answer with an old record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerRequest {
    ReadMember,
    ReadLease,
    WriteMember { record: MemberRecord, expected: Revision },
}

#[derive(Debug, Clone)]
enum PeerView {
    Present,
    /// Somebody says that the lease is gone. The member record is read.
    Suspected,
    /// The member record was read, the lease is read.
    Checking {
        member: MemberRecord,
        revision: Revision,
    },
    /// The lease was gone when the answer came. The member record had this revision before.
    Absent {
        since: ClockMs,
        member: MemberRecord,
        revision: Revision,
    },
    Declaring {
        write: ConditionalWrite<MemberRecord>,
        step: WriteStep<MemberRecord>,
    },
    Lost(Generation),
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct PeerWatch {
    timing: LeaseTiming,
    /// The node that is judged.
    pub peer: NodeName,
    /// This judge declares so much later than the first one may. It keeps a large fleet from declaring all at once.
    delay_ms: u64,
    view: PeerView,
    /// The request that was handed out has no answer yet.
    pending: bool,
    retry_at: ClockMs,
}

impl PeerWatch {
    pub fn new(timing: LeaseTiming, peer: NodeName, delay_ms: u64) -> Self {
        let view = PeerView::Present;
        Self { timing, peer, delay_ms, view, pending: false, retry_at: ClockMs(0) }
    }

    pub fn status(&self) -> PeerStatus {
        match self.view {
            PeerView::Present | PeerView::Suspected | PeerView::Checking { .. } => {
                PeerStatus::Alive
            }
            PeerView::Absent { .. } | PeerView::Declaring { .. } => PeerStatus::Unreachable,
            PeerView::Lost(generation) => PeerStatus::Lost(generation),
        }
    }

    /// A hint from a watch or a list of all leases. It may be old.
    pub fn hinted(&mut self, present: bool) {
        match (&self.view, present) {
            (PeerView::Present, false) => self.view = PeerView::Suspected,
            (PeerView::Absent { .. }, true) => self.view = PeerView::Suspected,
            _ => {}
        }
    }

    /// The next request to the store, if one is due.
    pub fn next_request(&mut self, now: ClockMs, stamp: WriteStamp) -> Option<PeerRequest> {
        if self.pending || now < self.retry_at {
            return None;
        }
        let request = match &self.view {
            PeerView::Suspected => PeerRequest::ReadMember,
            PeerView::Checking { .. } => PeerRequest::ReadLease,
            PeerView::Absent { since, member, revision } => {
                if now.since(*since) < self.timing.lost_after_ms + self.delay_ms {
                    return None;
                }
                let record = MemberRecord { stamp, lost: true, ..member.clone() };
                let expected = *revision;
                let (write, step) = ConditionalWrite::start(record.clone(), expected);
                self.view = PeerView::Declaring { write, step };
                PeerRequest::WriteMember { record, expected }
            }
            PeerView::Declaring { step: WriteStep::Write { record, expected }, .. } => {
                PeerRequest::WriteMember { record: record.clone(), expected: *expected }
            }
            PeerView::Declaring { .. } => PeerRequest::ReadMember,
            PeerView::Present | PeerView::Lost(_) => return None,
        };
        self.pending = true;
        Some(request)
    }

    /// When [`PeerWatch::next_request`] may have something new without an answer or a hint.
    pub fn wake_at(&self) -> Option<ClockMs> {
        match &self.view {
            _ if self.pending => None,
            PeerView::Present | PeerView::Lost(_) => None,
            PeerView::Absent { since, .. } => {
                Some(since.after(self.timing.lost_after_ms + self.delay_ms).max(self.retry_at))
            }
            _ => Some(self.retry_at),
        }
    }

    /// The answer to a [`PeerRequest::ReadMember`].
    pub fn member_read(&mut self, now: ClockMs, current: Current<MemberRecord>) {
        self.pending = false;
        if let PeerView::Declaring { write, step } = &mut self.view {
            *step = write.read(current);
            return self.settle(now);
        }
        self.view = match current.record {
            None => PeerView::Present,
            Some(member) if member.lost => PeerView::Lost(member.generation),
            Some(member) => PeerView::Checking { member, revision: current.revision },
        };
    }

    /// The answer to a [`PeerRequest::ReadLease`].
    pub fn lease_read(&mut self, now: ClockMs, current: &Current<LeaseRecord>) {
        self.pending = false;
        let PeerView::Checking { member, revision } = &self.view else { return };
        self.view = if current.record.is_some() {
            PeerView::Present
        } else {
            PeerView::Absent { since: now, member: member.clone(), revision: *revision }
        };
    }

    /// The answer to a [`PeerRequest::WriteMember`].
    pub fn written(&mut self, now: ClockMs, answer: WriteAnswer) {
        self.pending = false;
        if let PeerView::Declaring { write, step } = &mut self.view {
            *step = write.written(answer);
            self.settle(now);
        }
    }

    /// The store did not answer in time. A write may still be done.
    pub fn unanswered(&mut self, now: ClockMs) {
        self.pending = false;
        self.retry_at = now.after(self.timing.retry_ms);
        if let PeerView::Declaring { write, step } = &mut self.view {
            *step = write.unanswered();
            self.settle(now);
        }
    }

    /// A member record came by: a lost node that has begun a new generation is back.
    pub fn member_seen(&mut self, record: &MemberRecord) {
        if let PeerView::Lost(generation) = self.view
            && record.generation > generation
            && !record.lost
        {
            self.view = PeerView::Present;
        }
    }

    /// Goes on from the end of the declaration, if it has ended.
    fn settle(&mut self, now: ClockMs) {
        let PeerView::Declaring { write, step } = &self.view else { return };
        let WriteStep::Done(end) = step else { return };
        let declared = write.record().generation;
        match end {
            WriteEnd::Stored(_) => self.view = PeerView::Lost(declared),
            WriteEnd::Conflict(Current { record: Some(member), .. }) if member.lost => {
                self.view = PeerView::Lost(member.generation);
            }
            // The node is back, or another process has its name. The judge looks again.
            WriteEnd::Conflict(_) => self.view = PeerView::Suspected,
            // The write may still be done, so what the judge knew is of no use.
            WriteEnd::Unavailable => {
                self.view = PeerView::Suspected;
                self.retry_at = now.after(self.timing.retry_ms);
            }
        }
    }
}

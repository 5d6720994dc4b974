//! A node keeps its lease. The machine says which request goes to the store next, and how long the node may accept
//! turns.
//!
//! A node lives in the fleet if two records say so. The lease expires when it is not renewed. The member record does
//! not expire: others mark it as lost. A node that gets its lease again after it expired confirms its member record by
//! a conditional write, before it counts on the lease. Declaring the node lost is a conditional write to the same
//! record, so only one of the two happens.
//!
//! [`LeaseKeeper::standing`] depends on the clock and on nothing that must happen in time. A node that was stopped
//! for an hour knows that it is fenced when it wakes up.

use windlass_protocol::fleet::{
    BootNonce, FLEET_RECORDS, InstallationId, LeaseRecord, MemberRecord, WriteStamp,
};
use windlass_protocol::{Generation, NodeName, Revision};

use super::timing::{ClockMs, LeaseTiming};
use super::write::{Current, WriteAnswer};

/// What a node may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStanding {
    /// The node has never been confirmed: it has no sessions of the fleet.
    Joining,
    /// The node serves its sessions and takes new ones.
    Serving,
    /// The node serves its sessions and takes no new ones.
    Closed,
    /// The node accepts nothing and ends its sessions. Others may have given their names away.
    Fenced,
}

/// Why a node is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceCause {
    /// No renewal was acknowledged for too long.
    Expired,
    /// The fleet has declared the node lost.
    DeclaredLost,
    /// Another process has the lease of this name.
    Replaced,
}

/// The next request to the store. There is one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseRequest {
    ReadLease,
    WriteLease { record: LeaseRecord, expected: Revision },
    ReadMember,
    WriteMember { record: MemberRecord, expected: Revision },
}

/// Who holds a lease. Former processes of the same installation have ended: the node holds the lock of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolder {
    pub node: NodeName,
    pub installation: InstallationId,
    pub boot: BootNonce,
    /// Where other nodes reach this node.
    pub address: String,
}

#[derive(Debug, Clone)]
enum LeaseView {
    Unknown,
    Free { revision: Revision },
    Held { revision: Revision, written_at: ClockMs },
}

#[derive(Debug, Clone)]
enum MemberView {
    Unknown,
    Read(Current<MemberRecord>),
    Confirmed,
}

/// The request that has no answer yet.
#[derive(Debug, Clone, Copy)]
enum PendingRequest {
    Read,
    WriteLease { sent_at: ClockMs },
    WriteMember { generation: Generation },
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct LeaseKeeper {
    timing: LeaseTiming,
    holder: LeaseHolder,
    generation: Option<Generation>,
    /// When the last lease that counts was sent.
    renewed_at: Option<ClockMs>,
    writes: u64,
    /// The last lease that was sent, and when. A read that finds it tells that it was stored.
    last_lease: (u64, ClockMs),
    /// The last confirmation that was sent, and its generation.
    last_member: Option<(u64, Generation)>,
    lease: LeaseView,
    member: MemberView,
    pending: Option<PendingRequest>,
    retry_at: ClockMs,
    fenced: Option<FenceCause>,
}

impl LeaseKeeper {
    /// `resumed` is the generation whose sessions still live in their keepers, and when its lease was last renewed.
    /// Without one, no session lives, and the node begins a new generation.
    pub fn new(
        timing: LeaseTiming,
        holder: LeaseHolder,
        resumed: Option<(Generation, ClockMs)>,
    ) -> Self {
        Self {
            timing,
            holder,
            generation: resumed.map(|(generation, _)| generation),
            renewed_at: resumed.map(|(_, renewed_at)| renewed_at),
            writes: 0,
            last_lease: (0, ClockMs(0)),
            last_member: None,
            lease: LeaseView::Unknown,
            member: MemberView::Unknown,
            pending: None,
            retry_at: ClockMs(0),
            fenced: None,
        }
    }

    /// What the node may do now. A turn is accepted only at [`LeaseStanding::Serving`] and
    /// [`LeaseStanding::Closed`].
    pub fn standing(&self, now: ClockMs) -> LeaseStanding {
        if self.fenced.is_some() {
            return LeaseStanding::Fenced;
        }
        let Some(renewed_at) = self.renewed_at else { return LeaseStanding::Joining };
        let age_ms = now.since(renewed_at);
        if age_ms >= self.timing.fence_ms() {
            LeaseStanding::Fenced
        } else if age_ms >= self.timing.close_ms || !matches!(self.member, MemberView::Confirmed) {
            LeaseStanding::Closed
        } else {
            LeaseStanding::Serving
        }
    }

    /// Why the node is fenced, once it is.
    pub fn fence_cause(&self) -> Option<FenceCause> {
        self.fenced
    }

    /// The generation of the node's sessions, once it is confirmed.
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// When the last renewal that counts was sent: the node keeps it for its next start.
    pub fn renewed_at(&self) -> Option<ClockMs> {
        self.renewed_at
    }

    /// The next request to the store, if one is due.
    pub fn next_request(&mut self, now: ClockMs) -> Option<LeaseRequest> {
        self.check(now);
        if self.fenced.is_some() || self.pending.is_some() || now < self.retry_at {
            return None;
        }
        match (&self.lease, &self.member) {
            (LeaseView::Held { revision, written_at }, _)
                if now.since(*written_at) >= self.timing.renew_ms =>
            {
                Some(self.write_lease(now, *revision))
            }
            (_, MemberView::Unknown) => {
                self.pending = Some(PendingRequest::Read);
                Some(LeaseRequest::ReadMember)
            }
            (_, MemberView::Read(current)) if self.excludes(current) => {
                self.refused(now, FenceCause::DeclaredLost);
                None
            }
            (LeaseView::Unknown, _) => {
                self.pending = Some(PendingRequest::Read);
                Some(LeaseRequest::ReadLease)
            }
            (LeaseView::Free { revision }, _) => Some(self.write_lease(now, *revision)),
            (LeaseView::Held { .. }, MemberView::Read(current)) => {
                let (record, expected) = (self.confirmation(current), current.revision);
                self.last_member = Some((record.stamp.write, record.generation));
                self.pending = Some(PendingRequest::WriteMember { generation: record.generation });
                self.writes = record.stamp.write;
                Some(LeaseRequest::WriteMember { record, expected })
            }
            (LeaseView::Held { .. }, MemberView::Confirmed) => None,
        }
    }

    /// When [`LeaseKeeper::next_request`] may have something new, without an answer. `None` while a request has no answer, and
    /// after the fence.
    pub fn wake_at(&self) -> Option<ClockMs> {
        if self.fenced.is_some() || self.pending.is_some() {
            return None;
        }
        match (&self.lease, &self.member) {
            (LeaseView::Held { written_at, .. }, MemberView::Confirmed) => {
                Some(written_at.after(self.timing.renew_ms).max(self.retry_at))
            }
            _ => Some(self.retry_at),
        }
    }

    /// The answer to a [`LeaseRequest::ReadLease`].
    pub fn lease_read(&mut self, now: ClockMs, current: Current<LeaseRecord>) {
        if self.answered(now).is_none() {
            return;
        }
        let Current { record, revision } = current;
        let Some(record) = record else {
            self.lease_is_free(revision);
            return;
        };
        if record.stamp.boot == self.holder.boot {
            let stored = record.stamp.write == self.last_lease.0;
            let written_at = if stored { self.last_lease.1 } else { ClockMs(0) };
            self.lease = LeaseView::Held { revision, written_at };
            if stored {
                self.count(written_at);
            }
        } else if record.installation == self.holder.installation && self.generation.is_some() {
            self.lease_is_free(revision);
        } else {
            // Without a generation, the lease of the own installation may be that of a copy of this machine. If its
            // process has ended, the lease expires soon.
            self.refused(now, FenceCause::Replaced);
        }
    }

    /// The answer to a [`LeaseRequest::ReadMember`].
    pub fn member_read(&mut self, now: ClockMs, current: Current<MemberRecord>) {
        if self.answered(now).is_none() {
            return;
        }
        let own = current.record.as_ref().filter(|record| !record.lost).map(|record| record.stamp);
        match (own, self.last_member) {
            (Some(stamp), Some((write, generation)))
                if stamp == (WriteStamp { boot: self.holder.boot, write }) =>
            {
                self.confirmed(generation);
            }
            _ => self.member = MemberView::Read(current),
        }
    }

    /// The answer to a write.
    pub fn written(&mut self, now: ClockMs, answer: WriteAnswer) {
        let Some(request) = self.answered(now) else { return };
        match (request, answer) {
            (PendingRequest::WriteLease { sent_at }, WriteAnswer::Stored(revision)) => {
                self.lease = LeaseView::Held { revision, written_at: sent_at };
                self.count(sent_at);
            }
            (PendingRequest::WriteMember { generation }, WriteAnswer::Stored(_)) => {
                self.confirmed(generation);
            }
            (PendingRequest::WriteLease { .. }, _) => self.lease = LeaseView::Unknown,
            (PendingRequest::WriteMember { .. }, _) => self.member = MemberView::Unknown,
            (PendingRequest::Read, _) => {}
        }
        if answer == WriteAnswer::Unknown {
            self.retry_at = now.after(self.timing.retry_ms);
        }
    }

    /// The store did not answer in time. A write may still be done.
    pub fn unanswered(&mut self, now: ClockMs) {
        self.written(now, WriteAnswer::Unknown);
    }

    /// The node has seen its member record by chance. A record that says lost fences the node at once.
    pub fn member_seen(&mut self, record: &MemberRecord) {
        if record.lost && self.generation.is_some_and(|own| own <= record.generation) {
            self.fenced = Some(FenceCause::DeclaredLost);
        }
    }

    fn write_lease(&mut self, now: ClockMs, expected: Revision) -> LeaseRequest {
        self.writes += 1;
        self.last_lease = (self.writes, now);
        self.pending = Some(PendingRequest::WriteLease { sent_at: now });
        LeaseRequest::WriteLease {
            record: LeaseRecord {
                version: FLEET_RECORDS,
                node: self.holder.node.clone(),
                installation: self.holder.installation,
                stamp: WriteStamp { boot: self.holder.boot, write: self.writes },
                address: self.holder.address.clone(),
            },
            expected,
        }
    }

    /// The record that confirms this node: its generation goes on, or a new one begins.
    fn confirmation(&self, current: &Current<MemberRecord>) -> MemberRecord {
        let before = current.record.as_ref().map_or(Generation(0), |record| record.generation);
        MemberRecord {
            version: FLEET_RECORDS,
            node: self.holder.node.clone(),
            installation: self.holder.installation,
            stamp: WriteStamp { boot: self.holder.boot, write: self.writes + 1 },
            generation: self.generation.unwrap_or(before.next()),
            lost: false,
        }
    }

    /// Whether the record keeps this node out: it lost its generation, or another process confirmed a generation that
    /// nobody has declared lost.
    fn excludes(&self, current: &Current<MemberRecord>) -> bool {
        let Some(record) = &current.record else { return self.generation.is_some() };
        let own = record.installation == self.holder.installation;
        match self.generation {
            Some(generation) => record.lost || !own || record.generation != generation,
            None => !record.lost && !own,
        }
    }

    /// A record keeps the node out. With sessions of its own the node is fenced. Without, it waits until the record
    /// changes.
    fn refused(&mut self, now: ClockMs, cause: FenceCause) {
        if self.generation.is_some() {
            self.fenced = Some(cause);
            return;
        }
        self.lease = LeaseView::Unknown;
        self.member = MemberView::Unknown;
        self.retry_at = now.after(self.timing.renew_ms);
    }

    /// A lease that had expired counts only after the member record is confirmed again. A confirmation that was sent
    /// before does not count.
    fn lease_is_free(&mut self, revision: Revision) {
        self.lease = LeaseView::Free { revision };
        self.last_member = None;
        if matches!(self.member, MemberView::Confirmed) {
            self.member = MemberView::Unknown;
        }
    }

    fn confirmed(&mut self, generation: Generation) {
        self.generation = Some(generation);
        self.member = MemberView::Confirmed;
        if let LeaseView::Held { written_at, .. } = self.lease {
            self.count(written_at);
        }
    }

    /// The lease that was sent at `sent_at` is stored. It counts if the member record is confirmed.
    fn count(&mut self, sent_at: ClockMs) {
        if matches!(self.member, MemberView::Confirmed) {
            self.renewed_at = self.renewed_at.max(Some(sent_at));
        }
    }

    /// Takes the answer to the pending request. Returns `None` if it came too late: the node is fenced.
    fn answered(&mut self, now: ClockMs) -> Option<PendingRequest> {
        let pending = self.pending.take();
        self.check(now);
        pending.filter(|_| self.fenced.is_none())
    }

    fn check(&mut self, now: ClockMs) {
        if self.fenced.is_none() && self.standing(now) == LeaseStanding::Fenced {
            self.fenced = Some(FenceCause::Expired);
        }
    }
}

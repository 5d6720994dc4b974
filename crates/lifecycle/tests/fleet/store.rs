//! The store that the nodes share: conditional writes, leases that expire, and an order of all writes. While it has no
//! leader, it does nothing.

use std::collections::BTreeMap;

use windlass_lifecycle::fleet::{CopyHead, Current, WriteAnswer};
use windlass_protocol::fleet::{EntryState, LeaseRecord, MemberRecord, SessionEntry, Stamped};
use windlass_protocol::{NodeName, Revision, Seq, SessionId};

use crate::facts::Facts;

/// A batch of events of one session, as the copy has it.
#[derive(Debug, Clone)]
pub struct Batch {
    pub head: CopyHead,
    pub first: Seq,
}

#[derive(Debug, Clone)]
pub enum Request {
    ReadLease(NodeName),
    WriteLease {
        record: LeaseRecord,
        expected: Revision,
    },
    ReadMember(NodeName),
    WriteMember {
        record: MemberRecord,
        expected: Revision,
    },
    ReadEntry(SessionId),
    WriteEntry {
        record: SessionEntry,
        expected: Revision,
    },
    /// The entries of a node, and those of these sessions.
    ListEntries {
        node: NodeName,
        sessions: Vec<SessionId>,
    },
    ReadCopy(SessionId),
    WriteCopy {
        session: SessionId,
        batch: Batch,
        expected: Revision,
    },
}

#[derive(Debug, Clone)]
pub enum Answer {
    Written(WriteAnswer),
    Lease(Current<LeaseRecord>),
    Member(Current<MemberRecord>),
    Entry(Current<SessionEntry>),
    Entries(BTreeMap<SessionId, Current<SessionEntry>>),
    Copy(Current<CopyHead>),
}

#[derive(Debug)]
struct Lease {
    record: Option<LeaseRecord>,
    revision: Revision,
    expires_at: u64,
}

#[derive(Debug, Default)]
pub struct Store {
    revision: u64,
    leases: BTreeMap<NodeName, Lease>,
    members: BTreeMap<NodeName, (MemberRecord, Revision)>,
    entries: BTreeMap<SessionId, (SessionEntry, Revision)>,
    copies: BTreeMap<SessionId, Vec<(Batch, Revision)>>,
}

fn current<R: Clone>(found: Option<&(R, Revision)>) -> Current<R> {
    Current {
        record: found.map(|(record, _)| record.clone()),
        revision: found.map_or(Revision(0), |(_, revision)| *revision),
    }
}

impl Store {
    /// Removes leases that have expired. The store is up to 253 ms late.
    pub fn expire(&mut self, now: u64, late_ms: u64) {
        for lease in self.leases.values_mut() {
            if lease.record.is_some() && now >= lease.expires_at + late_ms {
                // The removal leaves a marker, which has a revision of its own.
                self.revision += 1;
                lease.record = None;
                lease.revision = Revision(self.revision);
            }
        }
    }

    pub fn leases(&self) -> Vec<NodeName> {
        let held = self.leases.iter().filter(|(_, lease)| lease.record.is_some());
        held.map(|(node, _)| node.clone()).collect()
    }

    pub fn member(&self, node: &NodeName) -> Option<MemberRecord> {
        self.members.get(node).map(|(record, _)| record.clone())
    }

    pub fn members(&self) -> Vec<MemberRecord> {
        self.members.values().map(|(record, _)| record.clone()).collect()
    }

    pub fn entries(&self) -> impl Iterator<Item = &(SessionEntry, Revision)> {
        self.entries.values()
    }

    pub fn copy(&self, session: &SessionId) -> &[(Batch, Revision)] {
        self.copies.get(session).map_or(&[], Vec::as_slice)
    }

    pub fn apply(&mut self, now: u64, ttl_ms: u64, request: &Request, facts: &mut Facts) -> Answer {
        match request {
            Request::ReadLease(node) => Answer::Lease(self.lease(node)),
            Request::ReadMember(node) => Answer::Member(current(self.members.get(node))),
            Request::ReadEntry(session) => Answer::Entry(current(self.entries.get(session))),
            Request::ListEntries { node, sessions } => {
                let wanted = |entry: &SessionEntry| {
                    entry.owner == *node || sessions.contains(&entry.session)
                };
                let found = self.entries.iter().filter(|(_, (entry, _))| wanted(entry));
                let found = found.map(|(session, entry)| (session.clone(), current(Some(entry))));
                Answer::Entries(found.collect())
            }
            Request::ReadCopy(session) => {
                let last = self.copies.get(session).and_then(|batches| batches.last());
                Answer::Copy(Current {
                    record: last.map(|(batch, _)| batch.head),
                    revision: last.map_or(Revision(0), |(_, revision)| *revision),
                })
            }
            Request::WriteLease { record, expected } => {
                if self.lease(&record.node).revision != *expected {
                    return Answer::Written(WriteAnswer::Conflict);
                }
                let revision = self.next();
                let lease =
                    Lease { record: Some(record.clone()), revision, expires_at: now + ttl_ms };
                self.leases.insert(record.node.clone(), lease);
                Answer::Written(WriteAnswer::Stored(revision))
            }
            Request::WriteMember { record, expected } => {
                if current(self.members.get(&record.node)).revision != *expected {
                    return Answer::Written(WriteAnswer::Conflict);
                }
                let revision = self.next();
                facts.member_stored(record);
                self.members.insert(record.node.clone(), (record.clone(), revision));
                Answer::Written(WriteAnswer::Stored(revision))
            }
            Request::WriteEntry { record, expected } => {
                if current(self.entries.get(&record.session)).revision != *expected {
                    return Answer::Written(WriteAnswer::Conflict);
                }
                let revision = self.next();
                facts.entry_stored(record, revision);
                self.entries.insert(record.session.clone(), (record.clone(), revision));
                Answer::Written(WriteAnswer::Stored(revision))
            }
            Request::WriteCopy { session, batch, expected } => {
                let batches = self.copies.entry(session.clone()).or_default();
                let last = batches.last().map_or(Revision(0), |(_, revision)| *revision);
                if last != *expected {
                    return Answer::Written(WriteAnswer::Conflict);
                }
                self.revision += 1;
                batches.push((batch.clone(), Revision(self.revision)));
                Answer::Written(WriteAnswer::Stored(Revision(self.revision)))
            }
        }
    }

    fn next(&mut self) -> Revision {
        self.revision += 1;
        Revision(self.revision)
    }

    fn lease(&self, node: &NodeName) -> Current<LeaseRecord> {
        self.leases.get(node).map_or(Current { record: None, revision: Revision(0) }, |lease| {
            Current { record: lease.record.clone(), revision: lease.revision }
        })
    }
}

/// The state and stamp of an entry, for messages of failures.
pub fn describe(entry: &SessionEntry) -> String {
    let state = match entry.state {
        EntryState::Live => "live",
        EntryState::Ended { .. } => "ended",
        EntryState::Lost { .. } => "lost",
    };
    format!(
        "{} of {} generation {} {state}, write {:?}",
        entry.session,
        entry.owner,
        entry.generation,
        entry.stamp()
    )
}

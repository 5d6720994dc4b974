//! One machine of the simulated fleet: what stays when its node is killed, and the node's process with its machines of
//! `lifecycle`. The process decides when its clock says so; it never sees the true time.

use std::collections::{BTreeMap, BTreeSet};

use windlass_lifecycle::fleet::{
    ClockMs, ConditionalWrite, CopyHead, CopyRequest, Current, EntryRepair, EventCopy, LeaseHolder,
    LeaseKeeper, LeaseRequest, LeaseStanding, LeaseTiming, LocalSession, NameClaim, PeerRequest,
    PeerWatch, WriteEnd, WriteStep, entries,
};
use windlass_protocol::fleet::{
    BootNonce, EntryState, FLEET_RECORDS, InstallationId, MemberRecord, SessionEntry, WriteStamp,
};
use windlass_protocol::{Generation, NodeName, Revision, Seq, SessionId};

use crate::facts::Facts;
use crate::random::Random;
use crate::store::{Answer, Batch, Request};

/// How long a node waits for an answer of the store.
const ANSWER_MS: u64 = 2_000;

/// How often a node compares itself with the directory.
const COMPARE_MS: u64 = 20_000;

/// A session of a machine. It lives in processes of its own, so it outlives the node's process.
#[derive(Debug, Clone)]
pub struct SimSession {
    pub generation: Generation,
    pub incarnation: Revision,
    pub live: bool,
    /// Number of events in the journal.
    pub events: u64,
    created_at: ClockMs,
}

/// What a request is for. A node has one request for each purpose.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Lease,
    Peer(NodeName),
    Create(SessionId),
    End(SessionId),
    Copy(SessionId),
    Compare,
}

#[derive(Debug)]
enum Creation {
    ReadingEntry,
    ReadingOwner(Current<SessionEntry>),
    Writing { write: ConditionalWrite<SessionEntry>, step: WriteStep<SessionEntry> },
}

#[derive(Debug)]
struct Ending {
    write: ConditionalWrite<SessionEntry>,
    step: WriteStep<SessionEntry>,
}

/// A request that was sent and has no answer.
#[derive(Debug)]
struct Sent {
    id: u64,
    at: ClockMs,
}

/// The node's process.
#[derive(Debug)]
pub struct Process {
    boot: BootNonce,
    writes: u64,
    pub lease: LeaseKeeper,
    peers: BTreeMap<NodeName, PeerWatch>,
    creations: BTreeMap<SessionId, (Generation, Creation)>,
    endings: BTreeMap<SessionId, Ending>,
    copies: BTreeMap<SessionId, EventCopy>,
    /// Events whose clients wait until they are copied.
    waiting: Vec<(SessionId, Revision, Seq)>,
    sent: BTreeMap<Purpose, Sent>,
    compared_at: ClockMs,
    asked_at: ClockMs,
}

#[derive(Debug)]
pub struct Machine {
    pub name: NodeName,
    timing: LeaseTiming,
    /// What the node keeps on disk of its last start.
    installation: InstallationId,
    resumed: Option<(Generation, ClockMs)>,
    pub sessions: BTreeMap<SessionId, SimSession>,
    pub process: Option<Process>,
    pub boots: u64,
    requests: u64,
}

impl Machine {
    pub fn new(name: NodeName, timing: LeaseTiming, installation: InstallationId) -> Self {
        Self {
            name,
            timing,
            installation,
            resumed: None,
            sessions: BTreeMap::new(),
            process: None,
            boots: 0,
            requests: 0,
        }
    }

    pub fn start(&mut self, now: ClockMs, boot: BootNonce, names: &[NodeName]) {
        self.boots += 1;
        self.process = Some(self.new_process(now, boot, names));
    }

    fn new_process(&self, now: ClockMs, boot: BootNonce, names: &[NodeName]) -> Process {
        let name = self.name.clone();
        let address = "node:1".to_owned();
        let holder = LeaseHolder { node: name, installation: self.installation, boot, address };
        let lease = LeaseKeeper::new(self.timing, holder, self.resumed);
        let watch = |(rank, peer): (usize, &NodeName)| {
            (peer.clone(), PeerWatch::new(self.timing, peer.clone(), rank as u64 * 1_000))
        };
        let live = self.sessions.iter().filter(|(_, session)| session.live);
        let copies = live.map(|(id, session)| {
            (id.clone(), EventCopy::new(session.incarnation, Seq(session.events)))
        });
        Process {
            boot,
            writes: 0,
            lease,
            peers: names.iter().enumerate().map(watch).collect(),
            creations: BTreeMap::new(),
            endings: BTreeMap::new(),
            copies: copies.collect(),
            waiting: Vec::new(),
            sent: BTreeMap::new(),
            compared_at: now,
            asked_at: now,
        }
    }

    /// kill -9 of the node: sessions live on in their keepers.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// The machine is gone with all its processes and comes back with its disk, or without it.
    pub fn lose(&mut self, new_disk: Option<InstallationId>) {
        self.process = None;
        self.sessions.clear();
        self.resumed = None;
        self.installation = new_disk.unwrap_or(self.installation);
    }

    pub fn standing(&self, now: ClockMs) -> Option<LeaseStanding> {
        self.process.as_ref().map(|process| process.lease.standing(now))
    }

    /// Everything that is due: timeouts, requests, the fence. Returns the requests to send, by number.
    pub fn drive(
        &mut self,
        now: ClockMs,
        names: &[NodeName],
        random: &mut Random,
    ) -> Vec<(u64, Purpose, Request)> {
        let Some(process) = &mut self.process else { return Vec::new() };
        let late: Vec<Purpose> = process
            .sent
            .iter()
            .filter(|(_, sent)| now.since(sent.at) >= ANSWER_MS)
            .map(|(purpose, _)| purpose.clone())
            .collect();
        for purpose in late {
            self.answered(now, u64::MAX, &purpose, None, &mut Facts::default(), random);
        }
        self.fence(now, names);
        self.keep();
        let mut requests = Vec::new();
        let Some(process) = &mut self.process else { return requests };
        for (purpose, request) in process.due(now, &self.name, &self.sessions, random) {
            self.requests += 1;
            process.sent.insert(purpose.clone(), Sent { id: self.requests, at: now });
            requests.push((self.requests, purpose, request));
        }
        requests
    }

    /// A fenced node ends its sessions and begins anew.
    fn fence(&mut self, now: ClockMs, names: &[NodeName]) {
        let Some(process) = &self.process else { return };
        if process.lease.standing(now) != LeaseStanding::Fenced {
            return;
        }
        for session in self.sessions.values_mut() {
            session.live = false;
        }
        let boot = process.boot;
        self.resumed = None;
        let next = BootNonce(boot.0 + 1);
        self.process = Some(self.new_process(now, next, names));
    }

    /// What is written to the machine's disk.
    fn keep(&mut self) {
        let Some(process) = &self.process else { return };
        if let (Some(generation), Some(renewed_at)) =
            (process.lease.generation(), process.lease.renewed_at())
        {
            self.resumed = Some((generation, renewed_at));
        }
    }

    /// How many events of a session are not in the copy.
    pub fn behind(&self, session: &SessionId) -> Option<u64> {
        self.process.as_ref()?.copies.get(session).map(EventCopy::behind)
    }

    pub fn create(&mut self, now: ClockMs, session: &SessionId) {
        let Some(process) = &mut self.process else { return };
        let known = self.sessions.get(session).is_some_and(|session| session.live);
        if process.lease.standing(now) != LeaseStanding::Serving
            || known
            || process.creations.contains_key(session)
        {
            return;
        }
        let generation = process.lease.generation().expect("a serving node has one");
        process.creations.insert(session.clone(), (generation, Creation::ReadingEntry));
    }

    /// A client submits a turn. Returns whether it was accepted.
    pub fn submit(
        &mut self,
        (at, now): (u64, ClockMs),
        id: &SessionId,
        copied: bool,
        facts: &mut Facts,
    ) -> bool {
        let Some(process) = &mut self.process else { return false };
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.live) else {
            return false;
        };
        let standing = process.lease.standing(now);
        if !matches!(standing, LeaseStanding::Serving | LeaseStanding::Closed) {
            return false;
        }
        session.events += 1;
        facts.accepted(at, &self.name, session.generation, id, session.incarnation);
        if let Some(copy) = process.copies.get_mut(id) {
            copy.appended(Seq(session.events));
        }
        if copied {
            process.waiting.push((id.clone(), session.incarnation, Seq(session.events)));
        }
        true
    }

    /// The session ends here. The directory is told by the next comparison or at once.
    pub fn end(&mut self, id: &SessionId) -> bool {
        let session = self.sessions.get_mut(id).filter(|session| session.live);
        session.map(|session| session.live = false).is_some()
    }

    /// A hint: which leases there are, and member records that came by.
    pub fn hint(&mut self, leases: &BTreeSet<NodeName>, members: &[MemberRecord]) {
        let Some(process) = &mut self.process else { return };
        for (peer, watch) in &mut process.peers {
            watch.hinted(leases.contains(peer));
        }
        for member in members {
            if let Some(watch) = process.peers.get_mut(&member.node) {
                watch.member_seen(member);
            }
            if member.node == self.name {
                process.lease.member_seen(member);
            }
        }
    }

    /// An answer of the store, or `None` if it did not come in time. `id` is the number of the request.
    #[expect(clippy::too_many_arguments, reason = "the simulation passes its whole world")]
    pub fn answer(
        &mut self,
        at: u64,
        now: ClockMs,
        id: u64,
        purpose: &Purpose,
        answer: Answer,
        facts: &mut Facts,
        random: &mut Random,
    ) {
        let waits = |process: &Process| process.sent.get(purpose).is_some_and(|sent| sent.id == id);
        if self.process.as_ref().is_some_and(waits) {
            self.answered(now, at, purpose, Some(answer), facts, random);
        }
    }

    fn answered(
        &mut self,
        now: ClockMs,
        at: u64,
        purpose: &Purpose,
        answer: Option<Answer>,
        facts: &mut Facts,
        random: &mut Random,
    ) {
        let Some(process) = &mut self.process else { return };
        process.sent.remove(purpose);
        match purpose {
            Purpose::Lease => process.lease_answered(now, answer),
            Purpose::Peer(peer) => process.peer_answered(now, peer, answer),
            Purpose::End(session) => process.ending_answered(session, answer),
            Purpose::Copy(session) => process.copy_answered(session, answer, facts),
            Purpose::Compare => self.compared(now, answer),
            Purpose::Create(session) => {
                let name = self.name.clone();
                let Some((generation, incarnation)) =
                    process.creation_answered(&name, session, answer, random)
                else {
                    return;
                };
                // The node may have been fenced while the store wrote the entry.
                let standing = process.lease.standing(now);
                if standing == LeaseStanding::Fenced
                    || process.lease.generation() != Some(generation)
                {
                    return;
                }
                process.copies.insert(session.clone(), EventCopy::new(incarnation, Seq(0)));
                let made =
                    SimSession { generation, incarnation, live: true, events: 0, created_at: now };
                self.sessions.insert(session.clone(), made);
                facts.told_created(at, session, incarnation);
            }
        }
    }

    fn compared(&mut self, now: ClockMs, answer: Option<Answer>) {
        let Some(process) = &mut self.process else { return };
        process.compared_at = now;
        let (Some(Answer::Entries(found)), Some(generation)) = (answer, process.lease.generation())
        else {
            return;
        };
        let asked_at = process.asked_at;
        let state = |session: &SimSession| match session.live {
            true if session.created_at >= asked_at => LocalSession::New,
            true => LocalSession::Live,
            false => LocalSession::Ended,
        };
        let mut local: BTreeMap<_, _> =
            self.sessions.iter().map(|(id, session)| (id.clone(), state(session))).collect();
        local.extend(process.creations.keys().map(|id| (id.clone(), LocalSession::New)));
        for repair in entries::repairs(&self.name, generation, &local, &found) {
            match repair {
                EntryRepair::EndSession { session } => {
                    self.sessions.get_mut(&session).expect("it is here").live = false;
                }
                EntryRepair::WriteEnd { mut entry, expected } => {
                    entry.stamp = process.stamp();
                    let session = entry.session.clone();
                    let (write, step) = ConditionalWrite::start(entry, expected);
                    process.endings.entry(session).or_insert(Ending { write, step });
                }
            }
        }
    }
}

impl Process {
    fn stamp(&mut self) -> WriteStamp {
        self.writes += 1;
        // Apart from the stamps of the lease keeper, which counts its own.
        WriteStamp { boot: self.boot, write: self.writes + (1 << 32) }
    }

    fn due(
        &mut self,
        now: ClockMs,
        name: &NodeName,
        sessions: &BTreeMap<SessionId, SimSession>,
        random: &mut Random,
    ) -> Vec<(Purpose, Request)> {
        let mut due = Vec::new();
        if !self.sent.contains_key(&Purpose::Lease)
            && let Some(request) = self.lease.next_request(now)
        {
            due.push((Purpose::Lease, lease_request(name, request)));
        }
        let stamp = self.stamp();
        for (peer, watch) in &mut self.peers {
            let purpose = Purpose::Peer(peer.clone());
            if !self.sent.contains_key(&purpose)
                && let Some(request) = watch.next_request(now, stamp)
            {
                due.push((purpose, peer_request(peer, request)));
            }
        }
        for (session, (_, creation)) in &self.creations {
            let request = match creation {
                Creation::ReadingEntry => Request::ReadEntry(session.clone()),
                Creation::ReadingOwner(current) => {
                    let entry = current.record.as_ref().expect("an owner is asked for an entry");
                    Request::ReadMember(entry.owner.clone())
                }
                Creation::Writing { step, .. } => entry_request(session, step),
            };
            due.push((Purpose::Create(session.clone()), request));
        }
        for (session, ending) in &self.endings {
            due.push((Purpose::End(session.clone()), entry_request(session, &ending.step)));
        }
        let mut stamps = self.writes;
        for (session, copy) in &mut self.copies {
            let purpose = Purpose::Copy(session.clone());
            if self.sent.contains_key(&purpose) {
                continue;
            }
            match copy.next_request() {
                None => {}
                Some(CopyRequest::ReadHead) => {
                    due.push((purpose, Request::ReadCopy(session.clone())));
                }
                Some(CopyRequest::SendBatch { after, expected }) => {
                    let Some(kept) = sessions.get(session) else { continue };
                    let last = Seq((after.0 + random.between(1, 4)).min(kept.events));
                    stamps += 1;
                    let stamp = WriteStamp { boot: self.boot, write: stamps + (1 << 32) };
                    let head = CopyHead { stamp, incarnation: kept.incarnation, last };
                    let batch = Batch { head, first: after.next() };
                    copy.sending(last);
                    let session = session.clone();
                    due.push((purpose, Request::WriteCopy { session, batch, expected }));
                }
            }
        }
        self.writes = stamps;
        if now.since(self.compared_at) >= COMPARE_MS && self.lease.generation().is_some() {
            self.compared_at = now;
            self.asked_at = now;
            let sessions = sessions.keys().cloned().collect();
            due.push((Purpose::Compare, Request::ListEntries { node: name.clone(), sessions }));
        }
        due.retain(|(purpose, _)| !self.sent.contains_key(purpose));
        due
    }

    fn lease_answered(&mut self, now: ClockMs, answer: Option<Answer>) {
        match answer {
            Some(Answer::Lease(current)) => self.lease.lease_read(now, current),
            Some(Answer::Member(current)) => self.lease.member_read(now, current),
            Some(Answer::Written(answer)) => self.lease.written(now, answer),
            Some(_) => unreachable!("the store answers what was asked"),
            None => self.lease.unanswered(now),
        }
    }

    fn peer_answered(&mut self, now: ClockMs, peer: &NodeName, answer: Option<Answer>) {
        let Some(watch) = self.peers.get_mut(peer) else { return };
        match answer {
            Some(Answer::Lease(current)) => watch.lease_read(now, &current),
            Some(Answer::Member(current)) => watch.member_read(now, current),
            Some(Answer::Written(answer)) => watch.written(now, answer),
            Some(_) => unreachable!("the store answers what was asked"),
            None => watch.unanswered(now),
        }
    }

    fn ending_answered(&mut self, session: &SessionId, answer: Option<Answer>) {
        let Some(ending) = self.endings.get_mut(session) else { return };
        ending.step = next_step(&mut ending.write, answer);
        if matches!(ending.step, WriteStep::Done(_)) {
            self.endings.remove(session);
        }
    }

    fn copy_answered(&mut self, session: &SessionId, answer: Option<Answer>, facts: &mut Facts) {
        let Some(copy) = self.copies.get_mut(session) else { return };
        match answer {
            Some(Answer::Written(answer)) => copy.sent(answer),
            Some(Answer::Copy(current)) => copy.head_read(current),
            Some(_) => unreachable!("the store answers what was asked"),
            None => copy.unanswered(),
        }
        let (copied, incarnation) = (copy.copied(), copy.incarnation());
        self.waiting.retain(|(waiting, revision, seq)| {
            let told = waiting == session && *revision == incarnation && *seq <= copied;
            if told {
                facts.copied.push((waiting.clone(), *revision, *seq));
            }
            !told
        });
    }

    /// Goes on with a creation. Returns the generation and the revision of the entry once it is stored.
    fn creation_answered(
        &mut self,
        name: &NodeName,
        session: &SessionId,
        answer: Option<Answer>,
        random: &mut Random,
    ) -> Option<(Generation, Revision)> {
        let stamp = self.stamp();
        let (generation, creation) = self.creations.remove(session)?;
        let begin = |current: &Current<SessionEntry>, owner: Option<&MemberRecord>| {
            let NameClaim::Free { expected } = NameClaim::on(current, owner) else { return None };
            let entry = SessionEntry {
                version: FLEET_RECORDS,
                session: session.clone(),
                owner: name.clone(),
                generation,
                stamp,
                state: EntryState::Live,
            };
            let (write, step) = ConditionalWrite::start(entry, expected);
            Some(Creation::Writing { write, step })
        };
        let next = match (creation, answer) {
            (Creation::ReadingEntry, Some(Answer::Entry(current))) => {
                // A client that has given up is simulated by a creation that stops here.
                if random.percent(2) {
                    return None;
                }
                match current.record.as_ref().map(|entry| entry.state) {
                    Some(EntryState::Live) => Some(Creation::ReadingOwner(current)),
                    _ => begin(&current, None),
                }
            }
            (Creation::ReadingOwner(current), Some(Answer::Member(owner))) => {
                begin(&current, owner.record.as_ref())
            }
            (Creation::Writing { mut write, .. }, answer) => match next_step(&mut write, answer) {
                WriteStep::Done(WriteEnd::Stored(revision)) => {
                    return Some((generation, revision));
                }
                WriteStep::Done(_) => None,
                step => Some(Creation::Writing { write, step }),
            },
            // The store did not answer: the client gets an error that says to try again.
            (_, _) => None,
        };
        if let Some(next) = next {
            self.creations.insert(session.clone(), (generation, next));
        }
        None
    }
}

fn next_step(
    write: &mut ConditionalWrite<SessionEntry>,
    answer: Option<Answer>,
) -> WriteStep<SessionEntry> {
    match answer {
        Some(Answer::Written(answer)) => write.written(answer),
        Some(Answer::Entry(current)) => write.read(current),
        Some(_) => unreachable!("the store answers what was asked"),
        None => write.unanswered(),
    }
}

fn lease_request(name: &NodeName, request: LeaseRequest) -> Request {
    match request {
        LeaseRequest::ReadLease => Request::ReadLease(name.clone()),
        LeaseRequest::WriteLease { record, expected } => Request::WriteLease { record, expected },
        LeaseRequest::ReadMember => Request::ReadMember(name.clone()),
        LeaseRequest::WriteMember { record, expected } => Request::WriteMember { record, expected },
    }
}

fn peer_request(peer: &NodeName, request: PeerRequest) -> Request {
    match request {
        PeerRequest::ReadLease => Request::ReadLease(peer.clone()),
        PeerRequest::ReadMember => Request::ReadMember(peer.clone()),
        PeerRequest::WriteMember { record, expected } => Request::WriteMember { record, expected },
    }
}

fn entry_request(session: &SessionId, step: &WriteStep<SessionEntry>) -> Request {
    match step {
        WriteStep::Write { record, expected } => {
            Request::WriteEntry { record: record.clone(), expected: *expected }
        }
        WriteStep::Read | WriteStep::Done(_) => Request::ReadEntry(session.clone()),
    }
}

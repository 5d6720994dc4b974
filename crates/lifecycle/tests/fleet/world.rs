//! Machines, the store, and the messages between them, in simulated time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use windlass_lifecycle::fleet::{ClockMs, LeaseStanding, LeaseTiming, SessionFate};
use windlass_protocol::fleet::{BootNonce, InstallationId};
use windlass_protocol::{NodeName, Revision, SessionId};

use crate::facts::Facts;
use crate::machine::{Machine, Purpose};
use crate::random::Random;
use crate::store::{Answer, Request, Store, describe};

const MACHINES: u64 = 5;
const NAMES: u64 = 8;

/// How often each process looks at its clock, and clients and faults come.
const STEP_MS: u64 = 100;

/// Shorter than the default, so that a run sees many losses.
const TIMING: LeaseTiming = LeaseTiming {
    ttl_ms: 30_000,
    renew_ms: 5_000,
    retry_ms: 500,
    close_ms: 22_000,
    lost_after_ms: 60_000,
};

/// How often each kind of failure and fact happened.
#[derive(Debug, Default)]
pub struct Coverage {
    kills: u64,
    losses: u64,
    pauses: u64,
    cuts: u64,
    outages: u64,
    fences: u64,
    doubled: u64,
    accepted: u64,
    created: u64,
    copied: u64,
    reused: u64,
}

/// Something that happens at its time.
#[derive(Debug)]
enum Arrival {
    AtStore { machine: usize, boot: u64, id: u64, purpose: Purpose, request: Request },
    AtNode { machine: usize, boot: u64, id: u64, purpose: Purpose, answer: Answer },
}

/// A machine's clock and what is wrong with it now. Times are true times.
#[derive(Debug)]
struct Condition {
    /// The clock's speed, in parts of 10,000.
    speed: u64,
    started_at: u64,
    paused_until: u64,
    cut_until: u64,
    /// When the node starts again, if it is down.
    down_until: u64,
}

pub struct World {
    random: Random,
    now: u64,
    store: Store,
    store_down_until: u64,
    machines: Vec<Machine>,
    conditions: Vec<Condition>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    arrivals: std::collections::BTreeMap<u64, Arrival>,
    next_arrival: u64,
    names: Vec<NodeName>,
    calm: bool,
    /// No client asks for anything any more.
    quiet: bool,
    facts: Facts,
    coverage: Coverage,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let names: Vec<NodeName> =
            (0..MACHINES).map(|n| NodeName::parse(format!("n{n}")).expect("a name")).collect();
        let conditions = names
            .iter()
            .map(|_| Condition {
                speed: random.between(9_750, 10_250),
                started_at: random.below(1_000_000),
                paused_until: 0,
                cut_until: 0,
                down_until: 0,
            })
            .collect();
        Self {
            now: 1_000,
            store: Store::default(),
            store_down_until: 0,
            machines: names
                .iter()
                .zip(1..)
                .map(|(name, n)| Machine::new(name.clone(), TIMING, InstallationId(n)))
                .collect(),
            conditions,
            queue: BinaryHeap::new(),
            arrivals: std::collections::BTreeMap::new(),
            next_arrival: 0,
            names,
            calm: false,
            quiet: false,
            facts: Facts::default(),
            coverage: Coverage::default(),
            random,
        }
    }

    pub fn problem(&self) -> Option<&str> {
        self.facts.problem.as_deref()
    }

    pub fn coverage(&self) -> Coverage {
        let created = &self.facts.created;
        let names: BTreeSet<&SessionId> = created.iter().map(|(session, _)| session).collect();
        Coverage {
            created: created.len() as u64,
            copied: self.facts.copied.len() as u64,
            reused: (created.len() - names.len()) as u64,
            ..self.coverage
        }
    }

    /// No further faults: all machines and the store work, from now on.
    pub fn heal(&mut self) {
        self.calm = true;
        self.store_down_until = 0;
        for condition in &mut self.conditions {
            condition.paused_until = 0;
            condition.cut_until = 0;
            condition.down_until = 0;
        }
    }

    /// Clients ask for nothing more, from now on.
    pub fn quiet(&mut self) {
        self.quiet = true;
    }

    pub fn run(&mut self, span_ms: u64) {
        let end = self.now + span_ms;
        while self.now < end && self.facts.problem.is_none() {
            self.now += STEP_MS;
            let late_ms = self.random.below(254);
            self.store.expire(self.now, late_ms);
            if !self.calm {
                self.faults();
            }
            self.arrive();
            for machine in 0..self.machines.len() {
                self.step(machine);
            }
            if !self.quiet && self.random.percent(20) {
                self.client();
            }
        }
    }

    fn clock(&self, machine: usize) -> ClockMs {
        let condition = &self.conditions[machine];
        ClockMs(condition.started_at + self.now * condition.speed / 10_000)
    }

    fn faults(&mut self) {
        let machine = self.random.below(MACHINES) as usize;
        let span = match self.random.below(3) {
            0 => self.random.between(100, 3_000),
            1 => self.random.between(3_000, 40_000),
            _ => self.random.between(40_000, 150_000),
        };
        match self.random.below(6_000) {
            0..8 => {
                self.coverage.kills += 1;
                self.machines[machine].kill();
                self.conditions[machine].down_until = self.now + span;
            }
            8..12 => {
                self.coverage.losses += 1;
                let new_disk =
                    self.random.percent(50).then_some(InstallationId(self.coverage.losses << 8));
                self.machines[machine].lose(new_disk);
                self.conditions[machine].down_until = self.now + span;
            }
            12..24 => {
                self.coverage.pauses += 1;
                self.conditions[machine].paused_until = self.now + span;
            }
            24..40 => {
                self.coverage.cuts += 1;
                self.conditions[machine].cut_until = self.now + span;
            }
            // Most often a new leader, sometimes a lost quorum.
            40..46 => {
                self.coverage.outages += 1;
                let outage =
                    if self.random.percent(80) { self.random.between(4_000, 8_000) } else { span };
                self.store_down_until = self.now + outage;
            }
            _ => {}
        }
    }

    fn step(&mut self, index: usize) {
        let now = self.clock(index);
        let condition = &self.conditions[index];
        if condition.paused_until > self.now {
            return;
        }
        if self.machines[index].process.is_none() {
            if condition.down_until <= self.now {
                // Each start has a number that no other start of any machine has.
                let boots = self.machines[index].boots;
                let boot = BootNonce(((index as u64 + 1) << 32) + (boots << 16));
                self.machines[index].start(now, boot, &self.names);
            }
            return;
        }
        if self.machines[index].standing(now) == Some(LeaseStanding::Fenced) {
            self.coverage.fences += 1;
        }
        if self.random.percent(2) && self.conditions[index].cut_until <= self.now {
            let leases: BTreeSet<NodeName> = self.store.leases().into_iter().collect();
            let members = self.store.members();
            self.machines[index].hint(&leases, &members);
        }
        let requests = self.machines[index].drive(now, &self.names, &mut self.random);
        let boot = self.machines[index].boots;
        for (id, purpose, request) in requests {
            let arrival = Arrival::AtStore { machine: index, boot, id, purpose, request };
            self.send(index, arrival);
        }
    }

    /// Sends a message on its way: late, lost or doubled.
    fn send(&mut self, machine: usize, arrival: Arrival) {
        let cut = self.conditions[machine].cut_until > self.now;
        let (lost, late) = if self.calm { (0, 0) } else { (3, 3) };
        if cut || self.random.percent(lost) {
            return;
        }
        let mut delay = self.random.below(20);
        if self.random.percent(late) {
            delay += self.random.below(9_000);
        }
        if !self.calm
            && self.random.percent(3)
            && let Arrival::AtStore { machine, boot, id, purpose, request } = &arrival
        {
            self.coverage.doubled += 1;
            let (purpose, request) = (purpose.clone(), request.clone());
            let again =
                Arrival::AtStore { machine: *machine, boot: *boot, id: *id, purpose, request };
            let later = self.now + delay + self.random.below(5_000);
            self.push(later, again);
        }
        self.push(self.now + delay, arrival);
    }

    fn push(&mut self, at: u64, arrival: Arrival) {
        self.next_arrival += 1;
        self.queue.push(Reverse((at, self.next_arrival)));
        self.arrivals.insert(self.next_arrival, arrival);
    }

    fn arrive(&mut self) {
        while let Some(Reverse((at, number))) = self.queue.peek().copied()
            && at <= self.now
        {
            self.queue.pop();
            let Some(arrival) = self.arrivals.remove(&number) else { continue };
            match arrival {
                Arrival::AtStore { machine, boot, id, purpose, request } => {
                    // Without a leader nothing is done. A leader that dies may have done it.
                    let down = self.store_down_until > self.now;
                    if down && !self.random.percent(2) {
                        continue;
                    }
                    let (now, ttl_ms) = (self.now, TIMING.ttl_ms);
                    let answer = self.store.apply(now, ttl_ms, &request, &mut self.facts);
                    if !down {
                        self.send(machine, Arrival::AtNode { machine, boot, id, purpose, answer });
                    }
                }
                Arrival::AtNode { machine, boot, id, purpose, answer } => {
                    let paused = self.conditions[machine].paused_until;
                    if paused > self.now {
                        let later = Arrival::AtNode { machine, boot, id, purpose, answer };
                        self.push(paused, later);
                    } else if self.machines[machine].boots == boot {
                        let (at, now) = (self.now, self.clock(machine));
                        self.machines[machine].answer(
                            at,
                            now,
                            id,
                            &purpose,
                            answer,
                            &mut self.facts,
                            &mut self.random,
                        );
                    }
                }
            }
        }
    }

    /// A client asks some node for something.
    fn client(&mut self) {
        let machine = self.random.below(MACHINES) as usize;
        if self.conditions[machine].paused_until > self.now {
            return;
        }
        let name = self.random.below(NAMES);
        let session = SessionId::parse(format!("s{name}")).expect("a name");
        let now = self.clock(machine);
        match self.random.below(100) {
            0..30 => self.machines[machine].create(now, &session),
            30..33 => {
                self.machines[machine].end(&session);
            }
            _ => {
                // A turn goes to a node that has the session, if there is one.
                let copied = self.random.percent(30);
                for index in 0..self.machines.len() {
                    let (at, now) = (self.now, self.clock(index));
                    let paused = self.conditions[index].paused_until > self.now;
                    if !paused
                        && self.machines[index].submit((at, now), &session, copied, &mut self.facts)
                    {
                        self.coverage.accepted += 1;
                    }
                }
            }
        }
    }

    /// After a long time without faults every session is in one state, and every fact is there.
    pub fn check_calm(&mut self) {
        let mut problems = Vec::new();
        for (index, machine) in self.machines.iter().enumerate() {
            let standing = machine.standing(self.clock(index));
            if standing != Some(LeaseStanding::Serving) {
                problems.push(format!("{} does not serve: {:?}", machine.name, machine.process));
            }
        }
        for (entry, revision) in self.store.entries() {
            let owner = self.store.member(&entry.owner);
            if SessionFate::of(entry, owner.as_ref()) != SessionFate::Live {
                continue;
            }
            let machine = self.machines.iter().find(|machine| machine.name == entry.owner);
            let session = machine.and_then(|machine| machine.sessions.get(&entry.session));
            if !session.is_some_and(|session| session.live && session.incarnation == *revision) {
                problems.push(format!("nobody has {}: {session:?}", describe(entry)));
            }
        }
        for machine in &self.machines {
            for (id, session) in machine.sessions.iter().filter(|(_, session)| session.live) {
                let entry = self.store.entries().find(|(entry, _)| entry.session == *id);
                if entry.is_none_or(|(_, revision)| *revision != session.incarnation) {
                    problems.push(format!(
                        "{} has {id} {session:?} for itself: {entry:?}",
                        machine.name
                    ));
                }
            }
        }
        for machine in &self.machines {
            for (id, _) in machine.sessions.iter().filter(|(_, session)| session.live) {
                if machine.behind(id) != Some(0) {
                    problems.push(format!("{id} is not copied: {:?}", machine.behind(id)));
                }
            }
        }
        for (session, incarnation) in &self.facts.created {
            let entry = self.store.entries().find(|(entry, _)| entry.session == *session);
            if entry.is_none_or(|(_, revision)| revision < incarnation) {
                problems.push(format!("{session} of revision {incarnation} was told and is gone"));
            }
        }
        problems.extend(self.check_copies());
        if let Some(problem) = problems.into_iter().next() {
            self.facts.broken(problem);
        }
    }

    /// Each incarnation's events are in the copy once and in order, up to what clients were told.
    fn check_copies(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut ends: std::collections::BTreeMap<(SessionId, Revision), u64> =
            std::collections::BTreeMap::new();
        for name in 0..NAMES {
            let session = SessionId::parse(format!("s{name}")).expect("a name");
            let mut newest = Revision(0);
            for (batch, _) in self.store.copy(&session) {
                let end = ends.entry((session.clone(), batch.head.incarnation)).or_default();
                if batch.first.0 != *end + 1 || batch.head.last < batch.first {
                    problems.push(format!("the copy of {session} has {batch:?} after {end}"));
                }
                if batch.head.incarnation < newest {
                    problems.push(format!("the copy of {session} goes back to {batch:?}"));
                }
                newest = newest.max(batch.head.incarnation);
                *end = batch.head.last.0;
            }
        }
        for (session, incarnation, seq) in &self.facts.copied {
            let end = ends.get(&(session.clone(), *incarnation)).copied().unwrap_or_default();
            if end < seq.0 {
                problems.push(format!(
                    "event {seq} of {session} was told to be copied, the copy ends at {end}"
                ));
            }
        }
        problems
    }
}

impl Coverage {
    pub fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.losses += other.losses;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.outages += other.outages;
        self.fences += other.fences;
        self.doubled += other.doubled;
        self.accepted += other.accepted;
        self.created += other.created;
        self.copied += other.copied;
        self.reused += other.reused;
    }

    /// Every kind of failure happened often: else the simulation shows nothing.
    pub fn check(&self) {
        for (what, count, least) in [
            ("kills", self.kills, 100),
            ("losses", self.losses, 100),
            ("pauses", self.pauses, 100),
            ("cuts", self.cuts, 100),
            ("outages", self.outages, 100),
            ("fences", self.fences, 50),
            ("doubled messages", self.doubled, 1_000),
            ("accepted turns", self.accepted, 10_000),
            ("creations", self.created, 1_000),
            ("copied events", self.copied, 1_000),
            ("names used again", self.reused, 500),
        ] {
            assert!(count >= least, "only {count} {what} in all seeds");
        }
    }
}

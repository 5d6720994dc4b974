//! A keeper, its nodes and the bytes between them, driven by one random sequence.

use std::collections::VecDeque;

use bytes::Bytes;
use windlass_lifecycle::link::{Arrival, CommandProgress, KeeperHalf, NodeHalf};
use windlass_protocol::event::{EventKind, Stream};
use windlass_protocol::frame::{self, Decoder};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::link::{AttachReply, FromKeeper, Hold, KeeperCommand, LINK, ToKeeper};
use windlass_protocol::{Epoch, LinkSeq, TurnNo};

/// One connection: the bytes in transit in both directions, and both decoders.
#[derive(Default)]
struct Wire {
    to_keeper: VecDeque<u8>,
    to_node: VecDeque<u8>,
    keeper: Decoder,
    node: Decoder,
}

/// A node: its half of the link, its journal, and the turns it has sent.
struct Node {
    half: NodeHalf,
    epoch: Epoch,
    journal: Vec<(LinkSeq, u64)>,
    asked: Vec<TurnNo>,
    /// The connection, if the node has one.
    wire: Option<Wire>,
    /// The keeper has refused this node, so it stops.
    fenced: bool,
}

/// How often each kind of failure happened.
#[derive(Default, Debug)]
pub struct Coverage {
    cuts: u64,
    cuts_in_a_frame: u64,
    kills: u64,
    rivals: u64,
    refusals: u64,
    resent: u64,
}

pub struct World {
    random: u64,
    keeper: KeeperHalf,
    emitted: u64,
    done: Vec<(Epoch, TurnNo)>,
    nodes: Vec<Node>,
    /// The node that the keeper obeys.
    obeyed: Option<usize>,
    epochs: u64,
    next_turn: u64,
    coverage: Coverage,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut world = Self {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            keeper: KeeperHalf::default(),
            emitted: 0,
            done: Vec::new(),
            nodes: Vec::new(),
            obeyed: None,
            epochs: 0,
            next_turn: 0,
            coverage: Coverage::default(),
        };
        world.start_node(Vec::new());
        world
    }

    pub fn coverage_of(seed: u64, moves: usize) -> Coverage {
        let mut world = Self::new(seed);
        (0..moves).for_each(|_| world.random_move());
        world.coverage
    }

    /// xorshift: a small generator with the same sequence on every machine.
    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn start_node(&mut self, journal: Vec<(LinkSeq, u64)>) {
        self.epochs += 1;
        let epoch = Epoch(self.epochs);
        let after = journal.last().map_or(LinkSeq(0), |(link, _)| *link);
        let half = NodeHalf::new(epoch, after);
        let node = Node { half, epoch, journal, asked: Vec::new(), wire: None, fenced: false };
        self.nodes.push(node);
        self.connect(self.nodes.len() - 1);
    }

    fn connect(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if node.fenced {
            return;
        }
        let mut out = Vec::new();
        node.half.attach(&mut out, None).expect("it fits");
        let mut wire = Wire::default();
        wire.to_keeper.extend(out);
        node.wire = Some(wire);
        if self.obeyed == Some(index) {
            self.obeyed = None;
        }
    }

    fn cut(&mut self, index: usize) {
        let Some(wire) = self.nodes[index].wire.take() else { return };
        self.coverage.cuts += 1;
        if wire.keeper.pending() > 0 || wire.node.pending() > 0 {
            self.coverage.cuts_in_a_frame += 1;
        }
        if self.obeyed == Some(index) {
            self.obeyed = None;
        }
    }

    pub fn random_move(&mut self) {
        let newest = self.nodes.len() - 1;
        // Mostly the newest node, sometimes one that should have stopped.
        let index = if self.next(8) == 0 { self.next(newest as u64 + 1) as usize } else { newest };
        match self.next(100) {
            0..=19 => self.emit(),
            20..=34 => self.ask(index),
            35..=59 => self.carry_to_keeper(index),
            60..=84 => self.carry_to_node(index),
            85..=89 => self.cut(index),
            90..=94 if self.nodes[index].wire.is_none() => self.connect(index),
            95..=96 => self.acknowledge(index),
            97 => {
                self.coverage.kills += 1;
                self.cut(newest);
                self.nodes[newest].fenced = true;
                let journal = self.nodes[newest].journal.clone();
                self.start_node(journal);
            }
            98 if self.nodes.len() < 12 => {
                // A second node claims the keeper while the first is still connected.
                self.coverage.rivals += 1;
                let journal = self.nodes[newest].journal.clone();
                self.start_node(journal);
            }
            _ => {}
        }
    }

    fn emit(&mut self) {
        self.emitted += 1;
        let length = match self.next(10) {
            0 => 70_000,
            _ => self.next(200) as usize,
        };
        let mut body = self.emitted.to_be_bytes().to_vec();
        body.resize(8 + length, 7);
        let kind = EventKind::Output { stream: Stream::Stdout, background: false };
        let event = self.keeper.push(None, kind, body.into()).expect("it fits");
        if let Some(wire) = self.obeyed.and_then(|obeyed| self.nodes[obeyed].wire.as_mut()) {
            wire.to_node.extend(event.head.iter());
            wire.to_node.extend(event.body.iter());
        }
    }

    fn ask(&mut self, index: usize) {
        if self.nodes[index].fenced || self.nodes[index].wire.is_none() {
            return;
        }
        self.next_turn += 1;
        let turn = TurnNo(self.next_turn);
        let length = match self.next(12) {
            0 => CHUNK_BYTES_MAX + 1000,
            _ => self.next(100) as usize,
        };
        let node = &mut self.nodes[index];
        node.asked.push(turn);
        let mut out = Vec::new();
        let act = KeeperCommand::TurnStart { turn, more: false, context: None };
        let body = Bytes::from(vec![b'x'; length]);
        node.half.command(act, body, &mut out).expect("it fits");
        node.wire.as_mut().expect("checked above").to_keeper.extend(out);
    }

    fn acknowledge(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if let Some(wire) = &mut node.wire {
            let mut out = Vec::new();
            node.half.acknowledge(&mut out).expect("it fits");
            wire.to_keeper.extend(out);
        }
    }

    fn portion(&mut self) -> usize {
        match self.next(3) {
            0 => 1 + self.next(12) as usize,
            1 => 1 + self.next(400) as usize,
            _ => 300_000,
        }
    }

    fn carry_to_keeper(&mut self, index: usize) {
        let portion = self.portion();
        let Some(wire) = self.nodes[index].wire.as_mut() else { return };
        let bytes: Vec<u8> = wire.to_keeper.drain(..portion.min(wire.to_keeper.len())).collect();
        wire.keeper.push(&bytes);
        while let Some(wire) = self.nodes[index].wire.as_mut() {
            let Some(frame) = wire.keeper.next_frame().expect("we made every frame") else {
                return;
            };
            let message = serde_json::from_slice(&frame.header).expect("we made every header");
            self.keeper_receives(index, message, &frame.body);
        }
    }

    fn keeper_receives(&mut self, index: usize, message: ToKeeper, body: &Bytes) {
        match message {
            ToKeeper::Attach { epoch, after, .. } => self.claim(index, epoch, after),
            // A keeper reads only the connection of the node that it obeys.
            _ if self.obeyed != Some(index) => {}
            ToKeeper::Prepare(_) | ToKeeper::Part { .. } => {
                panic!("no node here prepares a worker")
            }
            ToKeeper::Ack { after } => self.keeper.acknowledge(after),
            ToKeeper::Command { command, after, act } => {
                self.keeper.acknowledge(after);
                match self.keeper.command(command, act, body) {
                    CommandProgress::Execute(KeeperCommand::TurnStart { turn, .. }, _) => {
                        self.done.push((self.keeper.epoch(), turn));
                    }
                    CommandProgress::Ignored => self.coverage.resent += 1,
                    _ => {}
                }
            }
        }
    }

    fn claim(&mut self, index: usize, epoch: Epoch, after: LinkSeq) {
        if let Err(reason) = self.keeper.attach(epoch, after) {
            self.coverage.refusals += 1;
            let refused = FromKeeper::Refused { epoch: self.keeper.epoch(), reason };
            let mut out = Vec::new();
            frame::encode(&mut out, &refused, &[]).expect("it fits");
            if let Some(wire) = &mut self.nodes[index].wire {
                wire.to_node.extend(out);
            }
            return;
        }
        if let Some(former) = self.obeyed.filter(|former| *former != index) {
            // The former node's connection closes, and the bytes in transit are lost.
            self.nodes[former].wire = None;
        }
        self.obeyed = Some(index);
        let attached = FromKeeper::Attached(Box::new(AttachReply {
            link: LINK,
            epoch,
            pid: 1,
            last: self.keeper.last(),
            command: self.keeper.seen(),
            last_turn: TurnNo(0),
            running: None,
            running_ms: None,
            calls: Vec::new(),
            restarts: 0,
            forks: true,
            remembers_failed: true,
            takes_context: true,
            failed: Vec::new(),
            room: None,
            hold: Hold::PidNamespace,
        }));
        let mut out = Vec::new();
        frame::encode(&mut out, &attached, &[]).expect("it fits");
        for held in self.keeper.held_after(after) {
            out.extend_from_slice(&held.head);
            out.extend_from_slice(&held.body);
        }
        if let Some(wire) = &mut self.nodes[index].wire {
            wire.to_node.extend(out);
        }
    }

    fn carry_to_node(&mut self, index: usize) {
        let portion = self.portion();
        let node = &mut self.nodes[index];
        let Some(wire) = node.wire.as_mut() else { return };
        let bytes: Vec<u8> = wire.to_node.drain(..portion.min(wire.to_node.len())).collect();
        wire.node.push(&bytes);
        while let Some(wire) = node.wire.as_mut() {
            let Some(frame) = wire.node.next_frame().expect("we made every frame") else { return };
            match serde_json::from_slice(&frame.header).expect("we made every header") {
                FromKeeper::Attached(attached) => {
                    let mut out = Vec::new();
                    node.half.attached(&attached, &mut out).expect("it fits");
                    wire.to_keeper.extend(out);
                }
                FromKeeper::Prepared { .. } | FromKeeper::Forked { .. } => {
                    panic!("no worker here is prepared or forked")
                }
                FromKeeper::Refused { .. } => {
                    node.fenced = true;
                    node.wire = None;
                }
                FromKeeper::Event { link, command, .. } => {
                    node.half.seen(command);
                    match node.half.arrived(link) {
                        Arrival::Next => {
                            let number = frame.body[..8].try_into().expect("eight bytes");
                            node.journal.push((link, u64::from_be_bytes(number)));
                        }
                        Arrival::Again => {}
                        Arrival::Gap { missing } => {
                            panic!("{missing} events before {link} missing")
                        }
                    }
                }
                FromKeeper::Seen { command } => node.half.seen(command),
            }
        }
    }

    /// Lets the newest node finish all its work over a connection that does not break.
    pub fn heal(&mut self) {
        let newest = self.nodes.len() - 1;
        self.cut(newest);
        self.connect(newest);
        for _ in 0..10_000 {
            self.carry_to_keeper(newest);
            self.carry_to_node(newest);
        }
    }

    /// Checks the invariants that hold at every moment.
    pub fn check(&self) -> Result<(), String> {
        for node in &self.nodes {
            for (index, (link, number)) in node.journal.iter().enumerate() {
                let expected = index as u64 + 1;
                if link.0 != expected || *number != expected {
                    return Err(format!(
                        "the journal of node {} has event {number} as {link} at {expected}",
                        node.epoch
                    ));
                }
            }
            let of_this: Vec<TurnNo> = self.done_for(node);
            if node.asked[..of_this.len().min(node.asked.len())] != of_this[..] {
                return Err(format!(
                    "the keeper did not follow node {}'s order of turns",
                    node.epoch
                ));
            }
        }
        if self.done.windows(2).any(|pair| pair[0].0 > pair[1].0) {
            return Err(
                "the keeper executed a command of an older node after a newer node's".into()
            );
        }
        Ok(())
    }

    fn done_for(&self, node: &Node) -> Vec<TurnNo> {
        let mine = |(epoch, turn): &(Epoch, TurnNo)| (*epoch == node.epoch).then_some(*turn);
        self.done.iter().filter_map(mine).collect()
    }

    /// Checks what must be true after all bytes have arrived.
    pub fn check_complete(&self) -> Result<(), String> {
        let newest = self.nodes.last().expect("there is always a node");
        if newest.journal.len() as u64 != self.emitted {
            let kept = newest.journal.len();
            return Err(format!("{} events were made and {kept} journaled", self.emitted));
        }
        if self.done_for(newest) != newest.asked {
            return Err(
                "the keeper did not execute the newest node's commands once, in order".into()
            );
        }
        Ok(())
    }
}

impl Coverage {
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.cuts_in_a_frame += other.cuts_in_a_frame;
        self.kills += other.kills;
        self.rivals += other.rivals;
        self.refusals += other.refusals;
        self.resent += other.resent;
    }

    /// Fails if a kind of failure never happened: such a simulation proves nothing.
    pub fn check(&self) {
        eprintln!("{self:?}");
        let kinds = [self.cuts, self.cuts_in_a_frame, self.kills, self.rivals, self.refusals];
        assert!(kinds.iter().all(|count| *count > 0), "{self:?}");
    }
}

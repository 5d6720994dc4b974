//! What nodes say: who they are, what is journaled, and what to do. Only the node with the newest
//! epoch is heard.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::net::{SocketFlags, accept_with};
use windlass_lifecycle::link::Done;
use windlass_protocol::link::{
    Attached, Command, CommandSeq, FromKeeper, LINK, Launch, RefuseReason, ToKeeper,
};
use windlass_protocol::{Epoch, LinkSeq, TurnNo};

use crate::calls::Part;
use crate::complaint::complain;
use crate::connection::{Connection, Gone};
use crate::input::Given;
use crate::keeper::Keeper;
use crate::stage::Then;
use crate::watch::Watch;

/// Connections that may wait to say who they are; the oldest goes when one more comes.
const CALLERS_MAX: usize = 4;

/// Failed turns that are remembered for the next node: more than can wait in a session.
const FAILED_MAX: usize = 128;

/// Reads of what a node has sent that cannot be written to any more.
const LAST_READS_MAX: u32 = 64;

/// A caller that attaches.
struct Claim {
    epoch: Epoch,
    after: LinkSeq,
    launch: Option<Box<Launch>>,
}

impl Keeper {
    pub(crate) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Some(listener) = &self.listener
            && let Ok(socket) = accept_with(listener, flags)
        {
            if self.callers.len() == CALLERS_MAX {
                self.callers.remove(0);
            }
            self.callers.push(Connection::new(socket));
        }
        // The first message is often there already.
        self.hear_callers();
    }

    pub(crate) fn hear_callers(&mut self) {
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.first_message(&mut self.scratch) {
                Ok(None) => self.callers.push(caller),
                Ok(Some(ToKeeper::Attach { epoch, after, launch, .. })) => {
                    self.claim(caller, Claim { epoch, after, launch });
                }
                Ok(Some(ToKeeper::Prepare(prepare))) => self.prepare(caller, &prepare),
                Ok(Some(_)) | Err(Gone::Malformed) => self.refuse(caller, RefuseReason::BadAttach),
                Err(Gone::Closed) => {}
            }
        }
    }

    fn claim(&mut self, mut caller: Connection, claim: Claim) {
        if claim.launch.is_some() && self.launch.is_some() {
            return self.refuse(caller, RefuseReason::BadAttach);
        }
        if claim.launch.is_none() && self.launch.is_none() {
            self.refuse(caller, RefuseReason::NotLaunched);
            return self.clear(Then::Exit);
        }
        if let Err(reason) = self.link.attach(claim.epoch, claim.after) {
            return self.refuse(caller, reason);
        }
        caller.resume(claim.after);
        let launch = claim.launch.as_ref().or(self.launch.as_ref());
        let first_room = launch.and_then(|launch| launch.family.clone());
        let attached = FromKeeper::Attached(Box::new(Attached {
            link: LINK,
            epoch: claim.epoch,
            pid: self.held.pid(),
            last: self.link.last(),
            command: self.link.seen(),
            last_turn: self.last_turn,
            running: self.running.turn(),
            running_ms: self.running.for_ms(),
            calls: self.running.open_calls(),
            restarts: self.restarts,
            hold: self.held.hold(),
            forks: true,
            remembers_failed: true,
            failed: self.failed.iter().copied().collect(),
            room: self.family.room.clone().or(first_room),
        }));
        if let Err(error) = caller.say(&attached) {
            // Cannot happen: the answer has a bounded number of call ids. The node asks again.
            complain!("keeper: an attach cannot be answered: {error}");
            return;
        }
        let zygote = caller.take_passed();
        // The former node's connection closes here: it is fenced.
        self.node = Some(caller);
        self.alone_since = None;
        if let Some(launch) = claim.launch {
            self.zygote = zygote.filter(|_| launch.from_zygote);
            let watch = self.pooled.as_mut().and_then(|pooled| pooled.watch_of(&launch));
            self.launch = Some(launch);
            self.start_worker();
            // While the worker gets ready, and before there is a turn.
            if let Some(launch) = &self.launch {
                self.watch = watch.map_or_else(|| Watch::of(launch), |watch| watch.limited(launch));
            }
            self.watch.take_stock();
        }
        // Commands may have come with the attach.
        self.take_commands();
    }

    fn refuse(&mut self, mut caller: Connection, reason: RefuseReason) {
        if let Err(error) = caller.say(&FromKeeper::Refused { epoch: self.link.epoch(), reason }) {
            complain!("keeper: a refusal cannot be said: {error}");
        }
        let nothing = windlass_lifecycle::link::KeeperHalf::default();
        let _ = caller.flush(&nothing);
    }

    /// Says something to the node that is heard, if there is one. A node that cannot be told loses this
    /// connection, and learns the rest when it attaches again.
    pub(crate) fn say(&mut self, message: &FromKeeper) {
        let Some(node) = &mut self.node else { return };
        if let Err(error) = node.say(message) {
            complain!("keeper: the node cannot be told: {error}");
            self.lose_node();
        }
    }

    pub(crate) fn lose_node(&mut self) {
        self.node = None;
        self.alone_since = Some(Instant::now());
    }

    /// The node cannot be written to: what it has said before it went counts all the same.
    pub(crate) fn hear_last_of_node(&mut self) {
        for _ in 0..LAST_READS_MAX {
            let Some(node) = &mut self.node else { return };
            match node.fill(&mut self.scratch) {
                Ok(0) | Err(_) => break,
                Ok(_) => self.take_commands(),
            }
        }
        self.lose_node();
    }

    pub(crate) fn hear_node(&mut self) {
        let Some(node) = &mut self.node else { return };
        if node.fill(&mut self.scratch).is_err() {
            return self.lose_node();
        }
        self.take_commands();
    }

    fn take_commands(&mut self) {
        while let Some(node) = &mut self.node {
            let message = match node.next_message() {
                Ok(None) => return,
                Ok(Some(message)) => message,
                // No message at all: not a node of ours.
                Err(_) => return self.lose_node(),
            };
            match message {
                (ToKeeper::Ack { after }, _) => self.link.acknowledge(after),
                (ToKeeper::Command { command, after, act }, body) => {
                    self.link.acknowledge(after);
                    self.take_command(command, act, &body);
                }
                // Whoever had a worker wait now has a session for it.
                (ToKeeper::Attach { epoch, after, launch, .. }, _) if self.pooled.is_some() => {
                    let Some(caller) = self.node.take() else { return };
                    return self.claim(caller, Claim { epoch, after, launch });
                }
                // Two attaches on one connection: not a node of ours.
                (ToKeeper::Attach { .. } | ToKeeper::Prepare(_) | ToKeeper::Part { .. }, _) => {
                    self.lose_node();
                }
            }
        }
    }

    fn take_command(&mut self, command: CommandSeq, act: Command, body: &Bytes) {
        match self.link.command(command, act, body) {
            Done::Already | Done::Partly => {}
            Done::Now(act, body) => self.perform(act, body),
            // The node refuses such a message itself; one that comes all the same is not done.
            Done::TooLarge(_) => {}
        }
    }

    fn perform(&mut self, act: Command, body: Bytes) {
        match act {
            Command::TurnStart { turn, .. } => self.start_turn(turn, &body),
            Command::TurnInput { turn, eof, .. } => self.give_input(turn, body, eof),
            Command::Interrupt { turn } => self.interrupt_turn(turn),
            Command::ToolResult { turn, call, ok, more } => {
                self.answer_call(turn, Part { call, ok, more, body });
            }
            Command::Fork(fork) => self.begin_fork(fork),
            Command::TurnFailed { turn } => self.remember_failed(turn),
            Command::Restart => {
                // Counted when told, not when done: a node that attaches meanwhile must not tell
                // it again.
                self.restarts += 1;
                self.zygote = self.node.as_mut().and_then(Connection::take_passed);
                self.clear(Then::StartAfresh);
            }
            Command::Shutdown { grace_ms } => self.finish(Duration::from_millis(grace_ms)),
        }
    }

    fn remember_failed(&mut self, turn: TurnNo) {
        if self.failed.len() >= FAILED_MAX {
            self.failed.pop_front();
        }
        self.failed.push_back(turn);
    }

    fn give_input(&mut self, turn: TurnNo, bytes: Bytes, eof: bool) {
        self.take_input(turn, Given { bytes, eof });
        // The client waits for this word, and no event may come soon.
        let seen = FromKeeper::Seen { command: self.link.seen() };
        self.say(&seen);
    }
}

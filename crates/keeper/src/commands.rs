//! What nodes say: who they are, what is journaled, and what to do. Only the node with the newest
//! epoch is heard.

use std::time::Duration;

use bytes::Bytes;
use windlass_lifecycle::link::CommandProgress;
use windlass_protocol::link::{
    AttachReply, CommandSeq, FromKeeper, KeeperCommand, LINK, Launch, Prepare, RefuseReason,
    ToKeeper,
};
use windlass_protocol::{Epoch, LinkSeq, TurnNo};

use crate::calls::Part;
use crate::complaint::complain;
use crate::connection::{Connection, Gone};
use crate::input::Given;
use crate::keeper::Keeper;
use crate::stage::Then;
use crate::starting::PooledWorker;
use crate::watch::Watch;

/// Reads of what a node has sent that cannot be written to any more.
const LAST_READS_MAX: u32 = 64;

/// A caller that attaches.
struct Claim {
    epoch: Epoch,
    after: LinkSeq,
    launch: Option<Box<Launch>>,
}

impl Keeper {
    pub(crate) fn hear_callers(&mut self) {
        for mut caller in std::mem::take(&mut self.node.callers) {
            match caller.first_message(&mut self.scratch) {
                Ok(None) => self.node.callers.push(caller),
                Ok(Some(ToKeeper::Attach { epoch, after, launch, .. })) => {
                    self.claim(caller, Claim { epoch, after, launch });
                }
                Ok(Some(ToKeeper::Prepare(prepare))) => self.prepare(caller, &prepare),
                Ok(Some(_)) | Err(Gone::Malformed) => {
                    self.node.refuse(caller, RefuseReason::BadAttach)
                }
                Err(Gone::Closed) => {}
            }
        }
    }

    fn claim(&mut self, mut caller: Connection, claim: Claim) {
        if claim.launch.is_some() && self.launch.is_some() {
            return self.node.refuse(caller, RefuseReason::BadAttach);
        }
        if claim.launch.is_none() && self.launch.is_none() {
            self.node.refuse(caller, RefuseReason::NotLaunched);
            return self.clear(Then::Exit);
        }
        if let Err(reason) = self.node.link.attach(claim.epoch, claim.after) {
            return self.node.refuse(caller, reason);
        }
        caller.resume(claim.after);
        let launch = claim.launch.as_ref().or(self.launch.as_ref());
        let first_room = launch.and_then(|launch| launch.family.clone());
        let attached = FromKeeper::Attached(Box::new(AttachReply {
            link: LINK,
            epoch: claim.epoch,
            pid: self.held.pid(),
            last: self.node.link.last(),
            command: self.node.link.seen(),
            last_turn: self.worker.last_turn,
            running: self.worker.running.turn(),
            running_ms: self.worker.running.for_ms(),
            calls: self.worker.running.open_calls(),
            restarts: self.worker.restarts,
            hold: self.held.hold(),
            forks: true,
            remembers_failed: true,
            failed: self.node.failed(),
            room: self.family.room.clone().or(first_room),
        }));
        if let Err(error) = caller.say(&attached) {
            // Cannot happen: the answer has a bounded number of call ids. The node asks again.
            complain!("keeper: an attach cannot be answered: {error}");
            return;
        }
        let zygote = caller.take_passed();
        self.node.hear(caller);
        if let Some(launch) = claim.launch {
            self.worker.zygote = zygote.filter(|_| launch.from_zygote);
            let watch = self.worker.pooled.as_mut().and_then(|pooled| pooled.watch_of(&launch));
            self.launch = Some(launch);
            self.start_worker();
            // While the worker gets ready, and before there is a turn.
            if let Some(launch) = &self.launch {
                self.worker.watch =
                    watch.map_or_else(|| Watch::of(launch), |watch| watch.limited(launch));
            }
            self.worker.watch.take_stock();
        }
        // Commands may have come with the attach.
        self.take_commands();
    }

    /// The node's connection cannot be written to. The keeper still reads and obeys what the node sent before.
    pub(crate) fn hear_last_of_node(&mut self) {
        for _ in 0..LAST_READS_MAX {
            let Some(node) = &mut self.node.connection else { return };
            match node.fill(&mut self.scratch) {
                Ok(0) | Err(_) => break,
                Ok(_) => self.take_commands(),
            }
        }
        self.node.lose();
    }

    pub(crate) fn hear_node(&mut self) {
        let Some(node) = &mut self.node.connection else { return };
        if node.fill(&mut self.scratch).is_err() {
            return self.node.lose();
        }
        self.take_commands();
    }

    fn take_commands(&mut self) {
        while let Some(node) = &mut self.node.connection {
            let message = match node.next_message() {
                Ok(None) => return,
                Ok(Some(message)) => message,
                // No message at all: not a node of ours.
                Err(_) => return self.node.lose(),
            };
            match message {
                (ToKeeper::Ack { after }, _) => self.node.link.acknowledge(after),
                (ToKeeper::Command { command, after, act }, body) => {
                    self.node.link.acknowledge(after);
                    self.take_command(command, act, &body);
                }
                // Whoever had a worker wait now has a session for it.
                (ToKeeper::Attach { epoch, after, launch, .. }, _)
                    if self.worker.pooled.is_some() =>
                {
                    let Some(caller) = self.node.connection.take() else { return };
                    return self.claim(caller, Claim { epoch, after, launch });
                }
                // Two attaches on one connection: not a node of ours.
                (ToKeeper::Attach { .. } | ToKeeper::Prepare(_) | ToKeeper::Part { .. }, _) => {
                    self.node.lose();
                }
            }
        }
    }

    fn take_command(&mut self, command: CommandSeq, act: KeeperCommand, body: &Bytes) {
        match self.node.link.command(command, act, body) {
            CommandProgress::Ignored | CommandProgress::Incomplete => {}
            CommandProgress::Execute(act, body) => self.perform(act, body),
            // A node refuses such a command before it sends it. The keeper ignores one that comes anyway.
            CommandProgress::TooLarge(_) => {}
        }
    }

    fn perform(&mut self, act: KeeperCommand, body: Bytes) {
        match act {
            KeeperCommand::TurnStart { turn, .. } => {
                self.worker.start_turn(turn, &body, self.stage)
            }
            KeeperCommand::TurnInput { turn, eof, .. } => self.give_input(turn, body, eof),
            KeeperCommand::Interrupt { turn } => self.worker.interrupt_turn(turn),
            KeeperCommand::ToolResult { turn, call, ok, more } => {
                self.worker.answer_call(turn, Part { call, ok, more, body });
            }
            KeeperCommand::Fork(fork) => self.begin_fork(fork),
            KeeperCommand::TurnFailed { turn } => self.node.remember_failed(turn),
            KeeperCommand::Restart => {
                // Counted when told, not when done: a node that attaches meanwhile must not tell
                // it again.
                self.worker.restarts += 1;
                let node = self.node.connection.as_mut();
                self.worker.zygote = node.and_then(Connection::take_passed);
                self.clear(Then::StartAfresh);
            }
            KeeperCommand::Shutdown { grace_ms } => self.finish(Duration::from_millis(grace_ms)),
        }
    }

    fn give_input(&mut self, turn: TurnNo, bytes: Bytes, eof: bool) {
        self.worker.take_input(turn, Given { bytes, eof }, &mut self.node);
        // The client waits for this word, and no event may come soon.
        let seen = FromKeeper::Seen { command: self.node.link.seen() };
        self.node.say(&seen);
    }

    /// Forks a pooled worker. The node is told when the worker is in its cgroups; a keeper whose worker
    /// cannot be forked exits.
    fn prepare(&mut self, mut caller: Connection, prepare: &Prepare) {
        if self.launch.is_some() || self.worker.pooled.is_some() {
            return;
        }
        let zygote = caller.take_passed();
        self.node.hear(caller);
        match PooledWorker::fork(prepare, zygote, self.held.hold()) {
            Ok(pooled) => {
                self.worker.pooled = Some(pooled);
                self.say_prepared();
            }
            Err(error) => {
                complain!("keeper: a pooled worker cannot be forked: {error}");
                self.clear(Then::Exit);
            }
        }
    }

    /// Processes have ended: the pooled worker, its init, or those that moved it into its cgroups.
    pub(crate) fn note_pooled(&mut self, ended: &[(u32, String)]) {
        let Some(pooled) = &mut self.worker.pooled else { return };
        if pooled.is_broken_by(ended) {
            complain!("keeper: a pooled worker ended");
            self.clear(Then::Exit);
        } else if !ended.is_empty() {
            self.say_prepared();
        }
    }

    fn say_prepared(&mut self) {
        let has_joined = self.worker.pooled.as_ref().is_some_and(PooledWorker::has_joined);
        if has_joined && self.launch.is_none() {
            self.node.say(&FromKeeper::Prepared { pid: self.held.pid() });
        }
    }
}

//! Handles messages of nodes: attaches, acknowledgements and commands. The keeper obeys only the node with
//! the highest epoch.

use std::time::Duration;

use bytes::Bytes;
use windlass_lifecycle::link::CommandProgress;
use windlass_protocol::link::{
    AttachReply, CommandSeq, FromKeeper, KeeperCommand, LINK, Launch, Prepare, RefuseReason,
    ToKeeper,
};
use windlass_protocol::{Epoch, LinkSeq, TurnNo};

use crate::complaint::complain;
use crate::connection::{ConnectionLost, NodeConnection};
use crate::input::InputMessage;
use crate::keeper::Keeper;
use crate::stage::AfterClear;
use crate::starting::PooledWorker;
use crate::watch::LimitWatch;
use crate::worker_side::calls::ToolResultPart;

/// Maximum number of reads from a node's connection that cannot be written to any more.
const LAST_READS_MAX: u32 = 64;

/// The attach message of a connection.
struct AttachRequest {
    epoch: Epoch,
    after: LinkSeq,
    launch: Option<Box<Launch>>,
}

impl Keeper {
    pub(crate) fn read_callers(&mut self) {
        for mut caller in std::mem::take(&mut self.node.callers) {
            match caller.first_message(&mut self.scratch) {
                Ok(None) => self.node.callers.push(caller),
                Ok(Some(ToKeeper::Attach { epoch, after, launch, .. })) => {
                    self.attach(caller, AttachRequest { epoch, after, launch });
                }
                Ok(Some(ToKeeper::Prepare(prepare))) => self.prepare(caller, &prepare),
                Ok(Some(_)) | Err(ConnectionLost::Malformed) => {
                    self.node.refuse(caller, RefuseReason::BadAttach)
                }
                Err(ConnectionLost::Closed) => {}
            }
        }
    }

    fn attach(&mut self, mut caller: NodeConnection, attach: AttachRequest) {
        if attach.launch.is_some() && self.launch.is_some() {
            return self.node.refuse(caller, RefuseReason::BadAttach);
        }
        if attach.launch.is_none() && self.launch.is_none() {
            self.node.refuse(caller, RefuseReason::NotLaunched);
            return self.clear(AfterClear::Exit);
        }
        if let Err(reason) = self.node.link.attach(attach.epoch, attach.after) {
            return self.node.refuse(caller, reason);
        }
        caller.resume(attach.after);
        let launch = attach.launch.as_ref().or(self.launch.as_ref());
        let first_room = launch.and_then(|launch| launch.family.clone());
        let attached = FromKeeper::Attached(Box::new(AttachReply {
            link: LINK,
            epoch: attach.epoch,
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
            takes_context: true,
            failed: self.node.failed(),
            room: self.family.room.clone().or(first_room),
        }));
        if let Err(error) = caller.say(&attached) {
            // Cannot happen, because the answer has a bounded number of call ids. The node would attach
            // again.
            complain!("keeper: cannot answer an attach: {error}");
            return;
        }
        let zygote = caller.take_passed();
        self.node.attach(caller);
        if let Some(launch) = attach.launch {
            self.worker.zygote = zygote.filter(|_| launch.from_zygote);
            let watch = self.worker.pooled.as_mut().and_then(|pooled| pooled.watch_of(&launch));
            self.launch = Some(launch);
            self.start_worker();
            // The worker starts meanwhile, and there is no turn yet: a good time to measure.
            if let Some(launch) = &self.launch {
                self.worker.watch =
                    watch.map_or_else(|| LimitWatch::of(launch), |watch| watch.limited(launch));
            }
            self.worker.watch.measure_baseline();
        }
        // Commands may have arrived together with the attach.
        self.take_commands();
    }

    /// The node's connection cannot be written to. The keeper still reads and obeys what the node sent
    /// before.
    pub(crate) fn read_remaining_commands(&mut self) {
        for _ in 0..LAST_READS_MAX {
            let Some(node) = &mut self.node.connection else { return };
            match node.fill(&mut self.scratch) {
                Ok(0) | Err(_) => break,
                Ok(_) => self.take_commands(),
            }
        }
        self.node.lose();
    }

    pub(crate) fn read_node(&mut self) {
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
                // The bytes are not a message, so the peer is not a valid node.
                Err(_) => return self.node.lose(),
            };
            match message {
                (ToKeeper::Ack { after }, _) => self.node.link.acknowledge(after),
                (ToKeeper::Command { command, after, act }, body) => {
                    self.node.link.acknowledge(after);
                    self.take_command(command, act, &body);
                }
                // The node that prepared the pooled worker now has a session for it.
                (ToKeeper::Attach { epoch, after, launch, .. }, _)
                    if self.worker.pooled.is_some() =>
                {
                    let Some(caller) = self.node.connection.take() else { return };
                    return self.attach(caller, AttachRequest { epoch, after, launch });
                }
                // A second attach on one connection: the peer is not a valid node.
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
            // A node never sends such a command. The keeper ignores one that arrives anyway.
            CommandProgress::TooLarge(_) => {}
        }
    }

    fn perform(&mut self, act: KeeperCommand, body: Bytes) {
        match act {
            KeeperCommand::TurnStart { turn, context, .. } => {
                self.worker.start_turn(turn, context, &body, self.stage)
            }
            KeeperCommand::TurnInput { turn, eof, keys, .. } => {
                self.give_input(turn, InputMessage { bytes: body, eof, keys });
            }
            KeeperCommand::Interrupt { turn } => self.worker.interrupt_turn(turn),
            KeeperCommand::ToolResult { turn, call, ok, more } => {
                self.worker.answer_call(turn, ToolResultPart { call, ok, more, body });
            }
            KeeperCommand::Fork(fork) => self.begin_fork(fork),
            KeeperCommand::TurnFailed { turn } => self.node.remember_failed(turn),
            KeeperCommand::Restart => {
                // Counted when the command arrives, not when it is done: a node that attaches in between must
                // not send it again.
                self.worker.restarts += 1;
                let node = self.node.connection.as_mut();
                self.worker.zygote = node.and_then(NodeConnection::take_passed);
                self.clear(AfterClear::StartAfresh);
            }
            KeeperCommand::Shutdown { grace_ms } => self.finish(Duration::from_millis(grace_ms)),
        }
    }

    fn give_input(&mut self, turn: TurnNo, message: InputMessage) {
        self.worker.take_input(turn, message, &mut self.node);
        // The client waits for this acknowledgement, and the next event may come late.
        let seen = FromKeeper::Seen { command: self.node.link.seen() };
        self.node.say(&seen);
    }

    /// Forks a pooled worker. The keeper tells the node when the worker is in its cgroups. If the fork fails,
    /// the keeper exits.
    fn prepare(&mut self, mut caller: NodeConnection, prepare: &Prepare) {
        if self.launch.is_some() || self.worker.pooled.is_some() {
            return;
        }
        let zygote = caller.take_passed();
        self.node.attach(caller);
        match PooledWorker::fork(prepare, zygote, self.held.hold()) {
            Ok(pooled) => {
                self.worker.pooled = Some(pooled);
                self.say_prepared();
            }
            Err(error) => {
                complain!("keeper: cannot fork a pooled worker: {error}");
                self.clear(AfterClear::Exit);
            }
        }
    }

    /// Handles ends of processes: of the pooled worker, its init, or the processes that move it into its
    /// cgroups.
    pub(crate) fn check_pooled(&mut self, ended: &[(u32, String)]) {
        let Some(pooled) = &mut self.worker.pooled else { return };
        if pooled.is_broken_by(ended) {
            complain!("keeper: a pooled worker ended before a session used it");
            self.clear(AfterClear::Exit);
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

//! The keeper's half of the link. It numbers events and holds them until the node acknowledges them. It
//! obeys only the newest node, and it executes each command once.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use windlass_protocol::event::EventKind;
use windlass_protocol::frame::{self, EncodeError};
use windlass_protocol::limits::{MESSAGE_BYTES_MAX, UNACKED_BYTES_MAX};
use windlass_protocol::link::{CommandSeq, FromKeeper, KeeperCommand, RefuseReason};
use windlass_protocol::{Epoch, LinkSeq, TurnNo};

/// An encoded event: the frame up to its body, and the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingEvent {
    pub link: LinkSeq,
    pub head: Bytes,
    pub body: Bytes,
}

impl OutgoingEvent {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// What the keeper does after one frame of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandProgress {
    /// The command was seen before, or the frame is out of order: do nothing.
    Ignored,
    /// More frames of this command follow.
    Incomplete,
    /// The command is complete: execute it with this body.
    Execute(KeeperCommand, Bytes),
    /// The frames together exceed the message limit. The command counts as seen and is not executed.
    TooLarge(KeeperCommand),
}

/// The keeper's half of the link: see the module documentation.
#[derive(Debug)]
pub struct KeeperHalf {
    epoch: Epoch,
    last: LinkSeq,
    held: VecDeque<OutgoingEvent>,
    held_bytes: usize,
    seen: CommandSeq,
    partial: Option<PartialCommand>,
}

/// A command whose last frame has not arrived.
#[derive(Debug)]
struct PartialCommand {
    command: CommandSeq,
    body: BytesMut,
    fits: bool,
}

impl Default for KeeperHalf {
    fn default() -> Self {
        Self {
            epoch: Epoch(0),
            last: LinkSeq(0),
            held: VecDeque::new(),
            held_bytes: 0,
            seen: CommandSeq(0),
            partial: None,
        }
    }
}

impl KeeperHalf {
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn last(&self) -> LinkSeq {
        self.last
    }

    pub fn seen(&self) -> CommandSeq {
        self.seen
    }

    /// A node claims this keeper. An epoch older than the current one is refused. The same epoch means
    /// that the same node reconnects. An incomplete command is dropped: its node sends it again from the
    /// start.
    pub fn attach(&mut self, epoch: Epoch, after: LinkSeq) -> Result<(), RefuseReason> {
        if epoch < self.epoch {
            return Err(RefuseReason::StaleEpoch);
        }
        self.epoch = epoch;
        self.partial = None;
        self.acknowledge(after);
        Ok(())
    }

    /// The held events after `link`, oldest first. Held events are consecutive, so this seeks directly.
    pub fn held_after(&self, link: LinkSeq) -> impl Iterator<Item = &OutgoingEvent> {
        let first = self.held.front().map_or(0, |event| event.link.0);
        let skip = link.0.saturating_add(1).saturating_sub(first).min(self.held.len() as u64);
        self.held.range(skip as usize..)
    }

    /// Numbers an event and holds it. If a node is attached, the caller sends the returned event. An
    /// event that does not fit into a frame gets no number.
    pub fn push(
        &mut self,
        turn: Option<TurnNo>,
        event: EventKind,
        body: Bytes,
    ) -> Result<OutgoingEvent, EncodeError> {
        let link = self.last.next();
        let header = FromKeeper::Event { link, command: self.seen, turn, event };
        let mut head = Vec::with_capacity(160);
        frame::encode_head(&mut head, &header, body.len())?;
        let outgoing = OutgoingEvent { link, head: head.into(), body };
        self.last = link;
        self.held_bytes += outgoing.len();
        self.held.push_back(outgoing.clone());
        Ok(outgoing)
    }

    /// Releases the held events up to `after`: a journal has them. A number beyond the last event releases
    /// all held events and nothing else.
    pub fn acknowledge(&mut self, after: LinkSeq) {
        while self.held.front().is_some_and(|event| event.link <= after) {
            self.held_bytes -= self.held.pop_front().map_or(0, |event| event.len());
        }
    }

    /// Whether the held events reach the limit, so that the worker must wait.
    pub fn full(&self) -> bool {
        self.held_bytes >= UNACKED_BYTES_MAX
    }

    /// Takes one frame of a command.
    pub fn command(
        &mut self,
        command: CommandSeq,
        act: KeeperCommand,
        body: &Bytes,
    ) -> CommandProgress {
        if self.seen.0.checked_add(1) != Some(command.0) {
            return CommandProgress::Ignored;
        }
        let more = matches!(
            act,
            KeeperCommand::TurnStart { more: true, .. }
                | KeeperCommand::TurnInput { more: true, .. }
        );
        if !more && self.partial.is_none() {
            self.seen = command;
            return CommandProgress::Execute(act, body.clone());
        }
        let mut partial = self
            .partial
            .take()
            .filter(|partial| partial.command == command)
            .unwrap_or(PartialCommand { command, body: BytesMut::new(), fits: true });
        if partial.body.len() + body.len() > MESSAGE_BYTES_MAX {
            partial.fits = false;
            partial.body = BytesMut::new();
        } else if partial.fits {
            partial.body.extend_from_slice(body);
        }
        if more {
            self.partial = Some(partial);
            return CommandProgress::Incomplete;
        }
        self.seen = command;
        if partial.fits {
            CommandProgress::Execute(act, partial.body.freeze())
        } else {
            CommandProgress::TooLarge(act)
        }
    }
}

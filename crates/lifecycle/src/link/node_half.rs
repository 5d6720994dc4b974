//! The node's half of the link. It takes each event once, numbers commands, and resends the commands that
//! the keeper has not seen.

use std::collections::VecDeque;

use bytes::Bytes;
use windlass_protocol::frame::{self, EncodeError};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::link::{AttachReply, CommandSeq, KeeperCommand, LINK, Launch, ToKeeper};
use windlass_protocol::{Epoch, LinkSeq, TurnNo, parts};

/// What the number of an event tells the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next event: journal it.
    Next,
    /// The event arrived before: drop it.
    Again,
    /// Earlier events are missing: an earlier node had no disk space to journal them.
    Gap { missing: u64 },
}

/// A command's number among the commands of this node, from 1. Its number on the link ([`CommandSeq`])
/// continues after the last command of earlier nodes, which only the keeper knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalCommandSeq(u64);

/// A command that the keeper has not confirmed.
#[derive(Debug, Clone, PartialEq)]
struct UnseenCommand {
    seq: LocalCommandSeq,
    act: KeeperCommand,
    body: Bytes,
}

/// The node's half of the link: see the module documentation.
#[derive(Debug)]
pub struct NodeHalf {
    epoch: Epoch,
    /// The last event taken. The caller journals it before the next call.
    after: LinkSeq,
    /// Events from this one on are taken but not journaled, so the keeper must hold them.
    withheld: Option<LinkSeq>,
    /// The last acknowledgement that was sent to the keeper.
    acknowledged: LinkSeq,
    /// The last command of earlier nodes. `None` until the keeper answers the attach; no command is sent
    /// before that.
    before: Option<CommandSeq>,
    last: LocalCommandSeq,
    unseen: VecDeque<UnseenCommand>,
}

impl NodeHalf {
    /// `after` is the last event of the keeper in the journal.
    pub fn new(epoch: Epoch, after: LinkSeq) -> Self {
        Self {
            epoch,
            after,
            withheld: None,
            acknowledged: after,
            before: None,
            last: LocalCommandSeq(0),
            unseen: VecDeque::new(),
        }
    }

    pub fn after(&self) -> LinkSeq {
        self.after
    }

    /// Declares that events from `first` on are not in the journal yet. The keeper holds them until a call
    /// with `None`.
    pub fn withhold(&mut self, first: Option<LinkSeq>) {
        self.withheld = first;
    }

    /// The last event that may be acknowledged. It never goes back: the keeper has already released every
    /// event that was acknowledged.
    fn journaled(&self) -> LinkSeq {
        let safe = self.withheld.map_or(self.after, |first| LinkSeq(first.0.saturating_sub(1)));
        safe.min(self.after).max(self.acknowledged)
    }

    /// Appends the first message of a new connection. It fails for a launch that is too large.
    pub fn attach(
        &mut self,
        out: &mut Vec<u8>,
        launch: Option<Box<Launch>>,
    ) -> Result<(), EncodeError> {
        let after = self.journaled();
        parts::encode(out, &ToKeeper::Attach { link: LINK, epoch: self.epoch, after, launch })?;
        self.acknowledged = after;
        Ok(())
    }

    /// Takes the keeper's acceptance, and appends the commands that the keeper has not seen to `out`.
    pub fn attached(
        &mut self,
        attached: &AttachReply,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let before = *self.before.get_or_insert(attached.command);
        self.seen(attached.command);
        self.unseen
            .iter()
            .try_for_each(|unseen| encode_command(out, self.acknowledged, before, unseen))
    }

    /// Whether `turn` must be sent (again): the keeper never received it, and no unconfirmed command
    /// carries it.
    pub fn lacks(&self, attached: &AttachReply, turn: TurnNo) -> bool {
        let on_its_way = self.unseen.iter().any(
            |unseen| matches!(unseen.act, KeeperCommand::TurnStart { turn: sent, .. } if sent == turn),
        );
        attached.last_turn < turn && !on_its_way
    }

    /// Keeps a command until the keeper has seen it. Appends its frames to `out` if the keeper has answered
    /// the attach. A command that does not fit into a frame is an error and is not kept.
    pub fn command(
        &mut self,
        act: KeeperCommand,
        body: Bytes,
        out: &mut Vec<u8>,
    ) -> Result<LocalCommandSeq, EncodeError> {
        let seq = LocalCommandSeq(self.last.0 + 1);
        let unseen = UnseenCommand { seq, act, body };
        let after = self.journaled();
        match self.before {
            Some(before) => {
                encode_command(out, after, before, &unseen)?;
                self.acknowledged = after;
            }
            None => check_command(&unseen)?,
        }
        self.last = seq;
        self.unseen.push_back(unseen);
        Ok(seq)
    }

    /// The keeper has seen everything up to `command`.
    pub fn seen(&mut self, command: CommandSeq) {
        let Some(before) = self.before else { return };
        while self.unseen.front().is_some_and(|unseen| number(before, unseen.seq) <= command) {
            self.unseen.pop_front();
        }
    }

    pub fn is_seen(&self, seq: LocalCommandSeq) -> bool {
        self.unseen.front().is_none_or(|unseen| unseen.seq > seq)
    }

    /// Takes the number of an event that arrived. On [`Arrival::Next`] the caller journals the event before
    /// any other call.
    pub fn arrived(&mut self, link: LinkSeq) -> Arrival {
        if link <= self.after {
            return Arrival::Again;
        }
        let missing = link.0 - self.after.0 - 1;
        self.after = link;
        if missing == 0 { Arrival::Next } else { Arrival::Gap { missing } }
    }

    /// Appends an acknowledgement if the journal has events that the keeper still holds.
    pub fn acknowledge(&mut self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let after = self.journaled();
        if self.acknowledged < after {
            frame::encode(out, &ToKeeper::Ack { after }, &[])?;
            self.acknowledged = after;
        }
        Ok(())
    }
}

/// A command's number on the link. It saturates, because the keeper's count comes from another process and
/// may be the largest number.
fn number(before: CommandSeq, seq: LocalCommandSeq) -> CommandSeq {
    CommandSeq(before.0.saturating_add(seq.0))
}

fn encode_command(
    out: &mut Vec<u8>,
    after: LinkSeq,
    before: CommandSeq,
    unseen: &UnseenCommand,
) -> Result<(), EncodeError> {
    let command = number(before, unseen.seq);
    let start = out.len();
    let mut rest = unseen.body.as_ref();
    loop {
        let (chunk, later) = rest.split_at(rest.len().min(CHUNK_BYTES_MAX));
        let act = with_more(&unseen.act, !later.is_empty());
        let encoded = frame::encode(out, &ToKeeper::Command { command, after, act }, chunk);
        if encoded.is_err() {
            out.truncate(start);
        }
        if encoded.is_err() || later.is_empty() {
            return encoded;
        }
        rest = later;
    }
}

/// Checks that a command without a number yet fits into a frame with any number.
fn check_command(unseen: &UnseenCommand) -> Result<(), EncodeError> {
    let (command, after) = (CommandSeq(u64::MAX), LinkSeq(u64::MAX));
    let act = with_more(&unseen.act, false);
    let bytes = unseen.body.len().min(CHUNK_BYTES_MAX);
    frame::encode_head(&mut Vec::new(), &ToKeeper::Command { command, after, act }, bytes)
}

fn with_more(act: &KeeperCommand, more: bool) -> KeeperCommand {
    match act {
        KeeperCommand::TurnStart { turn, context, .. } => {
            KeeperCommand::TurnStart { turn: *turn, more, context: context.clone() }
        }
        KeeperCommand::TurnInput { turn, eof, keys, .. } => {
            KeeperCommand::TurnInput { turn: *turn, more, eof: *eof && !more, keys: *keys }
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::frame::Decoder;

    use super::*;

    /// The acknowledgement that each frame in `out` carries.
    fn acknowledged_by(out: &mut Vec<u8>) -> Vec<u64> {
        let mut decoder = Decoder::default();
        decoder.push(&std::mem::take(out));
        let mut acknowledged = Vec::new();
        while let Some(frame) = decoder.next_frame().expect("whole frames") {
            acknowledged.push(match serde_json::from_slice(&frame.header).expect("a message") {
                ToKeeper::Attach { after, .. }
                | ToKeeper::Ack { after }
                | ToKeeper::Command { after, .. } => after.0,
                ToKeeper::Prepare(_) | ToKeeper::Part { .. } => {
                    panic!("this node sends neither prepare nor part")
                }
            });
        }
        acknowledged
    }

    #[test]
    fn withheld_events_are_not_acknowledged_and_no_acknowledgement_goes_back() {
        let mut half = NodeHalf::new(Epoch(1), LinkSeq(0));
        let mut out = Vec::new();
        half.attach(&mut out, None).expect("it fits");
        for link in 1..=5 {
            assert_eq!(half.arrived(LinkSeq(link)), Arrival::Next);
        }
        half.withhold(Some(LinkSeq(4)));
        half.acknowledge(&mut out).expect("it fits");
        half.acknowledge(&mut out).expect("it fits");
        half.withhold(Some(LinkSeq(2)));
        half.acknowledge(&mut out).expect("it fits");
        half.attach(&mut out, None).expect("it fits");
        assert_eq!(acknowledged_by(&mut out), [0, 3, 3]);
        assert_eq!(half.arrived(LinkSeq(4)), Arrival::Again);
        half.withhold(None);
        half.acknowledge(&mut out).expect("it fits");
        assert_eq!(acknowledged_by(&mut out), [5]);
    }

    #[test]
    fn a_command_that_fits_no_frame_is_an_error_before_and_after_the_keeper_answers() {
        let fork = |bytes: usize| {
            KeeperCommand::Fork(Box::new(windlass_protocol::link::ForkOrder {
                session: windlass_protocol::SessionId::parse("t").expect("an id"),
                socket: "s".repeat(bytes).into(),
                room: "/r".into(),
                cgroups: Vec::new(),
            }))
        };
        let attached: AttachReply = serde_json::from_value(serde_json::json!({
            "link": LINK, "epoch": 1, "pid": 1, "last": 0, "command": u64::MAX - 1, "last_turn": 0,
            "restarts": 0, "hold": "subreaper",
        }))
        .expect("an answer");
        let mut half = NodeHalf::new(Epoch(1), LinkSeq(0));
        let mut out = Vec::new();
        assert!(half.command(fork(100_000), Bytes::new(), &mut out).is_err());
        let first = half.command(fork(100), Bytes::new(), &mut out).expect("it fits");
        half.attached(&attached, &mut out).expect("it fits");
        assert_eq!(acknowledged_by(&mut out).len(), 1);
        assert!(half.command(fork(100_000), Bytes::new(), &mut out).is_err());
        assert!(out.is_empty());
        let second = half.command(KeeperCommand::Restart, Bytes::new(), &mut out).expect("it fits");
        assert_eq!((first, second), (LocalCommandSeq(1), LocalCommandSeq(2)));
    }
}

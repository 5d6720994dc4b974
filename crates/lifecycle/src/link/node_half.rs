//! The node's half of the link: takes each event once, numbers commands, and sends again what the
//! keeper has not seen.

use std::collections::VecDeque;

use bytes::Bytes;
use windlass_protocol::frame::{self, EncodeError};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::link::{AttachReply, CommandSeq, KeeperCommand, LINK, Launch, ToKeeper};
use windlass_protocol::{Epoch, LinkSeq, TurnNo, parts};

/// What an event's number says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next one: journal it.
    Next,
    /// It came before: drop it.
    Again,
    /// Some before it are missing: a node before us had no room to journal them.
    Gap { missing: u64 },
}

/// A command's place among those that this node has given, from 1. On the link it is counted on
/// from the last command of the nodes before, which only the keeper knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalCommandSeq(u64);

/// A command the keeper has not confirmed.
#[derive(Debug, Clone, PartialEq)]
struct UnseenCommand {
    given: LocalCommandSeq,
    act: KeeperCommand,
    body: Bytes,
}

/// See the module's first lines.
#[derive(Debug)]
pub struct NodeHalf {
    epoch: Epoch,
    /// The last event taken in, which the caller has put into its journal before the next call.
    after: LinkSeq,
    /// From here on events are taken in and not journaled, so the keeper must hold them.
    withheld: Option<LinkSeq>,
    /// What the keeper was last told of `after`.
    told: LinkSeq,
    /// The last command of the nodes before; unknown until the keeper has answered, and nothing is
    /// sent until then.
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
            told: after,
            before: None,
            last: LocalCommandSeq(0),
            unseen: VecDeque::new(),
        }
    }

    pub fn after(&self) -> LinkSeq {
        self.after
    }

    /// Events from `first` on are not in the journal yet: the keeper holds them until this says
    /// `None`.
    pub fn withhold(&mut self, first: Option<LinkSeq>) {
        self.withheld = first;
    }

    /// What the keeper may be told to be in the journal. It never goes back: what was told once
    /// is no longer held.
    fn journaled(&self) -> LinkSeq {
        let safe = self.withheld.map_or(self.after, |first| LinkSeq(first.0.saturating_sub(1)));
        safe.min(self.after).max(self.told)
    }

    /// The first word on a new connection. It fails for a launch that is too large.
    pub fn attach(
        &mut self,
        out: &mut Vec<u8>,
        launch: Option<Box<Launch>>,
    ) -> Result<(), EncodeError> {
        let after = self.journaled();
        parts::encode(out, &ToKeeper::Attach { link: LINK, epoch: self.epoch, after, launch })?;
        self.told = after;
        Ok(())
    }

    /// The keeper accepted. Appends the commands that it has not seen to `out`.
    pub fn attached(
        &mut self,
        attached: &AttachReply,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let before = *self.before.get_or_insert(attached.command);
        self.seen(attached.command);
        self.unseen.iter().try_for_each(|unseen| encode_command(out, self.told, before, unseen))
    }

    /// Whether the keeper must be given `turn` (again): it never had it and none of the commands
    /// on their way brings it.
    pub fn lacks(&self, attached: &AttachReply, turn: TurnNo) -> bool {
        let on_its_way = self.unseen.iter().any(
            |unseen| matches!(unseen.act, KeeperCommand::TurnStart { turn: sent, .. } if sent == turn),
        );
        attached.last_turn < turn && !on_its_way
    }

    /// Keeps a command until it is seen, and appends its frames to `out` if the keeper has answered.
    /// One that does not fit a frame is not kept: it was never given.
    pub fn command(
        &mut self,
        act: KeeperCommand,
        body: Bytes,
        out: &mut Vec<u8>,
    ) -> Result<LocalCommandSeq, EncodeError> {
        let given = LocalCommandSeq(self.last.0 + 1);
        let unseen = UnseenCommand { given, act, body };
        let after = self.journaled();
        match self.before {
            Some(before) => {
                encode_command(out, after, before, &unseen)?;
                self.told = after;
            }
            None => check_command(&unseen)?,
        }
        self.last = given;
        self.unseen.push_back(unseen);
        Ok(given)
    }

    /// The keeper has seen everything up to `command`.
    pub fn seen(&mut self, command: CommandSeq) {
        let Some(before) = self.before else { return };
        while self.unseen.front().is_some_and(|unseen| number(before, unseen.given) <= command) {
            self.unseen.pop_front();
        }
    }

    pub fn is_seen(&self, given: LocalCommandSeq) -> bool {
        self.unseen.front().is_none_or(|unseen| unseen.given > given)
    }

    /// An event came. On [`Arrival::Next`] the caller journals it before anything else is asked.
    pub fn arrived(&mut self, link: LinkSeq) -> Arrival {
        if link <= self.after {
            return Arrival::Again;
        }
        let missing = link.0 - self.after.0 - 1;
        self.after = link;
        if missing == 0 { Arrival::Next } else { Arrival::Gap { missing } }
    }

    /// Appends an acknowledgement when the keeper does not know yet what is in the journal.
    pub fn acknowledge(&mut self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let after = self.journaled();
        if self.told < after {
            frame::encode(out, &ToKeeper::Ack { after }, &[])?;
            self.told = after;
        }
        Ok(())
    }
}

/// A command's number on the link. The keeper's own count is not trusted to leave room.
fn number(before: CommandSeq, given: LocalCommandSeq) -> CommandSeq {
    CommandSeq(before.0.saturating_add(given.0))
}

fn encode_command(
    out: &mut Vec<u8>,
    after: LinkSeq,
    before: CommandSeq,
    unseen: &UnseenCommand,
) -> Result<(), EncodeError> {
    let command = number(before, unseen.given);
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

/// Whether a command whose number is not known yet will fit, whatever its number is.
fn check_command(unseen: &UnseenCommand) -> Result<(), EncodeError> {
    let (command, after) = (CommandSeq(u64::MAX), LinkSeq(u64::MAX));
    let act = with_more(&unseen.act, false);
    let bytes = unseen.body.len().min(CHUNK_BYTES_MAX);
    frame::encode_head(&mut Vec::new(), &ToKeeper::Command { command, after, act }, bytes)
}

fn with_more(act: &KeeperCommand, more: bool) -> KeeperCommand {
    match act {
        KeeperCommand::TurnStart { turn, .. } => KeeperCommand::TurnStart { turn: *turn, more },
        KeeperCommand::TurnInput { turn, eof, .. } => {
            KeeperCommand::TurnInput { turn: *turn, more, eof: *eof && !more }
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::frame::Decoder;

    use super::*;

    /// What the keeper is told of the journal by each frame in `out`.
    fn told(out: &mut Vec<u8>) -> Vec<u64> {
        let mut decoder = Decoder::default();
        decoder.push(&std::mem::take(out));
        let mut told = Vec::new();
        while let Some(frame) = decoder.next_frame().expect("whole frames") {
            told.push(match serde_json::from_slice(&frame.header).expect("a message") {
                ToKeeper::Attach { after, .. }
                | ToKeeper::Ack { after }
                | ToKeeper::Command { after, .. } => after.0,
                ToKeeper::Prepare(_) | ToKeeper::Part { .. } => {
                    panic!("a node that has a session prepares none")
                }
            });
        }
        told
    }

    #[test]
    fn what_is_withheld_is_not_acknowledged_until_it_may_be_and_never_taken_back() {
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
        assert_eq!(told(&mut out), [0, 3, 3]);
        assert_eq!(half.arrived(LinkSeq(4)), Arrival::Again);
        half.withhold(None);
        half.acknowledge(&mut out).expect("it fits");
        assert_eq!(told(&mut out), [5]);
    }

    #[test]
    fn a_command_that_fits_no_frame_is_never_given_before_and_after_the_keeper_answered() {
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
        assert_eq!(told(&mut out).len(), 1);
        assert!(half.command(fork(100_000), Bytes::new(), &mut out).is_err());
        assert!(out.is_empty());
        let second = half.command(KeeperCommand::Restart, Bytes::new(), &mut out).expect("it fits");
        assert_eq!((first, second), (LocalCommandSeq(1), LocalCommandSeq(2)));
    }
}

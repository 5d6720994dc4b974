//! The owner's view of its keeper: the link, replies that wait until the keeper has seen a command, and the
//! time that the keeper has to answer.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_lifecycle::link::LocalCommandSeq;
use windlass_protocol::TurnNo;
use windlass_protocol::link::{AttachReply, KeeperCommand};

use super::keeper_link::KeeperLink;
use super::turns::Snapshot;
use super::{LATE, ReplySender};

#[derive(Debug)]
pub(super) struct KeeperSide {
    pub link: KeeperLink,
    /// The keeper's answer to the attach, until the node has taken in the events that the keeper held.
    pub attached: Option<AttachReply>,
    /// The interpreter whose zygote the session's workers are forked from.
    pub zygote_of: Option<PathBuf>,
    /// Whether the keeper passes on the context of a turn. `None` until it has answered the attach.
    pub takes_context: Option<bool>,
    confirmations: Vec<Confirmation>,
    patience: Duration,
    /// By then the keeper must have answered the attach, or started a worker.
    answer_by: Option<Instant>,
    /// By then the keeper must have seen the commands that replies wait for.
    confirm_by: Option<Instant>,
    /// The keeper got its time again because this node was stopped, and has sent nothing since.
    patience_again: bool,
    /// Why a command could not be sent.
    failure: Option<String>,
}

/// A reply that waits until the keeper has seen `command`.
#[derive(Debug)]
pub(super) struct Confirmation {
    command: LocalCommandSeq,
    pub turn: TurnNo,
    pub reply: ReplySender<Snapshot>,
}

impl KeeperSide {
    pub fn new(link: KeeperLink, zygote_of: Option<PathBuf>, patience: Duration) -> Self {
        Self {
            link,
            attached: None,
            zygote_of,
            takes_context: None,
            confirmations: Vec::new(),
            patience,
            answer_by: None,
            confirm_by: None,
            patience_again: false,
            failure: None,
        }
    }

    /// Sends a command. If that fails, the keeper cannot be used any more: [`Self::take_failure`] has the
    /// reason.
    pub fn command(&mut self, act: KeeperCommand, body: Bytes) -> Option<LocalCommandSeq> {
        match self.link.command(act, body) {
            Ok(given) => Some(given),
            Err(error) => {
                self.failure = Some(format!("a command cannot be sent to the keeper: {error}"));
                None
            }
        }
    }

    /// Why the keeper must be ended, if it must.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Writes as much as the socket takes. A closed link is noticed by the next read.
    pub fn flush(&mut self) {
        let _ = self.link.flush();
    }

    /// The keeper must answer within `patience` from now.
    pub fn expect_answer(&mut self) {
        self.answer_by = Some(Instant::now() + self.patience);
    }

    pub fn has_answered(&mut self) {
        self.answer_by = None;
    }

    /// The keeper has sent something.
    pub fn has_sent(&mut self) {
        self.patience_again = false;
    }

    /// Whether an earlier node gave the keeper this turn without a record in the journal: the disk was full
    /// when the turn before it ended. The events that the keeper held tell the turn's outcome. The turn
    /// must not be given again.
    pub fn was_given(&self, turn: TurnNo) -> bool {
        self.attached.as_ref().is_some_and(|attached| turn <= attached.last_turn)
    }

    /// Keeps a reply until the keeper has seen the command.
    pub fn confirm_later(
        &mut self,
        command: LocalCommandSeq,
        turn: TurnNo,
        reply: ReplySender<Snapshot>,
    ) {
        let patience = self.patience;
        self.confirm_by.get_or_insert_with(|| Instant::now() + patience);
        self.confirmations.push(Confirmation { command, turn, reply });
    }

    /// The replies whose commands the keeper has seen.
    pub fn take_confirmed(&mut self) -> Vec<Confirmation> {
        let half = &self.link.half;
        let seen = self.confirmations.extract_if(.., |waiting| half.is_seen(waiting.command));
        let confirmed: Vec<Confirmation> = seen.collect();
        if !confirmed.is_empty() {
            let left = !self.confirmations.is_empty();
            self.confirm_by = left.then(|| Instant::now() + self.patience);
        }
        confirmed
    }

    /// All replies that wait until the keeper has seen a command.
    pub fn take_confirmations(&mut self) -> Vec<Confirmation> {
        std::mem::take(&mut self.confirmations)
    }

    /// When the keeper is taken as lost, unless it answers before.
    pub fn due(&self) -> Option<Instant> {
        self.answer_by.into_iter().chain(self.confirm_by).min()
    }

    /// Whether the keeper has not answered in time. If this node itself was stopped, the keeper gets its
    /// time again, once.
    pub fn patience_passed(&mut self, now: Instant) -> bool {
        let Some(at) = self.due().filter(|at| *at <= now) else { return false };
        if now > at + LATE && !std::mem::replace(&mut self.patience_again, true) {
            let again = Some(now + self.patience);
            self.answer_by = self.answer_by.and(again);
            self.confirm_by = self.confirm_by.and(again);
            return false;
        }
        self.answer_by = None;
        self.confirm_by = None;
        self.patience_again = false;
        true
    }
}

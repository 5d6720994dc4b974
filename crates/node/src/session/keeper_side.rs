//! The keeper as a session's owner knows it: the link, commands that wait to be seen, and how long the
//! keeper may take.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_lifecycle::link::LocalCommandSeq;
use windlass_protocol::TurnNo;
use windlass_protocol::link::{AttachReply, KeeperCommand};

use super::keeper_link::KeeperLink;
use super::turns::Snapshot;
use super::{LATE, Reply};

#[derive(Debug)]
pub(super) struct KeeperSide {
    pub link: KeeperLink,
    /// The keeper's word when it was attached to, until its held events are taken in.
    pub attached: Option<AttachReply>,
    /// The interpreter whose zygote the session's workers are forked from.
    pub zygote_of: Option<PathBuf>,
    confirmations: Vec<Confirmation>,
    patience: Duration,
    /// The keeper must have brought up a worker, or answered, by then.
    answer_by: Option<Instant>,
    /// The keeper must have seen the commands that replies wait for by then.
    confirm_by: Option<Instant>,
    /// The keeper's time was given again because this node did not run, and nothing was heard since.
    patience_again: bool,
    /// Why the keeper cannot be told what to do.
    failure: Option<String>,
}

/// A reply that waits until the keeper has seen `command`.
#[derive(Debug)]
pub(super) struct Confirmation {
    command: LocalCommandSeq,
    pub turn: TurnNo,
    pub reply: Reply<Snapshot>,
}

impl KeeperSide {
    pub fn new(link: KeeperLink, zygote_of: Option<PathBuf>, patience: Duration) -> Self {
        Self {
            link,
            attached: None,
            zygote_of,
            confirmations: Vec::new(),
            patience,
            answer_by: None,
            confirm_by: None,
            patience_again: false,
            failure: None,
        }
    }

    /// Has the keeper do something. A keeper that cannot be told is of no use:
    /// [`Self::take_failure`] says so.
    pub fn command(&mut self, act: KeeperCommand, body: Bytes) -> Option<LocalCommandSeq> {
        match self.link.command(act, body) {
            Ok(given) => Some(given),
            Err(error) => {
                self.failure = Some(format!("it cannot be told what to do: {error}"));
                None
            }
        }
    }

    /// Why the keeper is to be given up, where it is.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Writes as much as there is room for. A closed link shows when it is read.
    pub fn flush(&mut self) {
        let _ = self.link.flush();
    }

    /// The keeper must answer within its patience.
    pub fn expect_answer(&mut self) {
        self.answer_by = Some(Instant::now() + self.patience);
    }

    pub fn has_answered(&mut self) {
        self.answer_by = None;
    }

    /// Something came from the keeper.
    pub fn is_heard(&mut self) {
        self.patience_again = false;
    }

    /// Whether an earlier node gave the keeper this turn, although the journal does not tell: the disk was
    /// full when the turn before it ended. What became of the turn is among the events that the keeper
    /// held; it must not be given again.
    pub fn was_given(&self, turn: TurnNo) -> bool {
        self.attached.as_ref().is_some_and(|attached| turn <= attached.last_turn)
    }

    /// Answers once the keeper has seen the command.
    pub fn confirm_later(
        &mut self,
        command: LocalCommandSeq,
        turn: TurnNo,
        reply: Reply<Snapshot>,
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

    /// All replies that wait for the keeper to have seen a command.
    pub fn take_confirmations(&mut self) -> Vec<Confirmation> {
        std::mem::take(&mut self.confirmations)
    }

    /// When the keeper is given up unless it has answered.
    pub fn due(&self) -> Option<Instant> {
        self.answer_by.into_iter().chain(self.confirm_by).min()
    }

    /// Whether the keeper has not answered in time, although this node ran all the time.
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

//! From decisions to deeds: each effect of the lifecycle becomes a record for the journal and an
//! act to perform after it is written.

use bytes::Bytes;
use windlass_lifecycle::session::Loss;
use windlass_lifecycle::{SessionEffect, SessionEvent};
use windlass_protocol::event::{EndReason, EventKind, StopCause, TurnError, Usage};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::link::KeeperCommand;
use windlass_protocol::{ErrorCode, LinkSeq, Outcome, TurnNo};

use super::actor::Actor;
use super::receipts::WorkspaceFate;
use super::requests::answer;
use super::round::Act;
use super::turns::{End, Extent};
use super::{limits, receipts};
use crate::failure::{Failure, remedy};

impl Actor {
    /// Plans what `effect` asks for. `reported` is what the keeper said of the turn that it is about.
    pub(super) fn plan(&mut self, effect: SessionEffect, reported: &mut Option<Reported>) {
        match effect {
            SessionEffect::Accept { turn } => self.record_accepted(turn),
            SessionEffect::Start { turn } if self.keeper.was_given(turn) => self.goes_on(turn),
            SessionEffect::Start { turn } => {
                self.queue.limits.turn_starts();
                self.round.acts.push(Act::Start { turn });
            }
            SessionEffect::Interrupt { turn, cause } => self.plan_interrupt(turn, cause),
            SessionEffect::InterruptAgain { turn } => self.round.acts.push(Act::Interrupt { turn }),
            SessionEffect::Finish { turn, outcome, code, loss } => {
                let of_turn = reported.take_if(|reported| reported.turn == turn);
                self.finish(turn, outcome, code, loss, of_turn);
            }
            SessionEffect::Hold => {
                if !self.fork.grant(self.journal.facts()) {
                    self.apply(SessionEvent::HoldReleased);
                }
            }
            SessionEffect::RefuseHold { code } => {
                let message = format!("session {} is not idle", self.id);
                self.fork.refuse(Failure::new(code, message));
            }
            // The keeper may have been told by an earlier node. `caught_up` tells it what it was not.
            SessionEffect::RestartWorker if self.keeper.attached.is_some() => {}
            SessionEffect::RestartWorker => {
                self.round.acts.push(Act::Restart);
                self.keeper.expect_answer();
            }
            SessionEffect::StopKeeper => self.round.acts.push(Act::StopKeeper),
            SessionEffect::End { reason } => self.record_end(reason),
            // Those who asked are told where the request is served.
            SessionEffect::Refuse { .. }
            | SessionEffect::RefuseInterrupt { .. }
            | SessionEffect::RefuseInput { .. }
            | SessionEffect::GiveInput { .. } => {}
        }
    }

    /// Goes on with a turn that the keeper was given by an earlier node.
    fn goes_on(&mut self, turn: TurnNo) {
        if let Some(given) = self.queue.turns.get_mut(turn) {
            given.code = Bytes::new();
        }
        if let Some(attached) = &self.keeper.attached {
            self.queue.rearm(attached, self.machine.current());
        }
    }

    fn record_accepted(&mut self, turn: TurnNo) {
        let Some(accepted) = self.queue.turns.get(turn) else { return };
        let (id, deadline_ms) = (accepted.id.clone(), accepted.deadline_ms);
        let mut rest = accepted.code.clone();
        loop {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            let more = !rest.is_empty();
            let kind = EventKind::TurnAccepted { id: id.clone(), deadline_ms, more };
            self.round.record(Some(turn), kind, chunk);
            if !more {
                return;
            }
        }
    }

    fn plan_interrupt(&mut self, turn: TurnNo, cause: StopCause) {
        self.round.record(Some(turn), EventKind::InterruptAsked { cause }, Bytes::new());
        self.queue.interrupted(turn);
        self.round.acts.push(Act::Interrupt { turn });
    }

    /// Records how a turn ended. `reported` is what the keeper said of it, when it did.
    fn finish(
        &mut self,
        turn: TurnNo,
        outcome: Outcome,
        code: Option<ErrorCode>,
        loss: Loss,
        reported: Option<Reported>,
    ) {
        self.queue.disarm(turn);
        self.life.idle.used();
        self.calls.turn_over(turn, outcome, &self.context, &mut self.round);
        let extent = self.extent_of(turn);
        let Some(ended) = self.queue.turns.get_mut(turn) else { return };
        let (code, outcome) = match (self.journal.take_cut(turn), outcome) {
            (true, Outcome::Lost) | (false, _) => (code, outcome),
            (true, _) => (Some(ErrorCode::DiskFull), Outcome::Error),
        };
        let reported = reported.unwrap_or_default();
        let usage =
            Usage { output_bytes: ended.output.bytes, ..reported.usage.unwrap_or_default() };
        let error = match code {
            Some(code) => {
                let error = self.queue.limits.explain(code);
                let error = error.unwrap_or_else(|| explain(code, reported.error));
                Some(self.queue.deadlines.name_in(error, ended.deadline_ms, outcome))
            }
            None => reported.error,
        };
        let receipt = match loss {
            Loss::None if outcome == Outcome::TimedOut => Some(receipts::state_kept(&self.id)),
            Loss::None if outcome == Outcome::Lost => Some(receipts::never_run(&self.id)),
            Loss::None => None,
            Loss::State => Some(receipts::state_lost(&self.id)),
        };
        ended.stdin_wait = None;
        ended.extent = extent;
        ended.code = Bytes::new();
        let end = End { outcome, error, usage, receipt };
        ended.end = Some(end.clone());
        let kind = EventKind::TurnEnded { outcome, error: end.error, usage, receipt: end.receipt };
        self.round.record_heard(reported.link, Some(turn), kind, Bytes::new());
        self.queue.turns.ended(turn);
        self.context.metrics.turn_ended(outcome, usage.wall_ms);
        self.round.acts.push(Act::Settle { turn });
    }

    /// Where a turn's output will lie once this round is written, counted as the journal counts it.
    fn extent_of(&self, turn: TurnNo) -> Extent {
        let facts = self.journal.facts();
        let mut extent = facts.open_turn(turn).map(Extent::of).unwrap_or_default();
        let mut end = facts.output_bytes;
        for record in &self.round.records {
            let EventKind::Output { background, .. } = record.kind else { continue };
            let bytes = record.body.len() as u64;
            if !background && record.turn == Some(turn) {
                extent.extend(end, bytes);
            }
            end += bytes;
        }
        extent
    }

    fn record_end(&mut self, reason: EndReason) {
        let original = self.view.info().forked_from.clone();
        let made_at_ms = self.journal.facts().created.created_at_ms;
        let workspace = WorkspaceFate::of(&self.context.journal, original, made_at_ms, reason);
        let receipt = receipts::session_ended(&self.id, reason, workspace);
        let message = (reason == EndReason::Idle).then(|| self.life.idle.in_words());
        self.round.record(None, EventKind::SessionEnded { reason, message, receipt }, Bytes::new());
    }

    pub(super) fn perform(&mut self, act: Act) {
        match act {
            Act::Start { turn } => {
                if let Some(code) = self.queue.start(turn) {
                    self.keeper.command(KeeperCommand::TurnStart { turn, more: false }, code);
                }
            }
            Act::Interrupt { turn } => {
                self.keeper.command(KeeperCommand::Interrupt { turn }, Bytes::new());
            }
            Act::Input { turn, bytes, eof, reply } => {
                match self
                    .keeper
                    .command(KeeperCommand::TurnInput { turn, more: false, eof }, bytes)
                {
                    Some(command) => self.keeper.confirm_later(command, turn, reply),
                    None => {
                        let message = "the keeper cannot be told";
                        answer(reply, Err(Failure::new(ErrorCode::KeeperLost, message)));
                    }
                }
            }
            Act::Restart => {
                let zygote = self.keeper.zygote_of.as_deref();
                let zygote =
                    zygote.and_then(|of| self.context.host.provision.zygote_connection(of));
                self.keeper.link.pass(zygote);
                self.keeper.command(KeeperCommand::Restart, Bytes::new());
            }
            Act::StopKeeper => {
                let grace_ms = self.life.closing_grace_ms();
                self.keeper.command(KeeperCommand::Shutdown { grace_ms }, Bytes::new());
            }
            Act::PassCall(part) => {
                let within = self.queue.turns.get(part.turn).and_then(|turn| turn.within.clone());
                self.calls.pass(part, within, &self.context, &mut self.round);
            }
            Act::AnswerCall { turn, call, answer } => {
                self.calls.send_answer(turn, call, answer, &mut self.keeper);
            }
            Act::Settle { turn } => {
                for reply in self.queue.take_waiters(turn) {
                    answer(reply, self.snapshot(turn));
                }
            }
        }
    }

    /// Has the keeper remember that a turn fails.
    pub(super) fn tell_failed(&mut self, turn: TurnNo) {
        self.keeper.command(KeeperCommand::TurnFailed { turn }, Bytes::new());
    }
}

/// What a keeper reported of a turn's end.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub turn: TurnNo,
    pub link: Option<LinkSeq>,
    pub error: Option<TurnError>,
    pub usage: Option<Usage>,
}

/// The error of a turn that Windlass ended: its name, and what the code itself said, if anything.
pub(super) fn explain(code: ErrorCode, said: Option<TurnError>) -> TurnError {
    if let Some(limit) = limits::limit_of(code) {
        return limits::reached(limit, code, "");
    }
    let message = match said {
        Some(said) => {
            format!("{}; the code ended with {}: {}", remedy(code), said.name, said.message)
        }
        None => remedy(code).to_owned(),
    };
    TurnError { code: Some(code), name: code.as_str().to_owned(), message }
}

impl Failure {
    pub(super) fn of(code: ErrorCode, subject: &str) -> Self {
        let what = match code {
            ErrorCode::Overloaded => "has as many waiting turns as it may have",
            ErrorCode::SessionEnded => "has ended",
            ErrorCode::SessionBusy => "is not idle",
            ErrorCode::TurnNotRunning => "is not running that turn",
            _ => "refused the request",
        };
        Self::new(code, format!("session {subject} {what}"))
    }
}

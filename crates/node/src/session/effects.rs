//! From decisions to deeds: each effect of the lifecycle becomes a record for the journal and an
//! act to perform after it is written.

use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_journal::NewEvent;
use windlass_lifecycle::Effect;
use windlass_lifecycle::link::Given;
use windlass_lifecycle::session::Loss;
use windlass_protocol::event::{EndReason, EventKind, StopCause, TurnError, Usage};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::link::Command;
use windlass_protocol::{CallNo, ErrorCode, LinkSeq, Outcome, TurnNo};

use super::actor::{Actor, Closing};
use super::calls::{Answer, CallPart};
use super::requests::answer;
use super::turns::{End, Extent};
use super::{limits, receipts};
use crate::clock::now_ms;
use crate::failure::{Failure, remedy};

/// Something to do once this round's records are in the journal.
#[derive(Debug)]
pub(super) enum Act {
    Start {
        turn: TurnNo,
    },
    Interrupt {
        turn: TurnNo,
    },
    Input {
        turn: TurnNo,
        bytes: Bytes,
        eof: bool,
        reply: super::Reply<super::turns::Snapshot>,
    },
    Restart,
    StopKeeper,
    /// Pass a part of a host tool call on.
    PassCall(CallPart),
    /// Give the keeper an answer to a call, or a part of one.
    AnswerCall {
        turn: TurnNo,
        call: CallNo,
        answer: Answer,
    },
    /// Answer those who wait for this turn.
    Settle {
        turn: TurnNo,
    },
}

impl Actor {
    /// Plans what `effect` asks for. `Refuse` and its like are answered where the request is
    /// served, since only there is somebody to answer.
    pub(super) fn plan(&mut self, effect: Effect) {
        match effect {
            Effect::Accept { turn } => self.record_accepted(turn),
            Effect::Start { turn } if self.keeper_was_given(turn) => self.goes_on(turn),
            Effect::Start { turn } => {
                self.limits.turn_starts();
                self.acts.push(Act::Start { turn });
            }
            Effect::Interrupt { turn, cause } => self.plan_interrupt(turn, cause),
            Effect::InterruptAgain { turn } => self.acts.push(Act::Interrupt { turn }),
            Effect::Finish { turn, outcome, code, loss } => {
                self.finish(turn, outcome, code, loss, None);
            }
            // The keeper may have been told by an earlier node. `caught_up` tells it what it was not.
            Effect::RestartWorker if self.attached.is_some() => {}
            Effect::RestartWorker => {
                self.acts.push(Act::Restart);
                self.expect_keeper();
            }
            Effect::StopKeeper => self.acts.push(Act::StopKeeper),
            Effect::End { reason } => self.record_end(reason),
            Effect::Refuse { .. }
            | Effect::RefuseInterrupt { .. }
            | Effect::RefuseInput { .. }
            | Effect::GiveInput { .. } => {}
        }
    }

    pub(super) fn record(&mut self, turn: Option<TurnNo>, kind: EventKind, body: Bytes) {
        self.records.push(NewEvent { at_ms: now_ms(), turn, link: None, kind, body });
    }

    fn record_accepted(&mut self, turn: TurnNo) {
        let Some(accepted) = self.turns.get(turn) else { return };
        let (id, deadline_ms) = (accepted.id.clone(), accepted.deadline_ms);
        let mut rest = accepted.code.clone();
        loop {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            let more = !rest.is_empty();
            let kind = EventKind::TurnAccepted { id: id.clone(), deadline_ms, more };
            self.record(Some(turn), kind, chunk);
            if !more {
                return;
            }
        }
    }

    fn plan_interrupt(&mut self, turn: TurnNo, cause: StopCause) {
        self.record(Some(turn), EventKind::InterruptAsked { cause }, Bytes::new());
        let grace = Duration::from_millis(self.interrupt_grace_ms);
        self.timers.grace = Some((turn, Instant::now() + grace));
        self.timers.deadline = None;
        self.acts.push(Act::Interrupt { turn });
    }

    /// Records how a turn ended. `reported` is what the keeper said of it, when it did.
    pub(super) fn finish(
        &mut self,
        turn: TurnNo,
        outcome: Outcome,
        code: Option<ErrorCode>,
        loss: Loss,
        reported: Option<Reported>,
    ) {
        self.timers.disarm(turn);
        self.idle.used();
        self.drop_calls(turn, outcome);
        let extent = self.extent_of(turn);
        let Some(ended) = self.turns.get_mut(turn) else { return };
        let (code, outcome) = match (ended.disk_full, outcome) {
            (true, Outcome::Lost) | (false, _) => (code, outcome),
            (true, _) => (Some(ErrorCode::DiskFull), Outcome::Error),
        };
        let reported = reported.unwrap_or_default();
        let usage =
            Usage { output_bytes: ended.output.bytes, ..reported.usage.unwrap_or_default() };
        let error = match code {
            Some(code) => {
                let error = self.limits.explain(code);
                let error = error.unwrap_or_else(|| explain(code, reported.error));
                Some(self.deadlines.name_in(error, ended.deadline_ms, outcome))
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
        let record = NewEvent {
            at_ms: now_ms(),
            turn: Some(turn),
            link: reported.link,
            kind,
            body: Bytes::new(),
        };
        self.records.push(record);
        self.turns.ended(turn);
        self.context.metrics.turn_ended(outcome, usage.wall_ms);
        self.acts.push(Act::Settle { turn });
    }

    /// Where a turn's output will lie once this round is written, counted as the journal counts it.
    fn extent_of(&self, turn: TurnNo) -> Extent {
        let facts = self.log.facts();
        let mut extent = facts.open_turn(turn).map(Extent::of).unwrap_or_default();
        let mut end = facts.output_bytes;
        for record in &self.records {
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
        let workspace = self.workspace_fate(reason);
        let receipt = receipts::session_ended(&self.id, reason, workspace);
        let message = (reason == EndReason::Idle).then(|| self.idle.in_words());
        self.record(None, EventKind::SessionEnded { reason, message, receipt }, Bytes::new());
    }

    /// The keeper must answer within its patience.
    pub(super) fn expect_keeper(&mut self) {
        self.timers.keeper = Some(Instant::now() + self.context.config.keeper_patience);
    }

    /// Writes this round's records, then does what they allow.
    pub(super) fn commit(&mut self) {
        self.write_records();
        while !self.acts.is_empty() {
            for act in std::mem::take(&mut self.acts) {
                self.perform(act);
            }
            // A call that could not be passed on has ended with a record of its own.
            self.write_records();
        }
        if self.owed.is_empty() {
            self.turns.let_go_of_recorded();
        }
        self.publish();
        // A closed link shows when it is read.
        let _ = self.link.flush();
    }

    fn perform(&mut self, act: Act) {
        match act {
            Act::Start { turn } => self.start(turn),
            Act::Interrupt { turn } => {
                self.command(Command::Interrupt { turn }, Bytes::new());
            }
            Act::Input { turn, bytes, eof, reply } => {
                let input = Command::TurnInput { turn, more: false, eof };
                let Some(command) = self.command(input, bytes) else {
                    let lost = Failure::new(ErrorCode::KeeperLost, "the keeper cannot be told");
                    return answer(reply, Err(lost));
                };
                let patience = self.context.config.keeper_patience;
                self.timers.confirmation.get_or_insert_with(|| Instant::now() + patience);
                self.confirmations.push(super::actor::Confirmation { command, turn, reply });
            }
            Act::Restart => {
                let zygote = self.zygote_of.as_deref();
                self.link.pass(zygote.and_then(|of| self.context.provision.zygote_connection(of)));
                self.command(Command::Restart, Bytes::new());
            }
            Act::StopKeeper => {
                let grace_ms =
                    self.closing.as_ref().map_or(0, |closing: &Closing| closing.grace_ms);
                self.command(Command::Shutdown { grace_ms }, Bytes::new());
            }
            Act::PassCall(part) => self.pass_call(part),
            Act::AnswerCall { turn, call, answer } => self.send_answer(turn, call, answer),
            Act::Settle { turn } => self.settle(turn),
        }
    }

    fn start(&mut self, turn: TurnNo) {
        let Some(starting) = self.turns.get_mut(turn) else { return };
        let code = std::mem::take(&mut starting.code);
        if let Some(deadline) = self.deadlines.of(starting.deadline_ms) {
            self.timers.deadline = Some((turn, Instant::now() + deadline));
        }
        self.command(Command::TurnStart { turn, more: false }, code);
    }

    /// Has the keeper do something. A keeper that cannot be told is of no use: it is ended.
    pub(super) fn command(&mut self, act: Command, body: Bytes) -> Option<Given> {
        match self.link.command(act, body) {
            Ok(given) => Some(given),
            Err(error) => {
                self.lose_keeper(&format!("it cannot be told what to do: {error}"));
                None
            }
        }
    }

    /// Answers everybody who waits for this turn, as it is now.
    pub(super) fn settle(&mut self, turn: TurnNo) {
        let mut place = 0;
        while place < self.waiters.len() {
            if self.waiters[place].turn == turn {
                let waiter = self.waiters.swap_remove(place);
                // Whoever asked may have gone.
                let _ = waiter.reply.send(self.snapshot(turn));
            } else {
                place += 1;
            }
        }
    }
}

/// What a keeper reported of a turn's end.
#[derive(Debug, Default)]
pub(super) struct Reported {
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
            ErrorCode::TurnNotRunning => "is not running that turn",
            _ => "refused the request",
        };
        Self::new(code, format!("session {subject} {what}"))
    }
}

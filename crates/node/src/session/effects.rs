//! Turns each effect of the lifecycle into a record for the journal and an act. Acts are performed after
//! the records are written.

use bytes::Bytes;
use windlass_lifecycle::session::Loss;
use windlass_lifecycle::{SessionEffect, SessionEvent};
use windlass_protocol::api::TurnState;
use windlass_protocol::event::{EndReason, EventKind, StopCause, TurnError, Usage};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::link::KeeperCommand;
use windlass_protocol::turn::TurnContext;
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{ErrorCode, Outcome, TurnNo};

use super::actor::Actor;
use super::calls::CallPart;
use super::receipts::WorkspaceFate;
use super::refusals::RefusalQuestion;
use super::round::{SessionAct, TurnEndReport};
use super::trace::TRACEPARENT;
use super::turns::{OutputExtent, TurnEnd, TurnRequest};
use super::{InputRequest, answer, limits, receipts};
use crate::failure::Failure;

/// Why a session ended, for people.
const FENCED: &str =
    "the node has lost its lease in the fleet, so another node may use the session's name";

/// The keeper decides it (`windlass_keeper`, `watch::disk`).
const FAR_OVER_DISK: &str =
    "the workspace of a tenant's session grew over twice the disk limit and 64 MiB";

impl Actor {
    /// Plans one effect. `reported` is the keeper's report of the turn that the effect is about.
    pub(super) fn plan(&mut self, effect: SessionEffect, reported: &mut Option<TurnEndReport>) {
        match effect {
            SessionEffect::Accept { turn } => self.record_accepted(turn),
            SessionEffect::Start { turn } if self.keeper.was_given(turn) => self.resume_turn(turn),
            SessionEffect::Start { turn } => {
                self.queue.limits.turn_starts();
                self.queue.refusals.turn_starts(turn);
                self.round.acts.push(SessionAct::Start { turn });
            }
            SessionEffect::Interrupt { turn, cause } => self.plan_interrupt(turn, cause),
            SessionEffect::InterruptAgain { turn } => {
                self.round.acts.push(SessionAct::Interrupt { turn })
            }
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
            // An earlier node may have sent the keeper this command. `caught_up` sends it if not.
            SessionEffect::RestartWorker if self.keeper.attached.is_some() => {}
            SessionEffect::RestartWorker => {
                self.round.acts.push(SessionAct::Restart);
                self.keeper.expect_answer();
            }
            SessionEffect::StopKeeper => self.round.acts.push(SessionAct::StopKeeper),
            SessionEffect::End { reason } => self.record_end(reason),
            // The code that serves the request sends the refusal (see `EventVerdict`).
            SessionEffect::Refuse { .. }
            | SessionEffect::RefuseInterrupt { .. }
            | SessionEffect::RefuseInput { .. }
            | SessionEffect::GiveInput { .. } => {}
        }
    }

    /// Continues a turn that an earlier node gave to the keeper.
    fn resume_turn(&mut self, turn: TurnNo) {
        if let Some(given) = self.queue.turns.get_mut(turn) {
            given.request = TurnRequest::default();
        }
        if let Some(attached) = &self.keeper.attached {
            self.queue.rearm(attached, self.machine.current());
        }
    }

    fn record_accepted(&mut self, turn: TurnNo) {
        let Some(accepted) = self.queue.turns.get(turn) else { return };
        let (id, deadline_ms) = (accepted.id.clone(), accepted.deadline_ms);
        let mut context = accepted.request.context.clone();
        let mut rest = accepted.request.code.clone();
        loop {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            let more = !rest.is_empty();
            let (id, context) = (id.clone(), context.take());
            let kind = EventKind::TurnAccepted { id, deadline_ms, more, context };
            self.round.record(Some(turn), kind, chunk);
            if !more {
                return;
            }
        }
    }

    fn plan_interrupt(&mut self, turn: TurnNo, cause: StopCause) {
        self.round.record(Some(turn), EventKind::InterruptAsked { cause }, Bytes::new());
        self.queue.interrupted(turn);
        self.round.acts.push(SessionAct::Interrupt { turn });
    }

    /// Records how a turn ended. `reported` is the keeper's report, if there is one.
    fn finish(
        &mut self,
        turn: TurnNo,
        outcome: Outcome,
        code: Option<ErrorCode>,
        loss: Loss,
        reported: Option<TurnEndReport>,
    ) {
        self.queue.disarm(turn);
        self.life.idle.used();
        self.calls.turn_over(turn, outcome, &self.context, &mut self.round);
        self.context.host.agents.release(&self.id, turn, &self.context.sessions);
        let extent = self.extent_of(turn);
        let Some(ended) = self.queue.turns.get_mut(turn) else { return };
        let (code, outcome) = match (self.journal.take_cut(turn), outcome) {
            (true, Outcome::Lost) | (false, _) => (code, outcome),
            (true, _) => (Some(ErrorCode::DiskFull), Outcome::Error),
        };
        let reported = reported.unwrap_or_default();
        let value = reported.value.filter(|_| outcome == Outcome::Ok);
        let exit_code = reported.exit_code.or_else(|| self.queue.limits.exit_code(code));
        let usage =
            Usage { output_bytes: ended.output.bytes, ..reported.usage.unwrap_or_default() };
        let error = match code {
            Some(code) => {
                let error = self.queue.limits.explain(code);
                let error = error.unwrap_or_else(|| limits::explain(code, reported.error));
                Some(self.queue.deadlines.name_in(error, ended.deadline_ms, outcome))
            }
            None => reported.error,
        };
        let refusal = self.queue.refusals.explain(RefusalQuestion {
            turn,
            outcome,
            error: error.as_ref(),
            limit: self.queue.limits.reached(),
            output: &ended.output,
            view: &self.view,
        });
        let receipt = match loss {
            Loss::None if outcome == Outcome::TimedOut => Some(receipts::state_kept(&self.id)),
            Loss::None if outcome == Outcome::Lost => Some(receipts::never_run(&self.id)),
            Loss::None => None,
            Loss::State => Some(receipts::state_lost(&self.id)),
        };
        ended.stdin_wait = None;
        ended.extent = extent;
        ended.request = TurnRequest::default();
        let end = TurnEnd { outcome, error, usage, receipt, refusal, exit_code, value };
        ended.end = Some(end.clone());
        let kind = end.into_event();
        self.round.record_from_keeper(reported.link, Some(turn), kind, Bytes::new());
        self.queue.turns.ended(turn);
        let kind = &self.journal.facts().created.worker_kind;
        self.context.count_turn(&self.id, kind, outcome, &usage);
        self.round.acts.push(SessionAct::Settle { turn });
    }

    /// The range of a turn's output in the session's output after this round is written, counted as the
    /// journal counts it.
    fn extent_of(&self, turn: TurnNo) -> OutputExtent {
        let facts = self.journal.facts();
        let mut extent = facts.open_turn(turn).map(OutputExtent::of).unwrap_or_default();
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
        let message = match reason {
            EndReason::Idle => Some(self.life.idle.in_words()),
            EndReason::Fenced => Some(FENCED.to_owned()),
            EndReason::Disk => Some(FAR_OVER_DISK.to_owned()),
            _ => None,
        };
        self.round.record(None, EventKind::SessionEnded { reason, message, receipt }, Bytes::new());
    }

    pub(super) fn perform(&mut self, act: SessionAct) {
        match act {
            SessionAct::Start { turn } => {
                if let Some(failure) = self.context_refusal(turn) {
                    return self.end_unstarted(turn, failure);
                }
                if let Some(TurnRequest { code, context }) = self.queue.start(turn) {
                    let context = self.with_span(turn, context);
                    let start = KeeperCommand::TurnStart { turn, more: false, context };
                    self.keeper.command(start, code);
                }
            }
            SessionAct::Interrupt { turn } => {
                self.keeper.command(KeeperCommand::Interrupt { turn }, Bytes::new());
            }
            SessionAct::Input { turn, input: InputRequest { bytes, eof, keys }, reply } => {
                let command = KeeperCommand::TurnInput { turn, more: false, eof, keys };
                match self.keeper.command(command, bytes) {
                    Some(command) => self.keeper.confirm_later(command, turn, reply),
                    None => {
                        let message = "the input cannot be sent to the keeper";
                        answer(reply, Err(Failure::new(ErrorCode::KeeperLost, message)));
                    }
                }
            }
            SessionAct::Restart => {
                let zygote = self.keeper.zygote_of.as_deref();
                let zygote =
                    zygote.and_then(|of| self.context.host.provision.zygote_connection(of));
                self.keeper.link.pass(zygote);
                self.keeper.command(KeeperCommand::Restart, Bytes::new());
            }
            SessionAct::StopKeeper => {
                let grace_ms = self.life.closing_grace_ms();
                self.keeper.command(KeeperCommand::Shutdown { grace_ms }, Bytes::new());
            }
            SessionAct::CancelCall { turn, call, reason } => {
                self.calls.given_up(turn, call, reason, &self.context, &mut self.round);
            }
            SessionAct::PassCall(part) => self.pass_call(part),
            SessionAct::AnswerCall { turn, call, answer } => {
                self.calls.send_answer(turn, call, answer, &mut self.keeper);
            }
            SessionAct::Settle { turn } => {
                for reply in self.queue.take_waiters(turn) {
                    answer(reply, self.snapshot(turn));
                }
            }
        }
    }

    /// Adds the turn's span to its environment, for services that the code calls.
    fn with_span(
        &self,
        turn: TurnNo,
        context: Option<Box<TurnContext>>,
    ) -> Option<Box<TurnContext>> {
        let Some(trace) = &self.journal.trace else { return context };
        let Some(own) = trace.of_turn(turn).filter(|_| self.takes_context()) else {
            return context;
        };
        let mut context = context.unwrap_or_default();
        context.env.entry(TRACEPARENT.to_owned()).or_insert_with(|| own.to_string());
        Some(context)
    }

    /// Why the worker that is ready cannot run this turn: it takes no context.
    fn context_refusal(&self, turn: TurnNo) -> Option<Failure> {
        self.queue.turns.get(turn)?.request.context.as_ref()?;
        (!self.takes_context()).then(|| Failure::of_context(self.id.as_str()))
    }

    /// Ends a turn that the worker never got.
    fn end_unstarted(&mut self, turn: TurnNo, failure: Failure) {
        let Failure { code, message, .. } = failure;
        let error = TurnError { code: Some(code), name: code.as_str().to_owned(), message };
        let reported = TurnEndReport { turn, error: Some(error), ..TurnEndReport::default() };
        let outcome = WorkerOutcome::Error;
        self.apply_reported(SessionEvent::TurnDone { turn, outcome }, &mut Some(reported));
    }

    fn pass_call(&mut self, part: CallPart) {
        let turn = part.turn;
        // A call may come together with the end of its turn. The turn's other calls have ended by then.
        let is_over = self.machine.turn_state(turn) == TurnState::Ended;
        if is_over && part.is_for_node() {
            return self.calls.too_late(&part, &self.context, &mut self.round);
        }
        let within = self.queue.turns.get(turn).and_then(|turn| turn.within.clone());
        self.calls.pass(part, within, &self.context, &mut self.round);
        if is_over {
            self.calls.turn_over(turn, Outcome::Ok, &self.context, &mut self.round);
        }
    }

    /// Tells the keeper to remember that a turn has failed.
    pub(super) fn tell_failed(&mut self, turn: TurnNo) {
        self.keeper.command(KeeperCommand::TurnFailed { turn }, Bytes::new());
    }
}

impl Failure {
    /// The session's worker takes no context of a turn.
    pub(super) fn of_context(subject: &str) -> Self {
        let message = format!(
            "the worker of session {subject} takes no context of a turn (arguments, directory, \
             variables): leave `context` out, or use a worker with the capability `context`"
        );
        Self::new(ErrorCode::BadRequest, message)
    }

    pub(super) fn of(code: ErrorCode, subject: &str) -> Self {
        let what = match code {
            ErrorCode::Overloaded => "has too many waiting turns",
            ErrorCode::SessionEnded => "has ended",
            ErrorCode::SessionBusy => "is not idle",
            ErrorCode::TurnNotRunning => "is not running that turn",
            _ => "refused the request",
        };
        Self::new(code, format!("session {subject} {what}"))
    }
}

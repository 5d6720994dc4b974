//! Serves the requests of clients and of the node, one at a time.

use bytes::Bytes;
use windlass_lifecycle::SessionEvent;
use windlass_protocol::api::{SessionState, TurnState};
use windlass_protocol::event::EventKind;
use windlass_protocol::limits::INPUT_BYTES_MAX;
use windlass_protocol::link::{ForkDone, ForkOrder, KeeperCommand};
use windlass_protocol::worker::CONTEXTS;
use windlass_protocol::{ErrorCode, TurnId, TurnNo};

use super::actor::{Actor, EventVerdict, LeaveReason};
use super::copying::refused;
use super::fork::HeldOriginal;
use super::journal_side::JournalWrite;
use super::round::SessionAct;
use super::turns::{Snapshot, Turn};
use super::{InputRequest, ReplySender, Request, SubmitRequest, TurnRef, Until, answer};
use crate::failure::Failure;
use windlass_telemetry::Fact;

impl Actor {
    pub(super) fn serve(&mut self, request: Request) -> Option<LeaveReason> {
        if request.is_from_client() {
            self.life.idle.used();
        }
        match request {
            Request::Submit(submit) => self.submit(submit),
            Request::Look { turn: TurnRef::Number(number), until, reply } => {
                self.answer_about(number, until, reply);
            }
            Request::Look { turn: TurnRef::Id(id), until, reply } => {
                match self.queue.turns.number(&id) {
                    Some(number) => self.answer_about(number, until, reply),
                    None => answer(reply, Err(self.no_turn(&id))),
                }
            }
            Request::Interrupt { turn, reply } => self.interrupt(turn, reply),
            Request::Input { turn, input, reply } => self.input(&turn, input, reply),
            Request::Reset { reply } => {
                self.apply(SessionEvent::ResetAsked);
                self.fork.queue_reset(reply);
                self.commit();
            }
            Request::Hold { until, reply } => self.hold(until, reply),
            Request::Fork { fork, reply } => self.ask_fork(fork, reply),
            Request::Close { grace_ms, reply } => {
                self.life.close(grace_ms, reply);
                self.apply(SessionEvent::CloseAsked);
                self.commit();
            }
            Request::Fence { reply } => {
                self.life.close(0, reply);
                self.apply(SessionEvent::FencePassed);
                self.commit();
            }
            Request::Egress { host, port, allowed, reason } => {
                let kind = EventKind::Egress { host, port, allowed, reason };
                self.round.record(self.machine.current(), kind, Bytes::new());
                self.commit();
            }
            Request::ToolResult(part) => {
                let (node, round) = (&self.context, &mut self.round);
                self.calls.take_result(part, &mut self.keeper, node, round);
                self.commit();
            }
            Request::ToolHostGone { host } => {
                self.calls.host_gone(host, &self.context, &mut self.round);
                self.commit();
            }
            Request::ClaimGranted { turn, call, changed } => {
                self.calls.claim_granted(turn, call, changed, &self.context, &mut self.round);
                self.commit();
            }
            Request::DoorAnswer { turn, call, body } => {
                self.calls.door_answered(turn, call, body, &self.context, &mut self.round);
                self.commit();
            }
            Request::Transferred(transfer) => {
                if let Some(trace) = &mut self.journal.trace {
                    trace.report_now(Fact::File(transfer));
                }
            }
            Request::Release { reply } => return Some(LeaveReason::Released(Some(reply))),
        }
        None
    }

    fn submit(&mut self, submit: SubmitRequest) {
        if let Some(id) = &submit.id
            && let Some(number) = self.queue.turns.number(id)
        {
            // The client sent the request twice. A number that is already set is this number.
            let _ = submit.number.set(number);
            submit.note.add("repeated_turn", number.0);
            return self.answer_about(number, submit.until, submit.reply);
        }
        match submit.id.as_ref().map(|id| self.past(id)) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(past))) => return answer(submit.reply, Ok(past)),
            // If the journal cannot be read, it is unknown whether the turn has run: do not run it again.
            Some(Err(failure)) => return answer(submit.reply, Err(failure)),
        }
        // The capabilities are known once a worker was ready. Before that, the turn is refused when it starts.
        let is_known = self.journal.facts().capabilities.is_some();
        if submit.context.is_some() && is_known && !self.takes_context() {
            return answer(submit.reply, Err(Failure::of_context(self.id.as_str())));
        }
        if let Err(failure) = self.context.may_accept() {
            return answer(submit.reply, Err(failure));
        }
        let number = self.journal.facts().last_turn.next();
        let id = submit.id.unwrap_or_else(|| TurnId::from_number(number));
        submit.note.add("turn", number.0);
        submit.note.add("id", id.as_str());
        let mut turn = Turn::new(id, number, submit.code, submit.deadline_ms);
        turn.within = submit.within;
        turn.request.context = submit.context;
        if let Some(trace) = &mut self.journal.trace {
            trace.expect(number, submit.trace);
        }
        match self.accept(turn) {
            Ok(()) => {
                let _ = submit.number.set(number);
                // Now, because the client may wait for the end of the turn.
                submit.note.send();
                self.answer_about(number, submit.until, submit.reply);
            }
            Err(failure) => answer(submit.reply, Err(failure)),
        }
    }

    /// Whether worker and keeper take the context of a turn.
    pub(super) fn takes_context(&self) -> bool {
        let capabilities = self.journal.facts().capabilities.as_deref().unwrap_or_default();
        let of_worker = capabilities.iter().any(|capability| capability == CONTEXTS);
        of_worker && self.keeper.takes_context != Some(false)
    }

    /// Accepts a turn. If the machine refuses it or the journal cannot record it, nothing changes.
    fn accept(&mut self, turn: Turn) -> Result<(), Failure> {
        let number = turn.number;
        let before = self.machine.clone();
        self.queue.turns.insert(turn);
        if let EventVerdict::Refused(code) = self.apply(SessionEvent::TurnAsked { turn: number }) {
            self.queue.turns.remove(number);
            return Err(Failure::of(code, self.id.as_str()));
        }
        let mut records = std::mem::take(&mut self.round.records);
        let written = self.journal.write(&mut records, &mut self.keeper.link.half);
        self.count_failed(written);
        records.clear();
        self.round.records = records;
        if written == JournalWrite::Failed {
            self.machine = before;
            self.round.acts.clear();
            self.queue.turns.remove(number);
            let message = format!("no space left for the journal of session {}", self.id);
            return Err(Failure::new(ErrorCode::DiskFull, message));
        }
        self.commit();
        Ok(())
    }

    fn answer_about(&mut self, turn: TurnNo, until: Until, reply: ReplySender<Snapshot>) {
        let snapshot = self.snapshot(turn);
        let is_open = matches!(
            &snapshot,
            Ok(Snapshot {
                state: TurnState::Waiting | TurnState::Running | TurnState::Interrupting,
                ..
            })
        );
        if !is_open || until == Until::Now {
            return answer(reply, snapshot);
        }
        if let Err(reply) = self.queue.wait(turn, reply) {
            answer(reply, snapshot);
        }
    }

    /// A turn that ended so long ago that it is only in the journal.
    fn past(&self, id: &TurnId) -> Result<Option<Snapshot>, Failure> {
        if !self.queue.turns.may_be_past(id) {
            return Ok(None);
        }
        let found = self.context.journal.turn(&self.id, id).map_err(|error| {
            let message = format!("the journal of session {} cannot be read: {error}", self.id);
            Failure::new(ErrorCode::Internal, message)
        })?;
        let ended = |record| Snapshot {
            turn: Turn::from_record(record),
            state: TurnState::Ended,
            accepted: None,
        };
        Ok(found.map(ended))
    }

    fn interrupt(&mut self, turn: Option<TurnId>, reply: ReplySender<Snapshot>) {
        let number = match &turn {
            Some(id) => self.queue.turns.number(id),
            // While the worker starts, the session runs no turn: clients mean the one that starts next.
            None => self.machine.current().or_else(|| self.machine.waiting().next()),
        };
        let Some(number) = number else {
            let answered = match turn {
                // A turn that has ended is no error, even if it is only in the journal.
                Some(id) => self.past(&id).and_then(|past| past.ok_or_else(|| self.no_turn(&id))),
                None => {
                    let message = format!("session {} is not running a turn", self.id);
                    Err(Failure::new(ErrorCode::TurnNotRunning, message))
                }
            };
            return answer(reply, answered);
        };
        // If the turn has ended, the machine changes nothing and the reply shows the ended turn.
        self.apply(SessionEvent::InterruptAsked { turn: number });
        self.commit();
        answer(reply, self.snapshot(number));
    }

    fn input(&mut self, id: &TurnId, input: InputRequest, reply: ReplySender<Snapshot>) {
        let Some(turn) = self.queue.turns.number(id) else {
            let failure = match self.past(id) {
                Ok(Some(_)) => Failure::of(ErrorCode::TurnNotRunning, self.id.as_str()),
                Ok(None) => self.no_turn(id),
                Err(failure) => failure,
            };
            return answer(reply, Err(failure));
        };
        if self.calls.is_agent() && self.machine.turn_state(turn) == TurnState::Running {
            // An answer that waits for a question would be taken for one that nobody has seen.
            let message = format!("turn {id} asks nothing: answer an agent when it asks");
            return answer(reply, Err(Failure::new(ErrorCode::TurnNotRunning, message)));
        }
        if let EventVerdict::Refused(code) = self.apply(SessionEvent::InputGiven { turn }) {
            return answer(reply, Err(Failure::of(code, self.id.as_str())));
        }
        if let Some(running) = self.queue.turns.get_mut(turn) {
            if !running.takes_input(input.bytes.len()) {
                let message = format!(
                    "turn {id} has too much unread input: the limit is {INPUT_BYTES_MAX} bytes"
                );
                return answer(reply, Err(Failure::new(ErrorCode::MessageTooLarge, message)));
            }
            running.input_bytes += input.bytes.len();
        }
        self.round.acts.push(SessionAct::Input { turn, input, reply });
        self.commit();
    }

    /// Keeps the session idle until the sender of `until` is dropped.
    fn hold(
        &mut self,
        until: tokio::sync::oneshot::Receiver<()>,
        reply: ReplySender<HeldOriginal>,
    ) {
        if self.fork.is_held() {
            return answer(reply, Err(Failure::of(ErrorCode::SessionBusy, self.id.as_str())));
        }
        self.fork.request_hold(until, reply);
        self.apply(SessionEvent::HoldAsked);
        self.commit();
    }

    fn ask_fork(&mut self, fork: Box<ForkOrder>, reply: ReplySender<ForkDone>) {
        if self.machine.state() != SessionState::Idle {
            return answer(reply, Err(Failure::of(ErrorCode::SessionBusy, self.id.as_str())));
        }
        let (twin, room) = (fork.session.clone(), fork.room.clone());
        if let Err(error) = self.keeper.link.command(KeeperCommand::Fork(fork), Bytes::new()) {
            let message = format!("session {} was not forked: {error}", self.id);
            return answer(reply, Err(refused(&message)));
        }
        self.fork.fork_sent(twin, &room, reply);
        self.keeper.flush();
    }
}

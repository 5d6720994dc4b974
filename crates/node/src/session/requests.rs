//! What clients ask of a session, one request at a time.

use bytes::Bytes;
use windlass_lifecycle::{Effect, Event};
use windlass_protocol::api::TurnState;
use windlass_protocol::event::EventKind;
use windlass_protocol::{ErrorCode, TurnId, TurnNo};

use super::actor::{Actor, Closing, Leave, WAITERS_MAX, Waiter};
use super::disk::Written;
use super::effects::Act;
use super::turns::{Extent, Snapshot, Turn};
use super::{Reply, Request, Submit, Until, Which};
use crate::failure::Failure;

impl Actor {
    pub(super) fn serve(&mut self, request: Request) -> Option<Leave> {
        if request.is_of_client() {
            self.idle.used();
        }
        match request {
            Request::Submit(_) if self.fork.is_behind() => self.put_off(request),
            Request::Reset { .. } if self.fork.cannot_reset() => self.put_off(request),
            Request::Hold { .. } if self.fork.awaits_twin() => self.put_off(request),
            Request::Submit(submit) => self.submit(submit),
            Request::Look { turn: Which::Number(number), until, reply } => {
                self.answer_about(number, until, reply);
            }
            Request::Look { turn: Which::Id(id), until, reply } => match self.turns.number(&id) {
                Some(number) => self.answer_about(number, until, reply),
                None => answer(reply, Err(self.no_turn(&id))),
            },
            Request::Interrupt { turn, reply } => self.interrupt(turn, reply),
            Request::Input { turn, bytes, eof, reply } => self.input(&turn, bytes, eof, reply),
            Request::Reset { reply } => {
                self.step(Event::ResetAsked);
                self.commit();
                answer(reply, Ok(()));
            }
            Request::Hold { until, reply } => {
                let held = self.hold(until);
                answer(reply, held);
            }
            Request::Fork { fork, reply } => self.ask_fork(fork, reply),
            Request::Close { grace_ms, reply } => {
                self.closing = Some(Closing { grace_ms, replies: vec![reply] });
                self.step(Event::CloseAsked);
                self.commit();
            }
            Request::Egress { host, port, allowed, reason } => {
                let turn = self.machine.current();
                let kind = EventKind::Egress { host, port, allowed, reason };
                self.record(turn, kind, Bytes::new());
                self.commit();
            }
            Request::ToolResult(part) => self.take_result(part),
            Request::ToolHostGone { host } => self.tool_host_gone(host),
            Request::Release { reply } => return Some(Leave::Released(Some(reply))),
        }
        None
    }

    pub(super) fn submit(&mut self, submit: Submit) {
        if let Some(id) = &submit.id
            && let Some(number) = self.turns.number(id)
        {
            // A number that is set already is this one: the request was sent twice.
            let _ = submit.number.set(number);
            return self.answer_about(number, submit.until, submit.reply);
        }
        match submit.id.as_ref().map(|id| self.past(id)) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(past))) => return answer(submit.reply, Ok(past)),
            // Without an answer of the journal nobody knows whether the turn has run.
            Some(Err(failure)) => return answer(submit.reply, Err(failure)),
        }
        let number = self.log.facts().last_turn.next();
        let id = submit.id.unwrap_or_else(|| TurnId::from_number(number));
        let mut turn = Turn::new(id, number, submit.code, submit.deadline_ms);
        turn.within = submit.within;
        match self.accept(turn) {
            Ok(()) => {
                let _ = submit.number.set(number);
                self.answer_about(number, submit.until, submit.reply);
            }
            Err(failure) => answer(submit.reply, Err(failure)),
        }
    }

    /// Accepts a turn, or leaves everything as it was.
    fn accept(&mut self, turn: Turn) -> Result<(), Failure> {
        let number = turn.number;
        let before = self.machine.clone();
        self.turns.insert(turn);
        let (machine, effects) =
            std::mem::take(&mut self.machine).step(Event::TurnAsked { turn: number });
        self.machine = machine;
        for effect in effects {
            if let Effect::Refuse { code, .. } = effect {
                self.turns.remove(number);
                return Err(Failure::of(code, self.id.as_str()));
            }
            self.plan(effect);
        }
        let mut records = std::mem::take(&mut self.records);
        let written = self.try_write(&mut records);
        records.clear();
        self.records = records;
        if written == Written::No {
            self.machine = before;
            self.acts.clear();
            self.turns.remove(number);
            let message = format!("the journal of session {} has no room", self.id);
            return Err(Failure::new(ErrorCode::DiskFull, message));
        }
        self.commit();
        Ok(())
    }

    fn answer_about(&mut self, turn: TurnNo, until: Until, reply: Reply<Snapshot>) {
        let snapshot = self.snapshot(turn);
        let settled = !matches!(
            &snapshot,
            Ok(Snapshot {
                state: TurnState::Waiting | TurnState::Running | TurnState::Interrupting,
                ..
            })
        );
        if settled || until == Until::Now {
            return answer(reply, snapshot);
        }
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        if self.waiters.len() < WAITERS_MAX {
            self.waiters.push(Waiter { turn, reply });
        } else {
            answer(reply, snapshot);
        }
    }

    pub(super) fn snapshot(&self, turn: TurnNo) -> Result<Snapshot, Failure> {
        let found = self.turns.get(turn).ok_or_else(|| self.no_turn(&TurnId::from_number(turn)))?;
        let mut found = found.clone();
        let state = match found.end {
            Some(_) => TurnState::Ended,
            None => self.machine.turn_state(turn),
        };
        if let Some(open) = self.log.facts().open_turn(turn).filter(|_| found.end.is_none()) {
            found.extent = Extent::of(open);
        }
        Ok(Snapshot { turn: found, state })
    }

    /// A turn that ended so long ago that only the journal has it.
    fn past(&self, id: &TurnId) -> Result<Option<Snapshot>, Failure> {
        if !self.turns.may_be_past(id) {
            return Ok(None);
        }
        let found = self.context.journal.turn(&self.id, id).map_err(|error| {
            let message = format!("the journal of session {} cannot be read: {error}", self.id);
            Failure::new(ErrorCode::Internal, message)
        })?;
        let ended = |record| Snapshot { turn: Turn::from_record(record), state: TurnState::Ended };
        Ok(found.map(ended))
    }

    fn interrupt(&mut self, turn: Option<TurnId>, reply: Reply<Snapshot>) {
        let number = match &turn {
            Some(id) => self.turns.number(id),
            None => self.machine.current(),
        };
        let Some(number) = number else {
            let not_running = || {
                let message = format!("session {} is not running a turn", self.id);
                Failure::new(ErrorCode::TurnNotRunning, message)
            };
            let answered = match turn {
                // A turn that ended is told as ended, however long ago that was.
                Some(id) => self.past(&id).and_then(|past| past.ok_or_else(|| self.no_turn(&id))),
                None => Err(not_running()),
            };
            return answer(reply, answered);
        };
        self.step(Event::InterruptAsked { turn: number });
        self.commit();
        answer(reply, self.snapshot(number));
    }

    fn input(&mut self, id: &TurnId, bytes: Bytes, eof: bool, reply: Reply<Snapshot>) {
        let Some(turn) = self.turns.number(id) else {
            let failure = match self.past(id) {
                Ok(Some(_)) => Failure::of(ErrorCode::TurnNotRunning, self.id.as_str()),
                Ok(None) => self.no_turn(id),
                Err(failure) => failure,
            };
            return answer(reply, Err(failure));
        };
        let (machine, effects) = std::mem::take(&mut self.machine).step(Event::InputGiven { turn });
        self.machine = machine;
        let given = effects.iter().any(|effect| matches!(effect, Effect::GiveInput { .. }));
        if !given {
            return answer(reply, Err(Failure::of(ErrorCode::TurnNotRunning, self.id.as_str())));
        }
        if let Some(running) = self.turns.get_mut(turn) {
            if !running.takes_input(bytes.len()) {
                let message = format!("turn {id} has as much unread input as it may have");
                return answer(reply, Err(Failure::new(ErrorCode::MessageTooLarge, message)));
            }
            running.input_bytes += bytes.len();
        }
        self.acts.push(Act::Input { turn, bytes, eof, reply });
        self.commit();
    }

    fn no_turn(&self, id: &TurnId) -> Failure {
        Failure::new(ErrorCode::TurnNotFound, format!("session {} has no turn {id}", self.id))
    }
}

/// Answers somebody who may have gone.
pub(super) fn answer<T>(reply: Reply<T>, value: Result<T, Failure>) {
    let _ = reply.send(value);
}

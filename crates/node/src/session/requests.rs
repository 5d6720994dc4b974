//! What clients ask of a session, one request at a time.

use bytes::Bytes;
use windlass_lifecycle::SessionEvent;
use windlass_protocol::api::{SessionState, TurnState};
use windlass_protocol::event::EventKind;
use windlass_protocol::link::{ForkDone, ForkOrder, KeeperCommand};
use windlass_protocol::{ErrorCode, TurnId, TurnNo};

use super::actor::{Actor, Leave, Verdict};
use super::fork::{Original, refused};
use super::journal_side::Written;
use super::round::Act;
use super::turns::{Snapshot, Turn};
use super::{Reply, Request, Submit, Until, Which};
use crate::failure::Failure;

impl Actor {
    pub(super) fn serve(&mut self, request: Request) -> Option<Leave> {
        if request.is_of_client() {
            self.life.idle.used();
        }
        match request {
            Request::Submit(submit) => self.submit(submit),
            Request::Look { turn: Which::Number(number), until, reply } => {
                self.answer_about(number, until, reply);
            }
            Request::Look { turn: Which::Id(id), until, reply } => {
                match self.queue.turns.number(&id) {
                    Some(number) => self.answer_about(number, until, reply),
                    None => answer(reply, Err(self.no_turn(&id))),
                }
            }
            Request::Interrupt { turn, reply } => self.interrupt(turn, reply),
            Request::Input { turn, bytes, eof, reply } => self.input(&turn, bytes, eof, reply),
            Request::Reset { reply } => {
                self.apply(SessionEvent::ResetAsked);
                self.fork.answer_reset(reply);
                self.commit();
            }
            Request::Hold { until, reply } => self.hold(until, reply),
            Request::Fork { fork, reply } => self.ask_fork(fork, reply),
            Request::Close { grace_ms, reply } => {
                self.life.close(grace_ms, reply);
                self.apply(SessionEvent::CloseAsked);
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
            Request::Release { reply } => return Some(Leave::Released(Some(reply))),
        }
        None
    }

    fn submit(&mut self, submit: Submit) {
        if let Some(id) = &submit.id
            && let Some(number) = self.queue.turns.number(id)
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
        let number = self.journal.facts().last_turn.next();
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
        self.queue.turns.insert(turn);
        if let Verdict::Refused(code) = self.apply(SessionEvent::TurnAsked { turn: number }) {
            self.queue.turns.remove(number);
            return Err(Failure::of(code, self.id.as_str()));
        }
        let mut records = std::mem::take(&mut self.round.records);
        let written = self.journal.write(&mut records, &mut self.keeper.link.half);
        self.count_failed(written);
        records.clear();
        self.round.records = records;
        if written == Written::No {
            self.machine = before;
            self.round.acts.clear();
            self.queue.turns.remove(number);
            let message = format!("the journal of session {} has no room", self.id);
            return Err(Failure::new(ErrorCode::DiskFull, message));
        }
        self.commit();
        Ok(())
    }

    fn answer_about(&mut self, turn: TurnNo, until: Until, reply: Reply<Snapshot>) {
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

    /// A turn that ended so long ago that only the journal has it.
    fn past(&self, id: &TurnId) -> Result<Option<Snapshot>, Failure> {
        if !self.queue.turns.may_be_past(id) {
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
            Some(id) => self.queue.turns.number(id),
            None => self.machine.current(),
        };
        let Some(number) = number else {
            let answered = match turn {
                // A turn that ended is told as ended, however long ago that was.
                Some(id) => self.past(&id).and_then(|past| past.ok_or_else(|| self.no_turn(&id))),
                None => {
                    let message = format!("session {} is not running a turn", self.id);
                    Err(Failure::new(ErrorCode::TurnNotRunning, message))
                }
            };
            return answer(reply, answered);
        };
        // A turn that is over is told as it is.
        self.apply(SessionEvent::InterruptAsked { turn: number });
        self.commit();
        answer(reply, self.snapshot(number));
    }

    fn input(&mut self, id: &TurnId, bytes: Bytes, eof: bool, reply: Reply<Snapshot>) {
        let Some(turn) = self.queue.turns.number(id) else {
            let failure = match self.past(id) {
                Ok(Some(_)) => Failure::of(ErrorCode::TurnNotRunning, self.id.as_str()),
                Ok(None) => self.no_turn(id),
                Err(failure) => failure,
            };
            return answer(reply, Err(failure));
        };
        if let Verdict::Refused(code) = self.apply(SessionEvent::InputGiven { turn }) {
            return answer(reply, Err(Failure::of(code, self.id.as_str())));
        }
        if let Some(running) = self.queue.turns.get_mut(turn) {
            if !running.takes_input(bytes.len()) {
                let message = format!("turn {id} has as much unread input as it may have");
                return answer(reply, Err(Failure::new(ErrorCode::MessageTooLarge, message)));
            }
            running.input_bytes += bytes.len();
        }
        self.round.acts.push(Act::Input { turn, bytes, eof, reply });
        self.commit();
    }

    /// Holds the session idle until `until` is over.
    fn hold(&mut self, until: tokio::sync::oneshot::Receiver<()>, reply: Reply<Original>) {
        if self.fork.is_held() {
            return answer(reply, Err(Failure::of(ErrorCode::SessionBusy, self.id.as_str())));
        }
        self.fork.want(until, reply);
        self.apply(SessionEvent::HoldAsked);
        self.commit();
    }

    fn ask_fork(&mut self, fork: Box<ForkOrder>, reply: Reply<ForkDone>) {
        if self.machine.state() != SessionState::Idle {
            return answer(reply, Err(Failure::of(ErrorCode::SessionBusy, self.id.as_str())));
        }
        let (twin, room) = (fork.session.clone(), fork.room.clone());
        if let Err(error) = self.keeper.link.command(KeeperCommand::Fork(fork), Bytes::new()) {
            let message = format!("session {} was not forked: {error}", self.id);
            return answer(reply, Err(refused(&message)));
        }
        self.fork.asked(twin, &room, reply);
        self.keeper.flush();
    }
}

/// Answers somebody who may have gone.
pub(super) fn answer<T>(reply: Reply<T>, value: Result<T, Failure>) {
    let _ = reply.send(value);
}

//! The host tool calls of the running turn, between keeper and tool host. Each part of a call goes
//! on as it comes, and so does each part of its answer: neither is ever put together here, but for
//! the node's own tools. A call is in the journal before its host can know of it, so that it runs at
//! most once, whatever becomes of this node.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_journal::NewEvent;
use windlass_protocol::api::TurnState;
use windlass_protocol::event::EventKind;
use windlass_protocol::host::{CancelReason, ToHost, ToolError, Within};
use windlass_protocol::limits::{
    CHUNK_BYTES_MAX, DEADLINE_MS_MAX, MESSAGE_BYTES_MAX, TOOL_DEADLINE_MS_DEFAULT,
    TOOL_RESULT_BYTES_MAX,
};
use windlass_protocol::link::Command;
use windlass_protocol::{CallNo, ErrorCode, LinkSeq, Outcome, TurnNo};

use super::actor::Actor;
use super::effects::Act;
use crate::clock::now_ms;
use crate::tools::{Host, HostId, own};

/// Bytes of arguments of one of the node's own tools, which are words and names. More fails with
/// `message_too_large`.
const OWN_ARGUMENT_BYTES_MAX: usize = 64 * 1024;

/// The open calls of one turn.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    turn: TurnNo,
    open: HashMap<CallNo, OpenCall>,
    deadlines: BTreeSet<(Instant, CallNo)>,
    /// Parts of answers that wait for room on the link, in order.
    waiting: VecDeque<(TurnNo, CallNo, Answer)>,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct OpenCall {
    to: To,
    name: String,
    since: Instant,
    until: Instant,
    /// Bytes of the answer so far.
    answered: usize,
}

/// Who answers a call.
#[derive(Debug)]
enum To {
    Host(Arc<Host>),
    /// The node itself, once it has all the arguments.
    Own(Vec<u8>),
}

/// Part of a call, from the keeper.
#[derive(Debug)]
pub(super) struct CallPart {
    pub turn: TurnNo,
    pub call: CallNo,
    pub name: String,
    pub deadline_ms: Option<u64>,
    pub offset: u64,
    pub more: bool,
    pub body: Bytes,
}

/// Part of an answer, from a tool host.
#[derive(Debug)]
pub(crate) struct ResultPart {
    pub host: HostId,
    pub turn: TurnNo,
    pub call: CallNo,
    pub ok: bool,
    pub more: bool,
    pub body: Bytes,
}

impl OpenCalls {
    /// When the next call's deadline passes.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub fn knows(&self, turn: TurnNo, call: CallNo) -> bool {
        self.turn == turn && self.open.contains_key(&call)
    }

    fn insert(&mut self, turn: TurnNo, number: CallNo, call: OpenCall) {
        self.turn = turn;
        self.deadlines.insert((call.until, number));
        self.open.insert(number, call);
    }

    fn remove(&mut self, number: CallNo) -> Option<OpenCall> {
        let call = self.open.remove(&number)?;
        self.deadlines.remove(&(call.until, number));
        Some(call)
    }

    fn late(&self, now: Instant) -> Vec<CallNo> {
        self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, call)| *call).collect()
    }

    fn of_host(&self, host: HostId) -> Vec<CallNo> {
        self.which(|call| call.is_of(host))
    }

    fn all(&self) -> Vec<CallNo> {
        self.which(|_| true)
    }

    fn which(&self, wanted: impl Fn(&OpenCall) -> bool) -> Vec<CallNo> {
        let found = self.open.iter().filter(|(_, call)| wanted(call));
        let mut calls: Vec<CallNo> = found.map(|(number, _)| *number).collect();
        calls.sort_unstable();
        calls
    }
}

impl Actor {
    /// Records a part of a call, without its arguments, and plans to pass it on.
    pub(super) fn take_call(&mut self, link: LinkSeq, part: CallPart) {
        let kind = EventKind::ToolCall {
            call: part.call,
            name: part.name.clone(),
            deadline_ms: part.deadline_ms,
            offset: part.offset,
            bytes: part.body.len() as u64,
            more: part.more,
        };
        let turn = Some(part.turn);
        let link = Some(link);
        self.records.push(NewEvent { at_ms: now_ms(), turn, link, kind, body: Bytes::new() });
        self.acts.push(Act::PassCall(part));
    }

    /// Passes a part of a call on to whoever answers it.
    pub(super) fn pass_call(&mut self, part: CallPart) {
        let CallPart { turn, call, offset, more, .. } = part;
        if offset == 0 {
            self.open_call(&part);
        } else if !self.calls.knows(turn, call) {
            // It has failed already, which the keeper knows; or an earlier node had its first
            // part, and nobody knows what became of that.
            self.answer_call(turn, call, Answer::failed(&node_gone()));
            return;
        }
        let Some(open) = self.calls.open.get_mut(&call) else { return };
        match &mut open.to {
            To::Own(arguments) => {
                arguments.extend_from_slice(&part.body);
                if arguments.len() > OWN_ARGUMENT_BYTES_MAX {
                    let message = format!("{OWN_ARGUMENT_BYTES_MAX} bytes of arguments are enough");
                    let error = error_of(ErrorCode::MessageTooLarge, message);
                    self.fail_call(call, &error, None);
                } else if !more {
                    self.answer_own(turn, call);
                }
            }
            To::Host(host) => {
                let deadline_ms = millis_until(open.until);
                let session = self.id.clone();
                let name = part.name;
                let message = ToHost::ToolCall { session, turn, call, name, deadline_ms, more };
                if let Err(full) = host.send(&message, part.body) {
                    let error = error_of(ErrorCode::Overloaded, full.to_string());
                    self.fail_call(call, &error, Some(CancelReason::GivenUp));
                }
            }
        }
    }

    /// Finds out who answers a new call; if nobody does, it has failed.
    fn open_call(&mut self, part: &CallPart) {
        let hub = &self.context.tools;
        let now = Instant::now();
        let route = hub.route(&self.caller, &part.name);
        let offered = route.as_ref().and_then(|route| route.deadline_ms);
        let limit = offered.unwrap_or(TOOL_DEADLINE_MS_DEFAULT);
        let allowed = part.deadline_ms.unwrap_or(limit).min(DEADLINE_MS_MAX);
        let to = match route {
            Some(route) => {
                route.host.called_by(&self.id);
                let within = self.turns.get(part.turn).and_then(|turn| turn.within.clone());
                self.context.within.open(self.named(part.turn, part.call), within);
                Some(To::Host(route.host))
            }
            None => own::is_own(&part.name).then(|| To::Own(Vec::new())),
        };
        let Some(to) = to else {
            let error = own::not_found(hub, &self.caller, &part.name);
            let (turn, call) = (part.turn, part.call);
            self.record_end_of_call(
                turn,
                call,
                Ended { ok: false, code: error.code, bytes: 0, since: now },
            );
            self.answer_call(turn, call, Answer::failed(&error));
            return;
        };
        let until = now + Duration::from_millis(allowed);
        let name = part.name.clone();
        let call = OpenCall { to, name, since: now, until, answered: 0 };
        self.calls.insert(part.turn, part.call, call);
    }

    fn answer_own(&mut self, turn: TurnNo, call: CallNo) {
        let Some(OpenCall { to: To::Own(arguments), name, .. }) = self.calls.open.get(&call) else {
            return;
        };
        match own::answer(&self.context.tools, &self.caller, name, arguments) {
            Some(Ok(body)) => {
                self.end_call(turn, call, true, None, body.len());
                self.answer_call(turn, call, Answer { ok: true, more: false, body: body.into() });
            }
            Some(Err(error)) => self.fail_call(call, &error, None),
            None => {
                let error = own::not_found(&self.context.tools, &self.caller, name);
                self.fail_call(call, &error, None);
            }
        }
    }

    /// A part of an answer came. One that is late, or not that host's to give, changes nothing.
    pub(super) fn take_result(&mut self, part: ResultPart) {
        let ResultPart { host, turn, call, ok, more, body } = part;
        let open = self.calls.open.get_mut(&call).filter(|_| self.calls.turn == turn);
        let Some(open) = open.filter(|open| open.is_of(host)) else {
            self.context.metrics.late_tool_result();
            return;
        };
        open.answered += body.len();
        if self.calls.waiting_bytes + body.len() > TOOL_RESULT_BYTES_MAX {
            let message = format!("{TOOL_RESULT_BYTES_MAX} bytes of answers wait already");
            let error = error_of(ErrorCode::Overloaded, message);
            self.fail_call(call, &error, Some(CancelReason::GivenUp));
        } else if open.answered > MESSAGE_BYTES_MAX {
            let message =
                format!("the tool's answer is over the limit of {MESSAGE_BYTES_MAX} bytes");
            let error = error_of(ErrorCode::MessageTooLarge, message);
            self.fail_call(call, &error, Some(CancelReason::GivenUp));
        } else {
            let (more, bytes) = (ok && more, open.answered);
            // It goes ahead of its record: nobody learns from it what the journal must have first.
            self.send_answer(turn, call, Answer { ok, more, body }.bounded());
            // A closed link shows when it is read.
            let _ = self.link.flush();
            if more {
                return;
            }
            self.end_call(turn, call, ok, (!ok).then_some(ErrorCode::ToolFailed), bytes);
        }
        self.commit();
    }

    /// The code has given the call up, of its own accord or because it was interrupted.
    pub(super) fn call_given_up(&mut self, turn: TurnNo, call: CallNo) {
        if self.calls.knows(turn, call) {
            let reason = match self.machine.turn_state(turn) {
                TurnState::Interrupting => CancelReason::Interrupted,
                _ => CancelReason::GivenUp,
            };
            self.cancel_at_host(call, reason);
            self.end_call(turn, call, false, Some(ErrorCode::ToolCancelled), 0);
        }
    }

    pub(super) fn tool_host_gone(&mut self, host: HostId) {
        for call in self.calls.of_host(host) {
            let message = "the tool's host went away before it answered".to_owned();
            self.fail_call(call, &error_of(ErrorCode::ToolHostGone, message), None);
        }
        self.commit();
    }

    pub(super) fn pass_call_deadlines(&mut self, now: Instant) {
        for call in self.calls.late(now) {
            let name = self.calls.open.get(&call).map_or("", |call| call.name.as_str());
            let message = format!("{name} did not answer within the call's deadline");
            let error = error_of(ErrorCode::ToolDeadlinePassed, message);
            self.fail_call(call, &error, Some(CancelReason::Deadline));
        }
    }

    /// The turn is over: nobody waits for its calls.
    pub(super) fn drop_calls(&mut self, turn: TurnNo, outcome: Outcome) {
        if self.calls.turn != turn {
            return;
        }
        let reason = match outcome {
            Outcome::Interrupted | Outcome::TimedOut => CancelReason::Interrupted,
            Outcome::Ok | Outcome::Error | Outcome::Lost => CancelReason::TurnOver,
        };
        for call in self.calls.all() {
            self.cancel_at_host(call, reason);
            self.end_call(turn, call, false, Some(ErrorCode::ToolCancelled), 0);
        }
        self.calls.waiting.clear();
        self.calls.waiting_bytes = 0;
    }

    /// The keeper has these calls open: those that this node does not know were an earlier node's,
    /// and their answers went with it.
    pub(super) fn fail_unknown_calls(&mut self, turn: TurnNo, calls: &[CallNo]) {
        for call in calls {
            if !self.calls.knows(turn, *call) {
                let code = Some(ErrorCode::ToolHostGone);
                let since = Instant::now();
                self.record_end_of_call(turn, *call, Ended { ok: false, code, bytes: 0, since });
                self.answer_call(turn, *call, Answer::failed(&node_gone()));
            }
        }
    }

    /// Ends a call with an error of ours; its host is told, if it might still be at it.
    fn fail_call(&mut self, call: CallNo, error: &ToolError, cancel: Option<CancelReason>) {
        let turn = self.calls.turn;
        if let Some(reason) = cancel {
            self.cancel_at_host(call, reason);
        }
        self.end_call(turn, call, false, error.code, 0);
        self.answer_call(turn, call, Answer::failed(error));
    }

    fn cancel_at_host(&self, call: CallNo, reason: CancelReason) {
        if let Some(OpenCall { to: To::Host(host), .. }) = self.calls.open.get(&call) {
            let (session, turn) = (self.id.clone(), self.calls.turn);
            host.send_first(&ToHost::ToolCancel { session, turn, call, reason });
        }
    }

    fn end_call(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        code: Option<ErrorCode>,
        bytes: usize,
    ) {
        if let Some(open) = self.calls.remove(call) {
            self.context.within.close(&self.named(turn, call));
            let since = open.since;
            self.record_end_of_call(turn, call, Ended { ok, code, bytes, since });
        }
    }

    fn record_end_of_call(&mut self, turn: TurnNo, call: CallNo, ended: Ended) {
        let Ended { ok, code, bytes, since } = ended;
        self.context.metrics.tool_call(code);
        let wall_ms = since.elapsed().as_secs_f64() * 1000.0;
        let kind = EventKind::ToolEnded { call, ok, code, bytes: bytes as u64, wall_ms };
        self.record(Some(turn), kind, Bytes::new());
    }

    fn answer_call(&mut self, turn: TurnNo, call: CallNo, answer: Answer) {
        self.acts.push(Act::AnswerCall { turn, call, answer });
    }

    /// Gives the keeper an answer, or a part of one, when there is room on the link.
    pub(super) fn send_answer(&mut self, turn: TurnNo, call: CallNo, answer: Answer) {
        if self.calls.waiting.is_empty() && !self.link.crowded() {
            return self.command_answer(turn, call, answer);
        }
        self.link.want_room();
        self.calls.waiting_bytes += answer.body.len();
        self.calls.waiting.push_back((turn, call, answer));
    }

    /// There is room on the link again.
    pub(super) fn send_waiting_answers(&mut self) {
        while !self.link.crowded()
            && let Some((turn, call, answer)) = self.calls.waiting.pop_front()
        {
            self.calls.waiting_bytes -= answer.body.len();
            self.command_answer(turn, call, answer);
            // A closed link shows when it is read.
            let _ = self.link.flush();
        }
        if !self.calls.waiting.is_empty() {
            self.link.want_room();
        }
    }

    /// Each command holds what one frame can.
    fn command_answer(&mut self, turn: TurnNo, call: CallNo, answer: Answer) {
        let Answer { ok, more, mut body } = answer;
        loop {
            let part = body.split_to(body.len().min(CHUNK_BYTES_MAX));
            let more = more || !body.is_empty();
            let given = self.command(Command::ToolResult { turn, call, ok, more }, part);
            if body.is_empty() || given.is_none() {
                return;
            }
        }
    }

    fn named(&self, turn: TurnNo, call: CallNo) -> Within {
        Within { session: self.id.clone(), turn, call }
    }
}

/// An answer, or a part of one.
#[derive(Debug)]
pub(super) struct Answer {
    pub ok: bool,
    pub more: bool,
    pub body: Bytes,
}

/// How a call ended.
struct Ended {
    ok: bool,
    code: Option<ErrorCode>,
    bytes: usize,
    since: Instant,
}

impl Answer {
    fn failed(error: &ToolError) -> Self {
        let body = serde_json::to_vec(error).expect("texts and codes always have a JSON form");
        Self { ok: false, more: false, body: body.into() }.bounded()
    }

    /// An error is one frame; one that would be more is told of, not told.
    fn bounded(self) -> Self {
        if self.ok || self.body.len() <= CHUNK_BYTES_MAX {
            return self;
        }
        let message = format!("the tool failed, with an error of {} bytes", self.body.len());
        Self::failed(&error_of(ErrorCode::ToolFailed, message))
    }
}

impl OpenCall {
    fn is_of(&self, host: HostId) -> bool {
        matches!(&self.to, To::Host(to) if to.id() == host)
    }
}

fn error_of(code: ErrorCode, message: String) -> ToolError {
    ToolError { message, code: Some(code), kind: None }
}

fn node_gone() -> ToolError {
    let message = "the node was replaced before the call was answered; it may have run or not";
    error_of(ErrorCode::ToolHostGone, message.to_owned())
}

fn millis_until(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX)
}

//! The host tool calls of the running turn, between keeper and tool host. Each part of a call goes
//! on as it comes, and so does each part of its answer: neither is ever put together here, but for
//! the node's own tools. A call is in the journal before its host can know of it, so that it runs at
//! most once, whatever becomes of this node.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_protocol::event::EventKind;
use windlass_protocol::host::{CancelReason, ToHost, ToolError, Within};
use windlass_protocol::limits::{
    CHUNK_BYTES_MAX, DEADLINE_MS_MAX, MESSAGE_BYTES_MAX, TOOL_DEADLINE_MS_DEFAULT,
    TOOL_RESULT_BYTES_MAX,
};
use windlass_protocol::link::KeeperCommand;
use windlass_protocol::{CallNo, ErrorCode, LinkSeq, Outcome, TurnNo};

use super::keeper_side::KeeperSide;
use super::round::{Act, Round};
use crate::context::Context;
use windlass_tools::{Caller, Host, HostId, own};

/// Bytes of arguments of one of the node's own tools, which are words and names. More fails with
/// `message_too_large`.
const OWN_ARGUMENT_BYTES_MAX: usize = 64 * 1024;

/// The host tool calls of a session: those of the turn that runs.
#[derive(Debug)]
pub(super) struct ToolCalls {
    /// Who the session's code is, to those who offer tools.
    pub caller: Caller,
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

impl ToolCalls {
    pub fn new(caller: Caller) -> Self {
        Self {
            caller,
            turn: TurnNo::default(),
            open: HashMap::new(),
            deadlines: BTreeSet::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

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

/// What becomes of a call. `node` is who offers tools, and `round` takes what is recorded and done.
impl ToolCalls {
    /// Records a part of a call, without its arguments, and plans to pass it on.
    pub fn take_call(link: LinkSeq, part: CallPart, round: &mut Round) {
        let kind = EventKind::ToolCall {
            call: part.call,
            name: part.name.clone(),
            deadline_ms: part.deadline_ms,
            offset: part.offset,
            bytes: part.body.len() as u64,
            more: part.more,
        };
        round.record_heard(Some(link), Some(part.turn), kind, Bytes::new());
        round.acts.push(Act::PassCall(part));
    }

    /// Passes a part of a call on to whoever answers it. `within` is the call in which the turn was submitted.
    pub fn pass(
        &mut self,
        part: CallPart,
        within: Option<Within>,
        node: &Context,
        round: &mut Round,
    ) {
        let CallPart { turn, call, offset, more, .. } = part;
        if offset == 0 {
            self.open_call(&part, within, node, round);
        } else if !self.knows(turn, call) {
            // It has failed already, which the keeper knows; or an earlier node had its first
            // part, and nobody knows what became of that.
            answer_call(turn, call, Answer::failed(&node_gone()), round);
            return;
        }
        let Some(open) = self.open.get_mut(&call) else { return };
        match &mut open.to {
            To::Own(arguments) => {
                arguments.extend_from_slice(&part.body);
                if arguments.len() > OWN_ARGUMENT_BYTES_MAX {
                    let message = format!("{OWN_ARGUMENT_BYTES_MAX} bytes of arguments are enough");
                    let error = error_of(ErrorCode::MessageTooLarge, message);
                    self.fail(call, &error, None, node, round);
                } else if !more {
                    self.answer_own(turn, call, node, round);
                }
            }
            To::Host(host) => {
                let deadline_ms = millis_until(open.until);
                let session = self.caller.session.clone();
                let name = part.name;
                let message = ToHost::ToolCall { session, turn, call, name, deadline_ms, more };
                if let Err(full) = host.send(&message, part.body) {
                    let error = error_of(ErrorCode::Overloaded, full.to_string());
                    self.fail(call, &error, Some(CancelReason::GivenUp), node, round);
                }
            }
        }
    }

    /// Finds out who answers a new call; if nobody does, it has failed.
    fn open_call(
        &mut self,
        part: &CallPart,
        within: Option<Within>,
        node: &Context,
        round: &mut Round,
    ) {
        let hub = &node.tools;
        let now = Instant::now();
        let route = hub.route(&self.caller, &part.name);
        let offered = route.as_ref().and_then(|route| route.deadline_ms);
        let limit = offered.unwrap_or(TOOL_DEADLINE_MS_DEFAULT);
        let allowed = part.deadline_ms.unwrap_or(limit).min(DEADLINE_MS_MAX);
        let to = match route {
            Some(route) => {
                route.host.called_by(&self.caller.session);
                node.within.open(self.named(part.turn, part.call), within);
                Some(To::Host(route.host))
            }
            None => own::is_own(&part.name).then(|| To::Own(Vec::new())),
        };
        let Some(to) = to else {
            let error = own::not_found(hub, &self.caller, &part.name);
            let (turn, call) = (part.turn, part.call);
            let ended = Ended { ok: false, code: error.code, bytes: 0, since: now };
            record_end(turn, call, ended, node, round);
            return answer_call(turn, call, Answer::failed(&error), round);
        };
        let until = now + Duration::from_millis(allowed);
        let name = part.name.clone();
        let call = OpenCall { to, name, since: now, until, answered: 0 };
        self.insert(part.turn, part.call, call);
    }

    fn answer_own(&mut self, turn: TurnNo, call: CallNo, node: &Context, round: &mut Round) {
        let Some(OpenCall { to: To::Own(arguments), name, .. }) = self.open.get(&call) else {
            return;
        };
        match own::answer(&node.tools, &self.caller, name, arguments) {
            Some(Ok(body)) => {
                self.end(call, Ok(body.len()), node, round);
                let answer = Answer { ok: true, more: false, body: body.into() };
                answer_call(turn, call, answer, round);
            }
            Some(Err(error)) => self.fail(call, &error, None, node, round),
            None => {
                let error = own::not_found(&node.tools, &self.caller, name);
                self.fail(call, &error, None, node, round);
            }
        }
    }

    /// A part of an answer came. One that is late, or not that host's to give, changes nothing.
    pub fn take_result(
        &mut self,
        part: ResultPart,
        keeper: &mut KeeperSide,
        node: &Context,
        round: &mut Round,
    ) {
        let ResultPart { host, turn, call, ok, more, body } = part;
        let open = self.open.get_mut(&call).filter(|_| self.turn == turn);
        let Some(open) = open.filter(|open| open.is_of(host)) else {
            node.metrics.late_tool_result();
            return;
        };
        open.answered += body.len();
        if self.waiting_bytes + body.len() > TOOL_RESULT_BYTES_MAX {
            let message = format!("{TOOL_RESULT_BYTES_MAX} bytes of answers wait already");
            let error = error_of(ErrorCode::Overloaded, message);
            self.fail(call, &error, Some(CancelReason::GivenUp), node, round);
        } else if open.answered > MESSAGE_BYTES_MAX {
            let message =
                format!("the tool's answer is over the limit of {MESSAGE_BYTES_MAX} bytes");
            let error = error_of(ErrorCode::MessageTooLarge, message);
            self.fail(call, &error, Some(CancelReason::GivenUp), node, round);
        } else {
            let (more, bytes) = (ok && more, open.answered);
            // It goes ahead of its record: nobody learns from it what the journal must have first.
            self.send_answer(turn, call, Answer { ok, more, body }.bounded(), keeper);
            keeper.flush();
            if !more {
                let ended = if ok { Ok(bytes) } else { Err((Some(ErrorCode::ToolFailed), bytes)) };
                self.end(call, ended, node, round);
            }
        }
    }

    /// The code has given the call up, of its own accord or because it was interrupted.
    pub fn given_up(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        reason: CancelReason,
        node: &Context,
        round: &mut Round,
    ) {
        if self.knows(turn, call) {
            self.cancel_at_host(call, reason);
            self.end(call, Err((Some(ErrorCode::ToolCancelled), 0)), node, round);
        }
    }

    pub fn host_gone(&mut self, host: HostId, node: &Context, round: &mut Round) {
        for call in self.of_host(host) {
            let message = "the tool's host went away before it answered".to_owned();
            let error = error_of(ErrorCode::ToolHostGone, message);
            self.fail(call, &error, None, node, round);
        }
    }

    pub fn pass_deadlines(&mut self, now: Instant, node: &Context, round: &mut Round) {
        for call in self.late(now) {
            let name = self.open.get(&call).map_or("", |call| call.name.as_str());
            let message = format!("{name} did not answer within the call's deadline");
            let error = error_of(ErrorCode::ToolDeadlinePassed, message);
            self.fail(call, &error, Some(CancelReason::Deadline), node, round);
        }
    }

    /// The turn is over: nobody waits for its calls.
    pub fn turn_over(&mut self, turn: TurnNo, outcome: Outcome, node: &Context, round: &mut Round) {
        if self.turn != turn {
            return;
        }
        let reason = match outcome {
            Outcome::Interrupted | Outcome::TimedOut => CancelReason::Interrupted,
            Outcome::Ok | Outcome::Error | Outcome::Lost => CancelReason::TurnOver,
        };
        for call in self.all() {
            self.cancel_at_host(call, reason);
            self.end(call, Err((Some(ErrorCode::ToolCancelled), 0)), node, round);
        }
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// The keeper has these calls open: those that this node does not know were an earlier node's,
    /// and their answers went with it.
    pub fn fail_unknown(&self, turn: TurnNo, calls: &[CallNo], node: &Context, round: &mut Round) {
        for call in calls.iter().filter(|call| !self.knows(turn, **call)) {
            let (code, since) = (Some(ErrorCode::ToolHostGone), Instant::now());
            record_end(turn, *call, Ended { ok: false, code, bytes: 0, since }, node, round);
            answer_call(turn, *call, Answer::failed(&node_gone()), round);
        }
    }

    /// Ends a call with an error of ours; its host is told, if it might still be at it.
    fn fail(
        &mut self,
        call: CallNo,
        error: &ToolError,
        cancel: Option<CancelReason>,
        node: &Context,
        round: &mut Round,
    ) {
        let turn = self.turn;
        if let Some(reason) = cancel {
            self.cancel_at_host(call, reason);
        }
        self.end(call, Err((error.code, 0)), node, round);
        answer_call(turn, call, Answer::failed(error), round);
    }

    fn cancel_at_host(&self, call: CallNo, reason: CancelReason) {
        if let Some(OpenCall { to: To::Host(host), .. }) = self.open.get(&call) {
            let (session, turn) = (self.caller.session.clone(), self.turn);
            host.send_first(&ToHost::ToolCancel { session, turn, call, reason });
        }
    }

    /// A call is over: with so many bytes of an answer, or with an error.
    fn end(
        &mut self,
        call: CallNo,
        ended: Result<usize, (Option<ErrorCode>, usize)>,
        node: &Context,
        round: &mut Round,
    ) {
        if let Some(open) = self.remove(call) {
            node.within.close(&self.named(self.turn, call));
            let (ok, code, bytes) = match ended {
                Ok(bytes) => (true, None, bytes),
                Err((code, bytes)) => (false, code, bytes),
            };
            let since = open.since;
            record_end(self.turn, call, Ended { ok, code, bytes, since }, node, round);
        }
    }

    /// Gives the keeper an answer, or a part of one, when there is room on the link.
    pub fn send_answer(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        answer: Answer,
        keeper: &mut KeeperSide,
    ) {
        if self.waiting.is_empty() && !keeper.link.crowded() {
            return command_answer(turn, call, answer, keeper);
        }
        keeper.link.want_room();
        self.waiting_bytes += answer.body.len();
        self.waiting.push_back((turn, call, answer));
    }

    /// There is room on the link again.
    pub fn send_waiting(&mut self, keeper: &mut KeeperSide) {
        while !keeper.link.crowded()
            && let Some((turn, call, answer)) = self.waiting.pop_front()
        {
            self.waiting_bytes -= answer.body.len();
            command_answer(turn, call, answer, keeper);
            keeper.flush();
        }
        if !self.waiting.is_empty() {
            keeper.link.want_room();
        }
    }

    fn named(&self, turn: TurnNo, call: CallNo) -> Within {
        Within { session: self.caller.session.clone(), turn, call }
    }
}

fn record_end(turn: TurnNo, call: CallNo, ended: Ended, node: &Context, round: &mut Round) {
    let Ended { ok, code, bytes, since } = ended;
    node.metrics.tool_call(code);
    let wall_ms = since.elapsed().as_secs_f64() * 1000.0;
    let kind = EventKind::ToolEnded { call, ok, code, bytes: bytes as u64, wall_ms };
    round.record(Some(turn), kind, Bytes::new());
}

fn answer_call(turn: TurnNo, call: CallNo, answer: Answer, round: &mut Round) {
    round.acts.push(Act::AnswerCall { turn, call, answer });
}

/// Each command holds what one frame can.
fn command_answer(turn: TurnNo, call: CallNo, answer: Answer, keeper: &mut KeeperSide) {
    let Answer { ok, more, mut body } = answer;
    loop {
        let part = body.split_to(body.len().min(CHUNK_BYTES_MAX));
        let more = more || !body.is_empty();
        let given = keeper.command(KeeperCommand::ToolResult { turn, call, ok, more }, part);
        if body.is_empty() || given.is_none() {
            return;
        }
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

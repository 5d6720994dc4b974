//! Passes host tool calls of the running turn between keeper and tool host. Each part of a call, and each
//! part of its answer, is passed on as it comes. The node joins the parts only of calls to its own tools. A
//! call is in the journal before its host gets it, so it runs at most once, even if this node dies.

mod claims;
mod door;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_protocol::agent::{CLAIM_PREFIX, MCP_REQUEST_BYTES_MAX, MCP_TOOL};
use windlass_protocol::event::EventKind;
use windlass_protocol::host::{CancelReason, OWN_GROUP, ToHost, ToolError, Within};
use windlass_protocol::limits::{
    CHUNK_BYTES_MAX, DEADLINE_MS_MAX, MESSAGE_BYTES_MAX, TOOL_DEADLINE_MS_DEFAULT,
    TOOL_RESULT_BYTES_MAX,
};
use windlass_protocol::link::KeeperCommand;
use windlass_protocol::{CallNo, ErrorCode, LinkSeq, Outcome, TurnNo};

pub(crate) use claims::ClaimingAgent;
use door::{DoorTask, OPEN_REQUESTS_MAX};

use super::keeper_side::KeeperSide;
use super::round::{Round, SessionAct};
use crate::context::Context;
use windlass_tools::{AttachedHost, Caller, HostId, builtin};

/// Maximum bytes of arguments for the node's own tools, whose arguments are search words and names. A call
/// with more fails with `message_too_large`.
const OWN_ARGUMENT_BYTES_MAX: usize = 64 * 1024;

/// The open host tool calls of a session's running turn.
#[derive(Debug)]
pub(super) struct ToolCalls {
    /// The session as tool hosts know it.
    pub caller: Caller,
    /// The session's agent. Only an agent can claim conversations.
    agent: Option<ClaimingAgent>,
    turn: TurnNo,
    open: HashMap<CallNo, OpenCall>,
    deadlines: BTreeSet<(Instant, CallNo)>,
    /// Parts of answers that wait until the link's buffer has space, in order.
    waiting: VecDeque<(TurnNo, CallNo, ToolAnswer)>,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct OpenCall {
    target: CallTarget,
    name: String,
    since: Instant,
    until: Instant,
    /// Bytes of the answer so far.
    answered: usize,
}

/// What answers a call.
#[derive(Debug)]
enum CallTarget {
    Host(Arc<AttachedHost>),
    /// The node itself. Holds the arguments that have come so far.
    Node(Vec<u8>),
    /// The node, when the conversation is free.
    Conversation,
    /// The node's MCP door. Holds the request that has come so far, then the task that answers it.
    Door(DoorTask),
}

/// A part of a call, from the keeper.
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

impl CallPart {
    /// Whether the node itself answers the call.
    pub fn is_for_node(&self) -> bool {
        self.name.split_once('.').is_some_and(|(group, _)| group == OWN_GROUP)
    }
}

/// A part of an answer, from a tool host.
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
    pub fn new(caller: Caller, agent: Option<ClaimingAgent>) -> Self {
        Self {
            caller,
            agent,
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
        // A call has one deadline: one that is left over would never be removed.
        drop(self.remove(number));
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

/// The steps of a call. `node` has the tool hosts. Records and acts go to `round`.
impl ToolCalls {
    /// Records a part of a call, without its arguments, and plans the act that passes it on.
    pub fn take_call(link: LinkSeq, part: CallPart, round: &mut Round) {
        let kind = EventKind::ToolCall {
            call: part.call,
            name: part.name.clone(),
            deadline_ms: part.deadline_ms,
            offset: part.offset,
            bytes: part.body.len() as u64,
            more: part.more,
        };
        round.record_from_keeper(Some(link), Some(part.turn), kind, Bytes::new());
        round.acts.push(SessionAct::PassCall(part));
    }

    /// Passes a part of a call on to its target. `within` is the call during which the turn was submitted.
    pub fn pass(
        &mut self,
        part: CallPart,
        within: Option<Within>,
        node: &Context,
        round: &mut Round,
    ) {
        let CallPart { turn, call, offset, more, .. } = part;
        if part.name.starts_with(CLAIM_PREFIX) {
            return self.claim(&part, node, round);
        }
        if self.knows(turn, call) {
            // The next part of a call.
        } else if offset == 0 {
            self.open_call(&part, within, node, round);
        } else {
            // Either the call has failed already, and the keeper knows; or an earlier node got its first
            // part, and its outcome is unknown.
            answer_call(turn, call, ToolAnswer::failed(&node_gone()), round);
            return;
        }
        let has_too_many = self.open_requests() > OPEN_REQUESTS_MAX;
        let Some(open) = self.open.get_mut(&call) else { return };
        match &mut open.target {
            CallTarget::Door(_) if has_too_many => {
                let message =
                    format!("the agent has {OPEN_REQUESTS_MAX} open MCP requests already");
                let error = error_of(ErrorCode::Overloaded, message);
                self.fail(call, &error, None, node, round);
            }
            CallTarget::Node(arguments) => {
                arguments.extend_from_slice(&part.body);
                if arguments.len() > OWN_ARGUMENT_BYTES_MAX {
                    let message = format!(
                        "the arguments of this tool are over the limit of {OWN_ARGUMENT_BYTES_MAX} bytes"
                    );
                    let error = error_of(ErrorCode::MessageTooLarge, message);
                    self.fail(call, &error, None, node, round);
                } else if !more {
                    self.answer_own(turn, call, node, round);
                }
            }
            CallTarget::Conversation => {}
            CallTarget::Door(task) => {
                if !task.extend(&part.body) {
                    let message = format!(
                        "an MCP request is over the limit of {MCP_REQUEST_BYTES_MAX} bytes"
                    );
                    let error = error_of(ErrorCode::MessageTooLarge, message);
                    self.fail(call, &error, None, node, round);
                } else if !more {
                    self.ask_door(turn, call, node, round);
                }
            }
            CallTarget::Host(host) => {
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

    /// Finds the target of a new call. If there is none, the call fails.
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
        let is_for_door = part.name == MCP_TOOL && self.is_agent();
        let limit = match is_for_door {
            true => DEADLINE_MS_MAX,
            false => offered.unwrap_or(TOOL_DEADLINE_MS_DEFAULT),
        };
        let allowed = part.deadline_ms.unwrap_or(limit).min(DEADLINE_MS_MAX);
        let target = match route {
            Some(route) => {
                route.host.called_by(&self.caller.session);
                node.within.open(self.named(part.turn, part.call), within);
                Some(CallTarget::Host(route.host))
            }
            None if is_for_door => {
                node.within.open(self.named(part.turn, part.call), within);
                Some(CallTarget::Door(DoorTask::default()))
            }
            None => builtin::is_builtin(&part.name).then(|| CallTarget::Node(Vec::new())),
        };
        let Some(target) = target else {
            let error = builtin::not_found(hub, &self.caller, &part.name);
            let (turn, call) = (part.turn, part.call);
            let ended = CallEnd { ok: false, code: error.code, bytes: 0, since: now };
            record_end(turn, call, ended, node, round);
            return answer_call(turn, call, ToolAnswer::failed(&error), round);
        };
        let until = now + Duration::from_millis(allowed);
        let name = part.name.clone();
        let call = OpenCall { target, name, since: now, until, answered: 0 };
        self.insert(part.turn, part.call, call);
    }

    fn answer_own(&mut self, turn: TurnNo, call: CallNo, node: &Context, round: &mut Round) {
        let Some(OpenCall { target: CallTarget::Node(arguments), name, .. }) = self.open.get(&call)
        else {
            return;
        };
        match builtin::answer(&node.tools, &self.caller, name, arguments) {
            Some(Ok(body)) => {
                self.end(call, Ok(body.len()), node, round);
                let answer = ToolAnswer { ok: true, more: false, body: body.into() };
                answer_call(turn, call, answer, round);
            }
            Some(Err(error)) => self.fail(call, &error, None, node, round),
            None => {
                let error = builtin::not_found(&node.tools, &self.caller, name);
                self.fail(call, &error, None, node, round);
            }
        }
    }

    /// A call for the node came with the end of its turn. Nobody waits for its answer, and a conversation that it claims
    /// would stay claimed.
    pub fn too_late(&mut self, part: &CallPart, node: &Context, round: &mut Round) {
        let CallPart { turn, call, offset, more, .. } = *part;
        if offset == 0 && !more && !self.knows(turn, call) {
            let (code, since) = (Some(ErrorCode::ToolCancelled), Instant::now());
            record_end(turn, call, CallEnd { ok: false, code, bytes: 0, since }, node, round);
        }
    }

    /// A part of an answer came. An answer that is late, or from a host that was not called, is dropped and
    /// counted.
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
            let message = format!(
                "more than {TOOL_RESULT_BYTES_MAX} bytes of tool answers wait for the session"
            );
            let error = error_of(ErrorCode::Overloaded, message);
            self.fail(call, &error, Some(CancelReason::GivenUp), node, round);
        } else if open.answered > MESSAGE_BYTES_MAX {
            let message =
                format!("the tool's answer is over the limit of {MESSAGE_BYTES_MAX} bytes");
            let error = error_of(ErrorCode::MessageTooLarge, message);
            self.fail(call, &error, Some(CancelReason::GivenUp), node, round);
        } else {
            let (more, bytes) = (ok && more, open.answered);
            // The answer is sent before its record is written. That is safe: it reveals nothing that must
            // be in the journal first.
            self.send_answer(turn, call, ToolAnswer { ok, more, body }.bounded(), keeper);
            keeper.flush();
            if !more {
                let ended = if ok { Ok(bytes) } else { Err((Some(ErrorCode::ToolFailed), bytes)) };
                self.end(call, ended, node, round);
            }
        }
    }

    /// The code has given the call up, by itself or because it was interrupted.
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
            let message = "the tool's host disconnected before it answered".to_owned();
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

    /// The turn has ended: cancels its calls.
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
        self.deadlines.clear();
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Fails those of the keeper's open calls that this node does not know. An earlier node passed them on,
    /// and their answers are lost.
    pub fn fail_unknown(&self, turn: TurnNo, calls: &[CallNo], node: &Context, round: &mut Round) {
        for call in calls.iter().filter(|call| !self.knows(turn, **call)) {
            let (code, since) = (Some(ErrorCode::ToolHostGone), Instant::now());
            record_end(turn, *call, CallEnd { ok: false, code, bytes: 0, since }, node, round);
            answer_call(turn, *call, ToolAnswer::failed(&node_gone()), round);
        }
    }

    /// Ends a call with an error of the node. With `cancel`, the tool host is told to stop.
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
        answer_call(turn, call, ToolAnswer::failed(error), round);
    }

    fn cancel_at_host(&self, call: CallNo, reason: CancelReason) {
        if let Some(OpenCall { target: CallTarget::Host(host), .. }) = self.open.get(&call) {
            let (session, turn) = (self.caller.session.clone(), self.turn);
            host.send_first(&ToHost::ToolCancel { session, turn, call, reason });
        }
    }

    /// Closes a call: with the size of its answer, or with an error code.
    fn end(
        &mut self,
        call: CallNo,
        ended: Result<usize, (Option<ErrorCode>, usize)>,
        node: &Context,
        round: &mut Round,
    ) {
        if let Some(open) = self.remove(call) {
            match open.target {
                CallTarget::Conversation => {
                    node.host.agents.cancel(&self.caller.session, self.turn, call);
                }
                CallTarget::Host(_) | CallTarget::Node(_) | CallTarget::Door(_) => {
                    node.within.close(&self.named(self.turn, call));
                }
            }
            let (ok, code, bytes) = match ended {
                Ok(bytes) => (true, None, bytes),
                Err((code, bytes)) => (false, code, bytes),
            };
            let since = open.since;
            record_end(self.turn, call, CallEnd { ok, code, bytes, since }, node, round);
        }
    }

    /// Sends the keeper an answer, or a part of one. It waits if the link's buffer is full.
    pub fn send_answer(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        answer: ToolAnswer,
        keeper: &mut KeeperSide,
    ) {
        if self.waiting.is_empty() && !keeper.link.is_crowded() {
            return command_answer(turn, call, answer, keeper);
        }
        keeper.link.want_space();
        self.waiting_bytes += answer.body.len();
        self.waiting.push_back((turn, call, answer));
    }

    /// The link's buffer has space again.
    pub fn send_waiting(&mut self, keeper: &mut KeeperSide) {
        while !keeper.link.is_crowded()
            && let Some((turn, call, answer)) = self.waiting.pop_front()
        {
            self.waiting_bytes -= answer.body.len();
            command_answer(turn, call, answer, keeper);
            keeper.flush();
        }
        if !self.waiting.is_empty() {
            keeper.link.want_space();
        }
    }

    fn named(&self, turn: TurnNo, call: CallNo) -> Within {
        Within { session: self.caller.session.clone(), turn, call }
    }
}

fn record_end(turn: TurnNo, call: CallNo, ended: CallEnd, node: &Context, round: &mut Round) {
    let CallEnd { ok, code, bytes, since } = ended;
    node.metrics.tool_call(code);
    let wall_ms = since.elapsed().as_secs_f64() * 1000.0;
    let kind = EventKind::ToolEnded { call, ok, code, bytes: bytes as u64, wall_ms };
    round.record(Some(turn), kind, Bytes::new());
}

fn answer_call(turn: TurnNo, call: CallNo, answer: ToolAnswer, round: &mut Round) {
    round.acts.push(SessionAct::AnswerCall { turn, call, answer });
}

/// Sends an answer in commands of at most one frame each.
fn command_answer(turn: TurnNo, call: CallNo, answer: ToolAnswer, keeper: &mut KeeperSide) {
    let ToolAnswer { ok, more, mut body } = answer;
    loop {
        let part = body.split_to(body.len().min(CHUNK_BYTES_MAX));
        let more = more || !body.is_empty();
        let given = keeper.command(KeeperCommand::ToolResult { turn, call, ok, more }, part);
        if body.is_empty() || given.is_none() {
            return;
        }
    }
}

/// The answer to a tool call, or a part of one.
#[derive(Debug)]
pub(super) struct ToolAnswer {
    pub ok: bool,
    pub more: bool,
    pub body: Bytes,
}

/// How a tool call ended, for its record.
struct CallEnd {
    ok: bool,
    code: Option<ErrorCode>,
    bytes: usize,
    since: Instant,
}

impl ToolAnswer {
    fn failed(error: &ToolError) -> Self {
        let body = serde_json::to_vec(error).expect("texts and codes always have a JSON form");
        Self { ok: false, more: false, body: body.into() }.bounded()
    }

    /// An error must fit one frame. A longer one is replaced by an error that gives its size.
    fn bounded(self) -> Self {
        if self.ok || self.body.len() <= CHUNK_BYTES_MAX {
            return self;
        }
        let message =
            format!("the tool failed; its error of {} bytes is too long to show", self.body.len());
        Self::failed(&error_of(ErrorCode::ToolFailed, message))
    }
}

impl OpenCall {
    fn is_of(&self, host: HostId) -> bool {
        matches!(&self.target, CallTarget::Host(called) if called.id() == host)
    }
}

fn error_of(code: ErrorCode, message: String) -> ToolError {
    ToolError { message, code: Some(code), kind: None }
}

fn node_gone() -> ToolError {
    let message =
        "the node was replaced before the call was answered; the tool may or may not have run";
    error_of(ErrorCode::ToolHostGone, message.to_owned())
}

fn millis_until(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX)
}

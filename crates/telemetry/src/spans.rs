//! Makes spans from reports. A span is made when it ends, so memory holds only what is open, and that is bounded.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use windlass_protocol::event::{EndReason, StartedBy, Usage};
use windlass_protocol::{CallNo, ErrorCode, Outcome, TurnId, TurnNo};

use crate::otlp::{AttributeValue, FinishedSpan, SpanKind};
use crate::{
    Fact, FileDirection, FileTransfer, SessionIdentity, SessionReport, SpanId, TraceId, TraceParent,
};

/// Maximum number of turns whose beginning is remembered. The span of a further turn begins by its wall time.
const OPEN_TURNS_MAX: usize = 65_536;

/// Maximum number of tool calls of a turn whose beginning is remembered.
const OPEN_CALLS_MAX: usize = 1024;

/// Maximum length of a text in an attribute. Hosts and tools are named by a session's code.
const TEXT_BYTES_MAX: usize = 1024;

type Attributes = Vec<(&'static str, AttributeValue)>;

/// The turns that have begun and not ended.
#[derive(Debug, Default)]
pub struct SpanBuilder {
    turns: BTreeMap<(SpanId, TurnNo), OpenSpan>,
}

/// A turn that has begun.
#[derive(Debug)]
struct OpenSpan {
    id: Option<TurnId>,
    began_at_ms: u64,
    parent: Option<TraceParent>,
    calls: HashMap<CallNo, (String, u64)>,
}

/// How a tool call ended.
struct EndedCall {
    turn: TurnNo,
    call: CallNo,
    ok: bool,
    code: Option<ErrorCode>,
    bytes: u64,
    wall_ms: f64,
}

/// How a turn ended.
struct EndedTurn {
    turn: TurnNo,
    outcome: Outcome,
    code: Option<ErrorCode>,
    usage: Usage,
}

impl SpanBuilder {
    /// Adds the spans that end with a report to `spans`.
    pub fn take(&mut self, report: SessionReport, spans: &mut Vec<FinishedSpan>) {
        let session = &*report.session;
        for (at_ms, fact) in report.facts {
            spans.extend(self.step(session, at_ms, fact));
        }
    }

    fn step(&mut self, session: &SessionIdentity, at_ms: u64, fact: Fact) -> Option<FinishedSpan> {
        match fact {
            Fact::TurnAccepted { turn, id, parent } => {
                let (id, calls) = (Some(id), HashMap::new());
                self.open(session, turn, OpenSpan { id, began_at_ms: at_ms, parent, calls });
                None
            }
            Fact::ToolCall { turn, call, name } => {
                let open = self.turns.get_mut(&(session.span, turn))?;
                if open.calls.len() < OPEN_CALLS_MAX {
                    open.calls.insert(call, (name, at_ms));
                }
                None
            }
            Fact::ToolEnded { turn, call, ok, code, bytes, wall_ms } => {
                self.call(session, at_ms, EndedCall { turn, call, ok, code, bytes, wall_ms })
            }
            Fact::Egress { turn, host, port, allowed } => {
                self.egress(session, at_ms, turn, (&host, port, allowed))
            }
            Fact::TurnEnded { turn, outcome, code, usage } => {
                self.turn(session, at_ms, EndedTurn { turn, outcome, code, usage })
            }
            Fact::WorkerReady { start, restarts } => worker_ready(session, at_ms, start, restarts),
            Fact::SessionEnded { reason } => {
                self.forget(session);
                session_ended(session, at_ms, reason)
            }
            Fact::File(transfer) => file(session, at_ms, *transfer),
            Fact::Released => {
                self.forget(session);
                None
            }
        }
    }

    fn open(&mut self, session: &SessionIdentity, turn: TurnNo, begun: OpenSpan) {
        if self.turns.len() < OPEN_TURNS_MAX {
            self.turns.insert((session.span, turn), begun);
        }
    }

    /// Forgets the open turns of a session.
    fn forget(&mut self, session: &SessionIdentity) {
        let of_session = (session.span, TurnNo(0))..=(session.span, TurnNo(u64::MAX));
        let open: Vec<(SpanId, TurnNo)> =
            self.turns.range(of_session).map(|(key, _)| *key).collect();
        for key in open {
            self.turns.remove(&key);
        }
    }

    /// The context of a turn's span.
    fn context(&self, session: &SessionIdentity, turn: TurnNo) -> TraceParent {
        let open = self.turns.get(&(session.span, turn));
        session.of_turn(turn, open.and_then(|open| open.parent))
    }

    fn turn(
        &mut self,
        session: &SessionIdentity,
        at_ms: u64,
        ended: EndedTurn,
    ) -> Option<FinishedSpan> {
        let EndedTurn { turn, outcome, code, usage } = ended;
        let open = self.turns.remove(&(session.span, turn));
        let parent = open.as_ref().and_then(|open| open.parent);
        let TraceParent { trace, span, sampled } = session.of_turn(turn, parent);
        if !sampled {
            return None;
        }
        let began_at_ms = match &open {
            Some(open) => open.began_at_ms,
            // An earlier node accepted the turn.
            None => before(at_ms, usage.wall_ms),
        };
        let id = open.and_then(|open| open.id).unwrap_or_else(|| TurnId::from_number(turn));
        let mut attributes = of_session(session);
        attributes.extend([
            pair("windlass.turn.id", id.as_str()),
            pair("windlass.turn.number", turn.0),
            pair("windlass.turn.outcome", outcome_name(outcome)),
            pair("windlass.turn.usage.wall_ms", usage.wall_ms),
            pair("windlass.turn.usage.cpu_ms", usage.cpu_ms),
            pair("windlass.turn.usage.peak_rss_bytes", usage.peak_rss_bytes),
            pair("windlass.turn.usage.output_bytes", usage.output_bytes),
        ]);
        attributes.extend(code.map(|code| pair("windlass.error.code", code.as_str())));
        let failed = code.map_or_else(|| outcome_name(outcome), ErrorCode::as_str);
        Some(FinishedSpan {
            trace,
            span,
            parent: Some(parent.map_or(session.span, |parent| parent.span)),
            name: "turn",
            kind: if parent.is_some() { SpanKind::Server } else { SpanKind::Internal },
            began_at_ms,
            ended_at_ms: at_ms,
            attributes,
            // A turn in its client's trace still leads to its session.
            link: parent.map(|_| (session.trace, session.span)).filter(|_| session.sampled),
            failure: (outcome != Outcome::Ok).then_some(failed),
        })
    }

    fn call(
        &mut self,
        session: &SessionIdentity,
        at_ms: u64,
        ended: EndedCall,
    ) -> Option<FinishedSpan> {
        let EndedCall { turn, call, ok, code, bytes, wall_ms } = ended;
        let context = self.context(session, turn);
        let open = self.turns.get_mut(&(session.span, turn));
        let begun = open.and_then(|open| open.calls.remove(&call));
        let mut attributes = of_session(session);
        let began_at_ms =
            begun.as_ref().map_or_else(|| before(at_ms, wall_ms), |(_, at_ms)| *at_ms);
        let name = begun.map(|(name, _)| pair("windlass.tool.name", bounded(&name)));
        attributes.extend(name);
        attributes.extend([
            pair("windlass.turn.number", turn.0),
            pair("windlass.tool.call", call.0),
            pair("windlass.tool.ok", ok),
            pair("windlass.tool.bytes", bytes),
            pair("windlass.tool.wall_ms", wall_ms),
        ]);
        attributes.extend(code.map(|code| pair("windlass.error.code", code.as_str())));
        context.sampled.then(|| FinishedSpan {
            trace: context.trace,
            span: session.call_span(turn, call),
            parent: Some(context.span),
            name: "tool_call",
            kind: SpanKind::Client,
            began_at_ms,
            ended_at_ms: at_ms,
            attributes,
            link: None,
            failure: (!ok).then_some(code.map_or("failed", ErrorCode::as_str)),
        })
    }

    fn egress(
        &self,
        session: &SessionIdentity,
        at_ms: u64,
        turn: Option<TurnNo>,
        (host, port, allowed): (&str, u16, bool),
    ) -> Option<FinishedSpan> {
        let context = match turn {
            Some(turn) => self.context(session, turn),
            None => of_itself(session),
        };
        let mut attributes = of_session(session);
        attributes.extend(turn.map(|turn| pair("windlass.turn.number", turn.0)));
        attributes.extend([
            pair("windlass.egress.host", bounded(host)),
            pair("windlass.egress.port", u64::from(port)),
            pair("windlass.egress.allowed", allowed),
        ]);
        let flag = [u8::from(allowed)];
        let parts: [&[u8]; 5] =
            [b"egress", &at_ms.to_be_bytes(), host.as_bytes(), &port.to_be_bytes(), &flag];
        context.sampled.then(|| FinishedSpan {
            trace: context.trace,
            span: session.other_span(&parts),
            parent: Some(context.span),
            name: "egress",
            kind: SpanKind::Client,
            began_at_ms: at_ms,
            ended_at_ms: at_ms,
            attributes,
            link: None,
            failure: (!allowed).then_some("refused"),
        })
    }
}

/// The first start of a worker, or a restart.
fn worker_ready(
    session: &SessionIdentity,
    at_ms: u64,
    start: StartedBy,
    restarts: u32,
) -> Option<FinishedSpan> {
    let mut attributes = of_session(session);
    attributes.push(pair("windlass.session.started_by", start_name(start)));
    attributes.push(pair("windlass.session.restarts", u64::from(restarts)));
    let (name, began_at_ms) = match restarts {
        0 => ("session_start", session.created_at_ms),
        _ => ("worker_restart", at_ms),
    };
    session.sampled.then(|| FinishedSpan {
        trace: session.trace,
        span: session.other_span(&[b"start", &restarts.to_be_bytes()]),
        parent: Some(session.span),
        name,
        kind: SpanKind::Internal,
        began_at_ms,
        ended_at_ms: at_ms,
        attributes,
        link: None,
        failure: None,
    })
}

fn session_ended(session: &SessionIdentity, at_ms: u64, reason: EndReason) -> Option<FinishedSpan> {
    let reason = end_name(reason);
    let is_usual = ["closed", "idle"].contains(&reason);
    let mut attributes = of_session(session);
    attributes.push(pair("windlass.session.end_reason", reason));
    session.sampled.then(|| FinishedSpan {
        trace: session.trace,
        span: session.span,
        parent: session.parent,
        name: "session",
        kind: if session.parent.is_some() { SpanKind::Server } else { SpanKind::Internal },
        began_at_ms: session.created_at_ms,
        ended_at_ms: at_ms,
        attributes,
        link: None,
        failure: (!is_usual).then_some(reason),
    })
}

fn file(session: &SessionIdentity, at_ms: u64, transfer: FileTransfer) -> Option<FinishedSpan> {
    let FileTransfer { direction, path, bytes, began_at_ms, parent } = transfer;
    let context = parent.unwrap_or_else(|| of_itself(session));
    let name = match direction {
        FileDirection::Download => "file_download",
        FileDirection::Upload => "file_upload",
    };
    let mut attributes = of_session(session);
    attributes.push(pair("windlass.file.path", bounded(&path)));
    attributes.extend(bytes.map(|bytes| pair("windlass.file.bytes", bytes)));
    let parts: [&[u8]; 4] =
        [name.as_bytes(), &began_at_ms.to_be_bytes(), &at_ms.to_be_bytes(), path.as_bytes()];
    context.sampled.then(|| FinishedSpan {
        trace: context.trace,
        span: session.other_span(&parts),
        parent: Some(context.span),
        name,
        kind: SpanKind::Server,
        began_at_ms,
        ended_at_ms: at_ms,
        attributes,
        link: None,
        failure: bytes.is_none().then_some("failed"),
    })
}

/// The context of the session's own span.
fn of_itself(session: &SessionIdentity) -> TraceParent {
    let SessionIdentity { trace, span, sampled, .. } = session;
    let (trace, span): (TraceId, SpanId) = (*trace, *span);
    TraceParent { trace, span, sampled: *sampled }
}

/// The attributes of every span of a session.
fn of_session(session: &SessionIdentity) -> Attributes {
    let mut attributes: Attributes = vec![
        pair("windlass.session.id", session.id.as_str()),
        pair("windlass.session.kind", bounded(&session.kind)),
    ];
    if let Some(tenant) = session.id.tenant() {
        attributes.push(pair("windlass.session.tenant", tenant.as_str()));
    }
    attributes
}

fn pair(name: &'static str, value: impl Into<AttributeValue>) -> (&'static str, AttributeValue) {
    (name, value.into())
}

/// The start of a text that is too long for an attribute.
fn bounded(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default()
}

/// The time so many milliseconds before `at_ms`.
fn before(at_ms: u64, wall_ms: f64) -> u64 {
    let wall = std::time::Duration::try_from_secs_f64(wall_ms / 1e3).unwrap_or_default();
    at_ms.saturating_sub(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX))
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Error => "error",
        Outcome::Interrupted => "interrupted",
        Outcome::TimedOut => "timed_out",
        Outcome::Lost => "lost",
    }
}

fn start_name(start: StartedBy) -> &'static str {
    match start {
        StartedBy::Exec => "exec",
        StartedBy::Zygote => "zygote",
        StartedBy::Pool => "pool",
        StartedBy::Fork => "fork",
    }
}

fn end_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Closed => "closed",
        EndReason::WorkerExited => "worker_exited",
        EndReason::StartFailed => "start_failed",
        EndReason::WallTime => "wall_time",
        EndReason::Disk => "disk",
        EndReason::Idle => "idle",
        EndReason::ProtocolError => "protocol_error",
        EndReason::KeeperLost => "keeper_lost",
        EndReason::NodeGone => "node_gone",
        EndReason::Fenced => "fenced",
        EndReason::Lost => "lost",
    }
}

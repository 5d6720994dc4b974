//! The spans of a session, its turns and its calls have ids that follow from the session's name and time of creation. So
//! a node that takes a session over knows the ids of the node before it, and no id is stored.

use ring::digest::{Context, SHA256};
use windlass_protocol::{CallNo, SessionId, TurnNo};

use crate::{SpanId, TraceId, TraceParent};

/// One session, for its spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionIdentity {
    pub id: SessionId,
    /// The kind of worker.
    pub kind: String,
    pub created_at_ms: u64,
    pub trace: TraceId,
    pub span: SpanId,
    /// The span of the client that created the session.
    pub parent: Option<SpanId>,
    /// Whether spans are recorded that have no other parent.
    pub sampled: bool,
}

impl SessionIdentity {
    /// `sample` is the share of sessions to record if their clients sent no `traceparent`.
    pub fn new(
        id: SessionId,
        kind: String,
        created_at_ms: u64,
        parent: Option<TraceParent>,
        sample: f64,
    ) -> Self {
        let digest = digest(&[b"session", id.as_str().as_bytes(), &created_at_ms.to_be_bytes()]);
        let (trace, span) = (TraceId(head(&digest)), span_of(digest.get(16..).unwrap_or(&[])));
        let own = Self {
            sampled: is_sampled(trace, sample),
            parent: None,
            id,
            kind,
            created_at_ms,
            trace,
            span,
        };
        match parent {
            None => own,
            Some(TraceParent { trace, span, sampled }) => {
                Self { trace, parent: Some(span), sampled, ..own }
            }
        }
    }

    /// The id of a turn's span.
    pub fn turn_span(&self, turn: TurnNo) -> SpanId {
        span_of(&digest(&[b"turn", &self.span.0, &turn.0.to_be_bytes()]))
    }

    /// The id of the span of a tool call.
    pub(crate) fn call_span(&self, turn: TurnNo, call: CallNo) -> SpanId {
        let (turn, call) = (self.turn_span(turn), call.0.to_be_bytes());
        span_of(&digest(&[b"call", &turn.0, &call]))
    }

    /// The id of another span of the session. `parts` distinguish it from the others.
    pub(crate) fn other_span(&self, parts: &[&[u8]]) -> SpanId {
        let own: [&[u8]; 2] = [b"other", &self.span.0];
        let all: Vec<&[u8]> = own.into_iter().chain(parts.iter().copied()).collect();
        span_of(&digest(&all))
    }

    /// What the code of a turn passes on to the services that it calls.
    pub fn of_turn(&self, turn: TurnNo, parent: Option<TraceParent>) -> TraceParent {
        let (trace, sampled) =
            parent.map_or((self.trace, self.sampled), |parent| (parent.trace, parent.sampled));
        TraceParent { trace, span: self.turn_span(turn), sampled }
    }
}

/// Whether a trace is within the share to record. The decision follows from the id, as in the samplers of
/// OpenTelemetry.
fn is_sampled(TraceId(id): TraceId, sample: f64) -> bool {
    let [.., a, b, c, d] = id;
    f64::from(u32::from_be_bytes([a, b, c, d])) < sample * (f64::from(u32::MAX) + 1.0)
}

/// The digest of parts. Each part has its length before it, so different parts give different digests.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&part.len().to_be_bytes());
        context.update(part);
    }
    head(context.finish().as_ref())
}

/// The first bytes, and zeros for those that are missing.
fn head<const BYTES: usize>(bytes: &[u8]) -> [u8; BYTES] {
    let mut head = [0; BYTES];
    for (to, from) in head.iter_mut().zip(bytes) {
        *to = *from;
    }
    head
}

fn span_of(digest: &[u8]) -> SpanId {
    SpanId(head(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, at: u64, parent: Option<TraceParent>, sample: f64) -> SessionIdentity {
        SessionIdentity::new(
            SessionId::parse(name).unwrap(),
            "python".to_owned(),
            at,
            parent,
            sample,
        )
    }

    #[test]
    fn ids_follow_from_the_session_and_differ_between_spans() {
        let first = identity("a", 1, None, 1.0);
        assert_eq!(first, identity("a", 1, None, 1.0));
        let spans = [
            first.span,
            identity("a", 2, None, 1.0).span,
            identity("b", 1, None, 1.0).span,
            first.turn_span(TurnNo(1)),
            first.turn_span(TurnNo(2)),
            first.call_span(TurnNo(1), CallNo(1)),
            first.call_span(TurnNo(2), CallNo(1)),
            first.other_span(&[b"x"]),
            first.other_span(&[b"x", b""]),
        ];
        let distinct: std::collections::BTreeSet<SpanId> = spans.into_iter().collect();
        assert_eq!(distinct.len(), spans.len());
        assert_ne!(first.trace, identity("b", 1, None, 1.0).trace);
    }

    #[test]
    fn the_parent_decides_the_trace_and_whether_it_is_recorded() {
        let own = identity("a", 1, None, 0.0);
        assert!(!own.sampled);
        for sampled in [true, false] {
            let (trace, span) = (TraceId([7; 16]), SpanId([8; 8]));
            let parent = TraceParent { trace, span, sampled };
            let child = identity("a", 1, Some(parent), 0.5);
            assert_eq!((child.trace, child.parent, child.sampled), (trace, Some(span), sampled));
            assert_eq!(child.span, own.span);
            let turn = own.of_turn(TurnNo(3), Some(parent));
            assert_eq!((turn.trace, turn.sampled), (trace, sampled));
            assert_eq!(turn.span, own.turn_span(TurnNo(3)));
        }
        assert_eq!(own.of_turn(TurnNo(3), None).trace, own.trace);
    }

    #[test]
    fn a_share_of_the_sessions_is_sampled() {
        let sampled = |sample: f64| {
            let all = (0..1000).map(|at| identity("a", at, None, sample));
            all.filter(|identity| identity.sampled).count()
        };
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 1000));
        let half = sampled(0.5);
        assert!((400..600).contains(&half), "{half}");
    }
}

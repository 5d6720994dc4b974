//! What a session's owner reports for spans, if the node has telemetry: facts of the records that are in the journal. An
//! append pays one entry in a bounded queue and never waits.

use std::sync::Arc;

use windlass_journal::{NewEvent, NewSession};
use windlass_protocol::TurnNo;
use windlass_protocol::event::EventKind;
use windlass_telemetry::{Fact, SessionIdentity, SessionReport, Telemetry, TraceParent};

use super::spec::Spec;
use crate::clock::now_ms;

/// The variable that names the span of a turn to its code. A value of the client wins.
pub(super) const TRACEPARENT: &str = "TRACEPARENT";

/// The spans of one session.
#[derive(Debug)]
pub(super) struct SessionTrace {
    telemetry: Arc<Telemetry>,
    session: Arc<SessionIdentity>,
    /// The clients' spans of turns that have not ended. Turns without one have no entry.
    parents: Vec<(TurnNo, TraceParent)>,
    /// Whether the client has set [`TRACEPARENT`] for the whole session.
    is_named_by_client: bool,
}

/// What a batch of records says.
#[derive(Debug, Default)]
pub(super) struct TracedBatch {
    facts: Vec<(u64, Fact)>,
    /// Turns that end, if any turn has a client's span.
    ended: Vec<TurnNo>,
}

impl SessionTrace {
    /// `None` on a node without telemetry.
    pub fn new(
        telemetry: Option<&Arc<Telemetry>>,
        created: &NewSession,
        spec: &Spec,
    ) -> Option<Self> {
        let telemetry = telemetry?.clone();
        let (id, kind) = (created.id.clone(), created.worker_kind.clone());
        let session = telemetry.session(id, kind, created.created_at_ms, spec.trace);
        Some(Self {
            telemetry,
            session: Arc::new(session),
            parents: Vec::new(),
            is_named_by_client: spec.env_has_traceparent,
        })
    }

    /// The trace of a session without an owner, whose record may be unreadable.
    pub fn of_record(telemetry: Option<&Arc<Telemetry>>, created: &NewSession) -> Option<Self> {
        // Most nodes have no telemetry and need not read the record.
        let telemetry = Some(telemetry?);
        Self::new(telemetry, created, &Spec::of(created).unwrap_or_default())
    }

    /// Notes the client's span of a turn that is about to be accepted. A turn that was refused had the same number.
    pub fn expect(&mut self, turn: TurnNo, parent: Option<TraceParent>) {
        self.parents.retain(|(of, _)| *of != turn);
        self.parents.extend(parent.map(|parent| (turn, parent)));
    }

    /// What the code of a turn passes on, if the turn is recorded and the client has not decided it.
    pub fn of_turn(&self, turn: TurnNo) -> Option<TraceParent> {
        if self.is_named_by_client {
            return None;
        }
        Some(self.session.of_turn(turn, self.parent_of(turn))).filter(|own| own.sampled)
    }

    fn parent_of(&self, turn: TurnNo) -> Option<TraceParent> {
        self.parents.iter().find(|(of, _)| *of == turn).map(|(_, parent)| *parent)
    }

    /// What these records say, before they are written.
    pub fn read(&self, records: &[NewEvent]) -> TracedBatch {
        let mut batch = TracedBatch::default();
        if !self.parents.is_empty() {
            let ends = records.iter().filter(|one| matches!(one.kind, EventKind::TurnEnded { .. }));
            batch.ended.extend(ends.filter_map(|record| record.turn));
        }
        if self.session.sampled || self.parents.iter().any(|(_, parent)| parent.sampled) {
            batch.facts.extend(records.iter().filter_map(|record| {
                let fact = Fact::of(record.turn, &record.kind, |turn| self.parent_of(turn))?;
                Some((record.at_ms, fact))
            }));
        }
        batch
    }

    /// Reports what records say that are written now.
    pub fn report(&mut self, TracedBatch { facts, ended }: TracedBatch) {
        if !ended.is_empty() {
            self.parents.retain(|(of, _)| !ended.contains(of));
        }
        if !facts.is_empty() {
            self.telemetry.report(SessionReport { session: self.session.clone(), facts });
        }
    }

    /// Reports something that has no record.
    pub fn report_now(&mut self, fact: Fact) {
        self.report(TracedBatch { facts: vec![(now_ms(), fact)], ended: Vec::new() });
    }
}

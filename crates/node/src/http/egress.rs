//! The egress log of a session: of a live one from its ledger, of an ended one from the journal.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use windlass_journal::EventReader;
use windlass_protocol::api::{ApiError, EgressDecision, EgressLog};
use windlass_protocol::event::EventKind;
use windlass_protocol::{Event, Seq};

use super::App;
use super::body::InPath;
use super::read_log::reader_of;
use super::reply::{Answer, internal, session_id};
use super::sessions::ended;

/// Events and body bytes of one read of the journal.
const EVENTS_MAX: usize = 1000;
const BATCH_BYTES: usize = 512 * 1024;

/// Maximum number of distinct decisions in the log of an ended session. Later ones are left out.
const DECISIONS_MAX: usize = 1024;

/// What a session's code reached for, and what was decided. The decisions of an ended session come from its events,
/// which have no counts.
#[utoipa::path(get, path = "/v1/sessions/{session}/egress", params(("session" = String, Path)),
    responses((status = 200, body = EgressLog), (status = "default", body = ApiError)))]
pub(super) async fn log(
    State(app): State<App>,
    InPath(session): InPath<String>,
) -> Answer<Json<EgressLog>> {
    let id = session_id(session)?;
    if let Some(handle) = app.sessions.find(&id) {
        let log = handle.egress.as_ref().map(|ledger| ledger.log());
        return Ok(Json(log.unwrap_or_default()));
    }
    let since_ms = ended(&app, &id).await?.created_at_ms;
    let mut reader = reader_of(&app, &id)?;
    // As a search does, this reads the whole journal of the session.
    let read = move || recorded(&mut *reader);
    let bounds = app.serving.bounds.of_session(&id);
    let decisions = bounds.searches.run(read).await?.map_err(internal)?;
    Ok(Json(EgressLog { since_ms, decisions, from_journal: true }))
}

/// The decisions in the journal of a session, latest first.
fn recorded(
    reader: &mut dyn EventReader,
) -> Result<Vec<EgressDecision>, windlass_journal::ReadError> {
    let mut found = RecordedDecisions::default();
    let mut after = Seq(0);
    loop {
        let events = reader.events(after, EVENTS_MAX, BATCH_BYTES)?;
        let Some((last, _)) = events.last() else { return Ok(found.latest_first()) };
        after = last.seq;
        events.into_iter().for_each(|(event, _)| found.add(event));
    }
}

/// Decisions by host, port, answer and reason, with the number of their event.
#[derive(Debug, Default)]
struct RecordedDecisions(HashMap<(String, u16, bool, String), (Seq, EgressDecision)>);

impl RecordedDecisions {
    fn add(&mut self, event: Event) {
        let EventKind::Egress { host, port, allowed, reason } = event.kind else { return };
        let key = (host.clone(), port, allowed, reason.clone());
        if self.0.len() >= DECISIONS_MAX && !self.0.contains_key(&key) {
            return;
        }
        // A later node reports its first decision of a kind again.
        let decision = EgressDecision {
            host,
            port,
            allowed,
            reason,
            count: 0,
            sent_bytes: 0,
            received_bytes: 0,
            last_at_ms: event.at_ms,
        };
        self.0.insert(key, (event.seq, decision));
    }

    fn latest_first(self) -> Vec<EgressDecision> {
        let mut decisions: Vec<_> = self.0.into_values().collect();
        decisions.sort_by_key(|(seq, _)| std::cmp::Reverse(*seq));
        decisions.into_iter().map(|(_, decision)| decision).collect()
    }
}

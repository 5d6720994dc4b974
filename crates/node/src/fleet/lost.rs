//! What is left of a session that was lost with its node: its events, as far as the fleet has a copy of them. Any node
//! answers `GET` requests for the session, for its events, and for recorded turns, output and displays. All other requests
//! are refused. The same requests are answered for a session that has ended, while its node does not answer, if the copy
//! is complete.
//!
//! The copy is read batch by batch, so a request costs the memory of a few batches. A batch in the middle is found by
//! bisection. Requests for turns, output and displays read a copy of bounded size whole ([`recorded`]).

mod recorded;

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::Query;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Response, Uri};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use windlass_fleet::FleetStore;
use windlass_fleet::store::{CopiedBatch, FleetStoreError};
use windlass_journal::{NewSession, SessionFacts};
use windlass_lifecycle::fleet::CopyHead;
use windlass_protocol::api::{Ended, EventItem, EventsQuery, Session, SessionState};
use windlass_protocol::event::{EndReason, EventKind};
use windlass_protocol::{ErrorCode, NodeName, Revision, Seq, SessionId};

use super::FleetNode;
use super::copying::CREATED;
use crate::bounds::BudgetShare;
use crate::context::Context;
use crate::event_stream::{EventTextError, StreamFrame, frames, resume_after};
use crate::failure::Failure;
use crate::session::receipts;
use crate::session::start;
use recorded::RecordedPart;

pub(crate) use recorded::CopiedLog;

/// Maximum number of events and of their bytes in one page.
const EVENTS_MAX: usize = 1000;
const PAGE_BYTES_MAX: usize = 512 * 1024;

/// Maximum number of batches that are read for the summary of a session. Of a longer copy, the last batch is read too.
const FOLDED_BATCHES_MAX: usize = 4096;

/// A session that was lost, or has ended on a node that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostSession {
    pub session: SessionId,
    pub node: NodeName,
    /// The revision of its entry: the batches of its copy have it.
    pub incarnation: Revision,
}

impl LostSession {
    /// The refusal of a request that needs the session itself. `copied` is the last event that the copy has.
    pub fn refusal(&self, copied: Option<Seq>) -> Failure {
        let Self { session, node, .. } = self;
        let copy = match copied {
            Some(last) => format!(
                "events up to {last} were copied; GET /v1/sessions/{session}/events returns them"
            ),
            None => "no events were copied".to_owned(),
        };
        let message = format!("session {session} was lost with node {node}; {copy}");
        Failure::new(ErrorCode::SessionLost, message)
    }

    fn ended(&self, copied: Option<Seq>) -> Ended {
        let node = &self.node;
        let message = match copied {
            Some(last) => format!("node {node} was lost; events up to {last} were copied"),
            None => format!("node {node} was lost; no events were copied"),
        };
        let receipt = receipts::lost_with_node(&self.session, copied);
        Ended { reason: EndReason::Lost, message: Some(message), receipt: Some(receipt) }
    }
}

/// What a client wants to know of a lost session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LostQuestion {
    Session,
    Events,
    Recorded(RecordedPart),
}

/// The answer to a request for a lost session.
pub(super) enum LostAnswer {
    Response(Response<Body>),
    /// The handlers answer, and read this copy instead of the journal.
    Copy(CopiedLog),
}

impl LostQuestion {
    fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let rest = uri.path().strip_prefix("/v1/sessions/").filter(|_| method == Method::GET)?;
        match rest.split_once('/') {
            None => Some(Self::Session),
            Some((_, "events")) => Some(Self::Events),
            Some((_, below)) => RecordedPart::of(below).map(Self::Recorded),
        }
    }
}

/// Answers a request for a lost session.
pub(super) async fn answer(
    context: &Context,
    fleet: &FleetNode,
    lost: &LostSession,
    request: &Parts,
) -> Result<LostAnswer, Failure> {
    match LostQuestion::of(&request.method, &request.uri) {
        Some(LostQuestion::Session) => look(context, fleet, lost).await.map(LostAnswer::Response),
        Some(LostQuestion::Events) => {
            events(context, fleet, lost, request).await.map(LostAnswer::Response)
        }
        Some(LostQuestion::Recorded(part)) => {
            recorded::read(context, fleet, lost, part).await.map(LostAnswer::Copy)
        }
        None => Err(refusal(fleet, lost).await),
    }
}

/// Answers a request for a session that has ended, and whose node does not answer. `None` if that needs the node.
pub(super) async fn answer_ended(
    context: &Context,
    fleet: &FleetNode,
    session: &SessionId,
    request: &Parts,
) -> Option<LostAnswer> {
    LostQuestion::of(&request.method, &request.uri)?;
    let ended = fleet.find_ended(session).await?;
    if !has_end(context, fleet, &ended).await.ok()? {
        return None;
    }
    answer(context, fleet, &ended, request).await.ok()
}

/// Whether the session is copied up to its end.
async fn has_end(
    context: &Context,
    fleet: &FleetNode,
    ended: &LostSession,
) -> Result<bool, Failure> {
    let _slot = context.serving.bounds.of_session(&ended.session).lost_reads.enter().await?;
    let mut reader = CopyReader::open(fleet, ended).await?;
    if !reader.skip_to_last() {
        return Ok(false);
    }
    let Some(batch) = reader.batch().await? else { return Ok(false) };
    ends_session(&batch.events).map_err(|error| unreadable(ended, &error))
}

/// Whether the last event of a batch is the end of its session.
fn ends_session(batch: &Bytes) -> Result<bool, EventTextError> {
    let data = frames(batch)?.into_iter().rev().find_map(|frame| match frame {
        StreamFrame::Event { data, .. } => Some(data),
        StreamFrame::Comment(_) => None,
    });
    let last = data.and_then(|data| serde_json::from_slice::<EventItem>(&data).ok());
    Ok(last.is_some_and(|last| matches!(last.event.kind, EventKind::SessionEnded { .. })))
}

/// The refusal of a request, with the last event of the copy if the store says it.
async fn refusal(fleet: &FleetNode, lost: &LostSession) -> Failure {
    match CopyReader::open(fleet, lost).await {
        Ok(reader) => lost.refusal(reader.last),
        Err(_) => {
            let LostSession { session, node, .. } = lost;
            let message = format!("session {session} was lost with node {node}");
            Failure::new(ErrorCode::SessionLost, message)
        }
    }
}

async fn look(
    context: &Context,
    fleet: &FleetNode,
    lost: &LostSession,
) -> Result<Response<Body>, Failure> {
    let _slot = context.serving.bounds.of_session(&lost.session).lost_reads.enter().await?;
    let mut reader = CopyReader::open(fleet, lost).await?;
    reader.seek(Seq(0)).await?;
    let mut fold = CopyFold::default();
    let mut batches = 0;
    while batches < FOLDED_BATCHES_MAX
        && let Some(batch) = reader.batch().await?
    {
        fold.add(&batch.events).map_err(|error| unreadable(lost, &error))?;
        batches += 1;
    }
    if reader.skip_to_last()
        && let Some(batch) = reader.batch().await?
    {
        fold.add(&batch.events).map_err(|error| unreadable(lost, &error))?;
    }
    let session = fold.session(lost, reader.last)?;
    let json = serde_json::to_vec(&session).map_err(|error| unreadable(lost, &error))?;
    json_response(context, &lost.session, json)
}

async fn events(
    context: &Context,
    fleet: &FleetNode,
    lost: &LostSession,
    request: &Parts,
) -> Result<Response<Body>, Failure> {
    let query = Query::<EventsQuery>::try_from_uri(&request.uri);
    let query = query.map_err(|error| Failure::new(ErrorCode::BadRequest, error.body_text()))?;
    let Query(query) = query;
    let after = resume_after(&request.headers).unwrap_or(Seq(query.after));
    let slot = context.serving.bounds.of_session(&lost.session).lost_reads.enter().await?;
    let mut reader = CopyReader::open(fleet, lost).await?;
    reader.seek(after).await?;
    if wants_stream(&request.headers) {
        drop(slot);
        let place = context.serving.bounds.of_session(&lost.session).long_connections.claim(1)?;
        return Ok(follow(reader, after, place));
    }
    let limit = query.limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX);
    let json = page(&mut reader, after, limit).await?;
    json_response(context, &lost.session, json)
}

pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT);
    accept.is_some_and(|accept| accept.as_bytes().starts_with(b"text/event-stream"))
}

fn json_response(
    context: &Context,
    session: &SessionId,
    json: Vec<u8>,
) -> Result<Response<Body>, Failure> {
    let json = context.serving.bounds.of_session(session).answers.counted(json.into())?;
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}

/// A page of events as JSON: an `api::Events`.
async fn page(reader: &mut CopyReader, after: Seq, limit: usize) -> Result<Vec<u8>, Failure> {
    let mut json = b"{\"events\":[".to_vec();
    let (mut last, mut count, mut has_room) = (after, 0, true);
    while has_room && let Some(batch) = reader.batch().await? {
        for (seq, data, _) in reader.events_in(&batch, after)? {
            has_room = count < limit && (count == 0 || json.len() + data.len() <= PAGE_BYTES_MAX);
            if !has_room {
                break;
            }
            if count > 0 {
                json.push(b',');
            }
            json.extend_from_slice(&data);
            (last, count) = (seq, count + 1);
        }
    }
    let ended = has_room || reader.last.is_none_or(|end| last >= end);
    json.extend_from_slice(format!("],\"after\":{last},\"ended\":{ended}}}").as_bytes());
    Ok(json)
}

/// The events after an event as a stream, which ends after the last copied event.
fn follow(reader: CopyReader, after: Seq, place: BudgetShare) -> Response<Body> {
    let pieces = stream::unfold((reader, place), move |(mut reader, place)| async move {
        loop {
            // After an error the client connects again, and resumes after its last event.
            let batch = reader.batch().await.ok()??;
            let found = reader.events_in(&batch, after).ok()?;
            let mut piece = Vec::with_capacity(batch.events.len());
            found.iter().for_each(|(_, _, whole)| piece.extend_from_slice(whole));
            if !piece.is_empty() {
                return Some((Ok::<_, Infallible>(Bytes::from(piece)), (reader, place)));
            }
        }
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(pieces)).into_response()
}

/// Reads the copy of a lost session, batch by batch.
struct CopyReader {
    store: FleetStore,
    lost: LostSession,
    /// The revision of the last batch, or 0 if the session has no copy.
    end: Revision,
    /// The last copied event.
    last: Option<Seq>,
    /// Batches up to this revision are read.
    at: Revision,
}

impl CopyReader {
    async fn open(fleet: &FleetNode, lost: &LostSession) -> Result<Self, Failure> {
        let joined = fleet.joined().ok_or_else(|| fleet.not_joined())?;
        let store = joined.store.clone();
        let head =
            store.read_copy_head(&lost.session).await.map_err(|error| no_copy(lost, &error))?;
        let own = head.record.filter(|own| own.incarnation == lost.incarnation);
        let (end, last) = match own {
            Some(own) => (head.revision, Some(own.last)),
            None => (Revision(0), None),
        };
        Ok(Self { store, lost: lost.clone(), end, last, at: Revision(0) })
    }

    /// The following batch. `None` at the end of the copy.
    async fn batch(&mut self) -> Result<Option<CopiedBatch>, Failure> {
        while self.at < self.end {
            let Some((batch, revision)) = self.read(self.at).await? else { break };
            self.at = revision;
            if revision <= self.end && batch.head.incarnation == self.lost.incarnation {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Goes to the batch that has the first event after `after`.
    async fn seek(&mut self, after: Seq) -> Result<(), Failure> {
        let is_behind = |head: &CopyHead| {
            let own = head.incarnation.cmp(&self.lost.incarnation);
            own.then(head.last.cmp(&after)).is_gt()
        };
        // The batch lies behind `low`, and is the first one behind `high` or lies before that one.
        let (mut low, mut high) = (Revision(0), self.end);
        let mut middle = low;
        while low.0 + 1 < high.0 {
            match self.read(middle).await? {
                Some((batch, revision)) if !is_behind(&batch.head) => low = revision,
                Some(_) | None => high = middle,
            }
            middle = Revision(low.0 + high.0.saturating_sub(low.0) / 2);
        }
        self.at = low;
        Ok(())
    }

    /// Goes to the last batch. Returns false if it is read already.
    fn skip_to_last(&mut self) -> bool {
        let has_more = self.at < self.end;
        if has_more {
            self.at = Revision(self.end.0 - 1);
        }
        has_more
    }

    /// The events of a batch after an event: the number, the JSON and the frame of each.
    fn events_in(
        &self,
        batch: &CopiedBatch,
        after: Seq,
    ) -> Result<Vec<(Seq, Bytes, Bytes)>, Failure> {
        let found = frames(&batch.events).map_err(|error| unreadable(&self.lost, &error))?;
        let later = found.into_iter().filter_map(|frame| match frame {
            StreamFrame::Event { seq, data, whole } if seq > after => Some((seq, data, whole)),
            StreamFrame::Event { .. } | StreamFrame::Comment(_) => None,
        });
        Ok(later.collect())
    }

    async fn read(&self, after: Revision) -> Result<Option<(CopiedBatch, Revision)>, Failure> {
        let read = self.store.read_copy(&self.lost.session, after).await;
        read.map_err(|error| no_copy(&self.lost, &error))
    }
}

fn no_copy(lost: &LostSession, error: &FleetStoreError) -> Failure {
    let LostSession { session, node, .. } = lost;
    let message = format!(
        "session {session} was lost with node {node}, and its copy cannot be read now: {error}"
    );
    Failure::new(ErrorCode::FleetUnavailable, message)
}

fn unreadable(lost: &LostSession, error: &dyn std::error::Error) -> Failure {
    let session = &lost.session;
    Failure::internal(&format!("the copy of session {session} cannot be read: {error}"))
}

/// The facts of a session, folded from its copy.
#[derive(Debug, Default)]
struct CopyFold(Option<SessionFacts>);

/// A batch that is not as the owner of the session writes it.
#[derive(Debug, thiserror::Error)]
enum CopyFoldError {
    #[error(transparent)]
    Text(#[from] EventTextError),
    #[error("the record of the session's creation: {0}")]
    Created(#[source] serde_json::Error),
}

impl CopyFold {
    fn add(&mut self, batch: &Bytes) -> Result<(), CopyFoldError> {
        for frame in frames(batch)? {
            match frame {
                StreamFrame::Comment(text) if self.0.is_none() => {
                    let Some(json) = text.strip_prefix(CREATED.as_bytes()) else { continue };
                    let created = serde_json::from_slice(json).map_err(CopyFoldError::Created)?;
                    self.0 = Some(SessionFacts::new(created));
                }
                StreamFrame::Comment(_) => {}
                StreamFrame::Event { data, .. } => {
                    // An event of a later release says nothing here.
                    if let Some(facts) = &mut self.0
                        && let Ok(item) = serde_json::from_slice::<EventItem>(&data)
                    {
                        facts.fold_copied(&item.event, item.bytes);
                    }
                }
            }
        }
        Ok(())
    }

    /// The session as clients see it. A session whose end was copied ended for the reason that its node wrote.
    fn session(self, lost: &LostSession, copied: Option<Seq>) -> Result<Session, Failure> {
        let mut facts = self.0.unwrap_or_else(|| SessionFacts::new(nothing_known(lost)));
        facts.last_seq = copied.unwrap_or_default();
        facts.worker_pid = None;
        if facts.ended.is_none() {
            facts.ended = Some(lost.ended(copied));
        }
        start::info(&facts, SessionState::Ended)
    }
}

/// The creation of a session of which only the name is known.
fn nothing_known(lost: &LostSession) -> NewSession {
    NewSession {
        id: lost.session.clone(),
        created_at_ms: 0,
        workspace: String::new(),
        worker_kind: String::new(),
        spec: serde_json::Value::Object(serde_json::Map::new()),
        quota_bytes: 0,
    }
}

#[cfg(test)]
mod tests;

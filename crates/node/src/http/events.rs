//! A session's events: some at a time by long-poll, or as a stream (SSE). Both read the journal,
//! so a slow reader costs no memory and misses nothing.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::watch;
use windlass_journal::SessionReader;
use windlass_protocol::api::{ApiError, EventItem, Events, EventsQuery};
use windlass_protocol::event::EventKind;
use windlass_protocol::limits::WAIT_MS_MAX;
use windlass_protocol::{Event, Seq};

use super::App;
use super::body::Asked;
use super::reply::{Answer, internal, session_id};
use super::turns::reader_of;

/// Events in one long-poll reply.
const EVENTS_MAX: usize = 1000;

/// Body bytes read for one reply or one piece of a stream.
const BATCH_BYTES: usize = 512 * 1024;

/// The same where the events were appended just now: they are in memory, and so few bytes of them
/// are read sooner than another thread is woken.
const FRESH_BATCH_BYTES: usize = 32 * 1024;

/// The header by which a client resumes a stream.
const LAST_EVENT_ID: &str = "last-event-id";

/// Events after a place; as a stream when the client accepts `text/event-stream`.
#[utoipa::path(get, path = "/v1/sessions/{session}/events",
    params(("session" = String, Path), EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "resume a stream after this event")),
    responses((status = 200, body = Events, content_type = "application/json"),
        (status = "default", body = ApiError)))]
pub(super) async fn events(
    State(app): State<App>,
    Path(session): Path<String>,
    Asked(query): Asked<EventsQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let id = session_id(session)?;
    let follower = Follower {
        reader: reader_of(&app, &id)?,
        seen: app.find(&id).map(|handle| handle.seen),
        after: resume_after(&headers).unwrap_or(Seq(query.after)),
        ended: false,
        fresh: false,
    };
    let wants_stream = headers
        .get(header::ACCEPT)
        .is_some_and(|accept| accept.as_bytes().starts_with(b"text/event-stream"));
    if wants_stream {
        return Ok(follow(follower));
    }
    some(follower, query).await.map(IntoResponse::into_response)
}

fn resume_after(headers: &HeaderMap) -> Option<Seq> {
    headers.get(LAST_EVENT_ID)?.to_str().ok()?.parse().ok().map(Seq)
}

/// A reader that knows how far it is and when more may come.
struct Follower {
    reader: SessionReader,
    /// Absent for a session that is over.
    seen: Option<watch::Receiver<Seq>>,
    after: Seq,
    ended: bool,
    /// The next events were appended while we waited for them.
    fresh: bool,
}

impl Follower {
    /// The next events, at once; none when there are none yet.
    async fn next(&mut self, limit: usize) -> Answer<Vec<EventItem>> {
        if self.reader.last_seq() <= self.after {
            return Ok(Vec::new());
        }
        let found = if std::mem::take(&mut self.fresh) {
            self.reader.events(self.after, limit, FRESH_BATCH_BYTES)
        } else {
            let (mut reader, after) = (self.reader.clone(), self.after);
            let (reader, found) = tokio::task::spawn_blocking(move || {
                let found = reader.events(after, limit, BATCH_BYTES);
                (reader, found)
            })
            .await
            .map_err(internal)?;
            self.reader = reader;
            found
        };
        let found = found.map_err(internal)?;
        if let Some((last, _)) = found.last() {
            self.after = last.seq;
            self.ended = matches!(last.kind, EventKind::SessionEnded { .. });
        }
        Ok(found.into_iter().map(|(event, body)| item(event, &body)).collect())
    }

    /// Waits until there is something after `self.after`; false when nothing ever will be.
    async fn more(&mut self) -> bool {
        let after = self.after;
        let Some(seen) = self.seen.as_mut().filter(|_| !self.ended) else { return false };
        let gone = seen.wait_for(|seq| *seq > after).await.is_err();
        self.fresh = !gone;
        if gone {
            // The sender goes when the session ends; its last events are in the journal by then.
            self.seen = None;
        }
        true
    }
}

async fn some(mut follower: Follower, query: EventsQuery) -> Answer<Json<Events>> {
    let limit = query.limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX);
    let mut events = follower.next(limit).await?;
    if events.is_empty() && query.wait_ms > 0 {
        let wait = Duration::from_millis(query.wait_ms.min(WAIT_MS_MAX));
        // Whether more came or the wait passed, the journal says what there is.
        let _ = tokio::time::timeout(wait, follower.more()).await;
        events = follower.next(limit).await?;
    }
    let ended = follower.ended || (events.is_empty() && follower.seen.is_none());
    Ok(Json(Events { events, after: follower.after, ended }))
}

fn follow(follower: Follower) -> Response {
    let pieces = stream::unfold(Some(follower), |follower| async {
        let mut follower = follower?;
        loop {
            let Ok(events) = follower.next(EVENTS_MAX).await else { return None };
            if !events.is_empty() {
                let piece = Ok::<_, Infallible>(sse(&events));
                return Some((piece, Some(follower)));
            }
            if !follower.more().await {
                return None;
            }
        }
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(pieces)).into_response()
}

fn sse(events: &[EventItem]) -> Bytes {
    let mut piece = Vec::with_capacity(events.len() * 128);
    for event in events {
        piece.extend_from_slice(format!("id: {}\ndata: ", event.event.seq).as_bytes());
        serde_json::to_writer(&mut piece, event).expect("events always serialise");
        piece.extend_from_slice(b"\n\n");
    }
    piece.into()
}

fn item(event: Event, body: &Bytes) -> EventItem {
    let bytes = body.len() as u64;
    let (text, base64) = match std::str::from_utf8(body) {
        Ok("") => (None, None),
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(base64::engine::general_purpose::STANDARD.encode(body))),
    };
    EventItem { event, text, base64, bytes }
}

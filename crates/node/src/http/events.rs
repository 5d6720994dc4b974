//! A session's events, page by page with long-polling or as a stream (SSE). Both read the journal, so a slow
//! client costs no memory and misses no event.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::watch;
use windlass_journal::EventReader;
use windlass_protocol::api::{ApiError, EventItem, Events, EventsQuery};
use windlass_protocol::event::EventKind;
use windlass_protocol::limits::WAIT_MS_MAX;
use windlass_protocol::{Event, Seq};

use super::App;
use super::body::{Asked, InPath};
use super::read_log::reader_of;
use super::reply::{Answer, internal, session_id};
use crate::bounds::Bounds;
use crate::event_stream::{item, resume_after, sse};
use crate::pieces::Piece;
use crate::session::idle::PresentClient;

/// Maximum number of events in one long-poll reply.
const EVENTS_MAX: usize = 1000;

/// Maximum number of body bytes in one reply.
const BATCH_BYTES: usize = 512 * 1024;

/// Maximum number of body bytes in one piece of a stream: this is what a client that does not read costs. So
/// few bytes of recent events are still in memory, and reading them is faster than waking another thread.
const PIECE_BYTES: usize = 32 * 1024;

/// Events after a place; as a stream when the client accepts `text/event-stream`.
#[utoipa::path(get, path = "/v1/sessions/{session}/events",
    params(("session" = String, Path), EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "resume a stream after this event")),
    responses((status = 200, body = Events, content_type = "application/json"),
        (status = "default", body = ApiError)))]
pub(super) async fn events(
    State(app): State<App>,
    InPath(session): InPath<String>,
    Asked(query): Asked<EventsQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let id = session_id(session)?;
    let reader = reader_of(&app, &id)?;
    let live = app.sessions.find(&id);
    let follower = Follower {
        reader,
        bounds: app.serving.bounds.of_session(&id),
        _client: live.as_ref().map(|handle| handle.clients.enter()),
        seen: live.map(|handle| handle.seen),
        after: resume_after(&headers).unwrap_or(Seq(query.after)),
        ended: false,
        fresh: false,
        app,
    };
    let wants_stream = headers
        .get(header::ACCEPT)
        .is_some_and(|accept| accept.as_bytes().starts_with(b"text/event-stream"));
    if wants_stream {
        return follow(follower);
    }
    some(follower, query).await
}

/// A reader of a session's events with its position. While it waits for events it holds no thread, no buffer
/// and no slot in a queue.
struct Follower {
    app: App,
    reader: Box<dyn EventReader>,
    /// What requests about the session may hold.
    bounds: Arc<Bounds>,
    /// Counts this follower as a client of a live session, so that the session is not idle.
    _client: Option<PresentClient>,
    /// Absent for a session that has ended.
    seen: Option<watch::Receiver<Seq>>,
    after: Seq,
    ended: bool,
    /// The next events were appended while the follower waited, so they are in memory.
    fresh: bool,
}

impl Follower {
    /// The next events, at most `limit`; empty if there are none yet.
    async fn page(&mut self, limit: usize) -> Answer<Vec<EventItem>> {
        if self.reader.last_seq() <= self.after {
            return Ok(Vec::new());
        }
        let found = if std::mem::take(&mut self.fresh) {
            self.reader.events(self.after, limit, PIECE_BYTES)
        } else {
            let (mut reader, after) = (self.reader.again(), self.after);
            let read = move || reader.events(after, limit, BATCH_BYTES);
            self.bounds.page_reads.run(read).await?
        };
        let found = found.map_err(internal)?;
        if let Some((last, _)) = found.last() {
            self.after = last.seq;
            self.ended = is_end(last);
        }
        Ok(found.into_iter().map(|(event, body)| item(event, &body)).collect())
    }

    /// The next piece of a stream; `None` if there are no events yet.
    async fn piece(&mut self) -> Answer<Option<Piece>> {
        if self.reader.last_seq() <= self.after {
            return Ok(None);
        }
        let piece = match self.shared() {
            Some(piece) => Some(piece),
            None if self.fresh => self.read_here()?,
            None => self.read_apart().await?,
        };
        self.fresh = false;
        if let Some(piece) = &piece {
            self.after = piece.last;
            self.ended = piece.ended;
        }
        Ok(piece)
    }

    /// Reads recent events, which are in memory, on this thread.
    fn read_here(&mut self) -> Answer<Option<Piece>> {
        let piece = read_piece(&mut *self.reader, self.after)?;
        self.share(self.after, piece.as_ref());
        Ok(piece)
    }

    /// Reads on another thread when a slot for reads is free.
    async fn read_apart(&mut self) -> Answer<Option<Piece>> {
        let turn = self.bounds.follower_reads.enter().await?;
        if let Some(piece) = self.shared() {
            // Another follower at the same event has read the piece meanwhile.
            return Ok(Some(piece));
        }
        let (mut reader, after) = (self.reader.again(), self.after);
        let reading = turn.run(move || {
            let read = read_piece(&mut *reader, after);
            (reader, read)
        });
        let (reader, read) = reading.await?;
        self.reader = reader;
        let piece = read?;
        self.share(after, piece.as_ref());
        Ok(piece)
    }

    fn shared(&self) -> Option<Piece> {
        self.app.serving.pieces.find(self.seen.as_ref()?, self.after)
    }

    fn share(&self, after: Seq, piece: Option<&Piece>) {
        if let (Some(seen), Some(piece)) = (&self.seen, piece) {
            self.app.serving.pieces.keep(seen, after, piece);
        }
    }

    /// Waits for an event after `self.after`. Returns false if there will be none.
    async fn more(&mut self) -> bool {
        let after = self.after;
        let Some(seen) = self.seen.as_mut().filter(|_| !self.ended) else { return false };
        let gone = seen.wait_for(|seq| *seq > after).await.is_err();
        self.fresh = !gone;
        if gone {
            // The sender is dropped when the session ends. Its last events are in the journal by then.
            self.seen = None;
        }
        true
    }
}

fn is_end(event: &Event) -> bool {
    matches!(event.kind, EventKind::SessionEnded { .. })
}

fn read_piece(reader: &mut dyn EventReader, after: Seq) -> Answer<Option<Piece>> {
    let found = reader.events(after, EVENTS_MAX, PIECE_BYTES).map_err(internal)?;
    let Some((last, _)) = found.last() else { return Ok(None) };
    let (last, ended) = (last.seq, is_end(last));
    Ok(Some(Piece { bytes: sse(found), last, ended }))
}

async fn some(mut follower: Follower, query: EventsQuery) -> Answer<Response> {
    let limit = query.limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX);
    let mut events = follower.page(limit).await?;
    if events.is_empty() && query.wait_ms > 0 {
        // If too many replies wait already, this one does not wait.
        if let Ok(_place) = follower.bounds.long_connections.claim(1) {
            let wait = Duration::from_millis(query.wait_ms.min(WAIT_MS_MAX));
            // After new events or the timeout, the journal has the current events.
            let _ = tokio::time::timeout(wait, follower.more()).await;
        }
        events = follower.page(limit).await?;
    }
    let ended = follower.ended || (events.is_empty() && follower.seen.is_none());
    let events = Events { events, after: follower.after, ended };
    let json = serde_json::to_vec(&events).map_err(internal)?;
    let json = follower.bounds.answers.counted(json.into())?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

fn follow(follower: Follower) -> Answer<Response> {
    let place = follower.bounds.long_connections.claim(1)?;
    let pieces = stream::unfold(Some((follower, place)), |following| async {
        let (mut follower, place) = following?;
        loop {
            match follower.piece().await {
                Ok(Some(piece)) => {
                    return Some((Ok::<_, Infallible>(piece.bytes), Some((follower, place))));
                }
                Ok(None) => {}
                // The client reconnects and resumes after its last event.
                Err(_) => return None,
            }
            if !follower.more().await {
                return None;
            }
        }
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

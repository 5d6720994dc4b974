//! File events of a workspace as a stream (SSE), until the client disconnects or the session ends.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use tokio::net::unix::pipe;
use tokio::sync::watch as channel;
use windlass_protocol::Seq;
use windlass_protocol::api::{ApiError, FileEvent, WatchQuery};

use super::super::App;
use super::super::reply::Answer;
use super::super::sessions::live;
use super::{access, on_pool};
use crate::bounds::BudgetShare;
use crate::failure::Failure;
use crate::session::idle::PresentClient;
use windlass_files::{FileError, FilePath, WatchUpdate, Workspace, WorkspaceWatch};

/// Interval of keep-alive comments on a quiet stream. A write to a client that is gone fails.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Size of the buffer for inotify events.
const BATCH_BYTES: usize = 64 * 1024;

/// Follow what happens in a directory of the workspace and those below it, as a stream (SSE) with a
/// `FileEvent` as the data of each event.
#[utoipa::path(get, path = "/v1/sessions/{session}/files/watch",
    params(("session" = String, Path), WatchQuery),
    responses((status = 200, body = FileEvent, content_type = "text/event-stream"),
        (status = "default", body = ApiError)))]
pub(crate) async fn watch(app: App, session: String, query: WatchQuery) -> Answer<Response> {
    let handle = live(&app, session)?;
    let bounds = app.serving.bounds.of_session(&handle.id);
    let watch = bounds.watches.claim(1).map_err(|_| Failure::from(FileError::TooManyWatches))?;
    let claimed = [watch, bounds.long_connections.claim(1)?];
    let access = access(&app, handle.info());
    let files = app.clone();
    let (watch, first) = on_pool(move || {
        let path = FilePath::directory(&query.path)?;
        WorkspaceWatch::begin(Workspace::open(&access, &files.files)?, path)
    })
    .await?;
    let source = watch.source();
    let stream_state = WatchStream {
        app,
        watch: Some(watch),
        source,
        _client: handle.clients.enter(),
        seen: handle.seen,
        first: Some(first),
        _claimed: claimed,
    };
    let pieces = stream::unfold(stream_state, |mut stream_state| async {
        let piece = stream_state.next().await?;
        Some((Ok::<_, Infallible>(piece), stream_state))
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

struct WatchStream {
    app: App,
    /// Absent while the blocking pool has it, and when there is nothing more to watch.
    watch: Option<WorkspaceWatch>,
    source: Arc<pipe::Receiver>,
    _client: PresentClient,
    /// Closes when the session ends.
    seen: channel::Receiver<Seq>,
    /// Events to send first: directories that cannot be watched.
    first: Option<Vec<FileEvent>>,
    /// Its shares of the watches and of the long-lived connections.
    _claimed: [BudgetShare; 2],
}

impl WatchStream {
    /// The next piece of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            // Sent at once, so that the client knows that the watch has begun.
            return Some([&b": watching\n\n"[..], &sse(&first)[..]].concat().into());
        }
        while self.watch.is_some() {
            let (source, seen) = (&self.source, &mut self.seen);
            let waiting = async {
                tokio::select! {
                    ready = source.readable() => ready.ok(),
                    _ = seen.wait_for(|_| false) => None,
                }
            };
            match self.app.serving.patience.within(KEEP_ALIVE, waiting).await {
                Some(Some(())) => {}
                Some(None) => return None,
                None => return Some(Bytes::from_static(b": alive\n\n")),
            }
            let mut batch = vec![0; BATCH_BYTES];
            match self.source.try_read(&mut batch) {
                Ok(read) => batch.truncate(read),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => return None,
            }
            let mut watch = self.watch.take()?;
            let reading = tokio::task::spawn_blocking(move || (watch.read_events(&batch), watch));
            let (update, watch) = reading.await.ok()?;
            let events = match update {
                WatchUpdate::Events(events) => {
                    self.watch = Some(watch);
                    events
                }
                WatchUpdate::Gone(events) => events,
            };
            if !events.is_empty() {
                return Some(sse(&events));
            }
        }
        None
    }
}

fn sse(events: &[FileEvent]) -> Bytes {
    let mut piece = Vec::with_capacity(events.len() * 64);
    for event in events {
        piece.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut piece, event).expect("events always serialise");
        piece.extend_from_slice(b"\n\n");
    }
    piece.into()
}

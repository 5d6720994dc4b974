//! Writes a request's body into files. The body is read in pieces of bounded size, and the blocking pool
//! writes one piece after the other. An upload that breaks off leaves nothing behind.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use bytes::Bytes;
use http_body_util::BodyExt;
use windlass_protocol::ErrorCode;

use super::super::App;
use super::super::reply::{Answer, bad_request};
use super::super::tenant::bounds_of;
use super::on_pool;
use crate::bounds::Bounds;
use crate::failure::Failure;
use windlass_files::{BodySink, FileError};

/// Minimum size of a piece, unless the body ends or has many small parts.
const PIECE_BYTES: usize = 256 * 1024;

/// Maximum number of parts in one piece, because many small parts cost more than their bytes.
const PIECE_PARTS: usize = 64;

/// Maximum time without new bytes of a body.
const STALL_WAIT: Duration = Duration::from_secs(60);

/// Maximum time that an upload waits for another upload to end.
const SLOT_WAIT: Duration = Duration::from_secs(60);

/// Maximum number of bytes of a refused body that are discarded, so that the client can read the reason.
const DISCARD_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Maximum time to discard a refused body.
const DISCARD_WAIT: Duration = Duration::from_secs(60);

/// Receives a request's body into the sink that `begin` makes, and calls `finish` when the body is complete.
pub(super) async fn receive<I: BodySink, T: Send + 'static>(
    app: &App,
    request: Request,
    begin: Answer<impl FnOnce() -> Result<I, FileError> + Send + 'static>,
    finish: fn(I) -> Result<T, FileError>,
) -> Answer<T> {
    let expects_continue = request.headers().contains_key(header::EXPECT);
    let bounds = bounds_of(request.extensions(), app);
    let mut incoming = UploadSource { body: request.into_body(), bounds, begun: false };
    let taken = match begin {
        Ok(begin) => incoming.write_into(app, begin).await,
        Err(refusal) => Err(refusal),
    };
    match taken {
        Ok(sink) => on_pool(move || finish(sink)).await,
        Err(refusal) => {
            // A client that waits for `100 Continue` has not sent a body.
            if incoming.begun || !expects_continue {
                app.serving.patience.within(DISCARD_WAIT, incoming.discard()).await;
            }
            Err(refusal)
        }
    }
}

struct UploadSource {
    body: Body,
    /// What the client may hold.
    bounds: Arc<Bounds>,
    begun: bool,
}

impl UploadSource {
    async fn write_into<I: BodySink>(
        &mut self,
        app: &App,
        begin: impl FnOnce() -> Result<I, FileError> + Send + 'static,
    ) -> Answer<I> {
        let slot = app.serving.patience.within(SLOT_WAIT, self.bounds.uploads.enter());
        let Some(slot) = slot.await else {
            let message = "all upload slots of the node are in use";
            return Err(Failure::new(ErrorCode::Overloaded, message).into());
        };
        let _slot = slot?;
        let mut sink = on_pool(begin).await?;
        loop {
            let piece = self.piece(app).await?;
            if piece.is_empty() {
                return Ok(sink);
            }
            // If the request is cancelled, the pool drops the sink, and with it the staged files.
            sink = on_pool(move || match sink.take(&piece) {
                Ok(()) => Ok(sink),
                Err(error) => {
                    sink.discard();
                    Err(error)
                }
            })
            .await?;
        }
    }

    /// The next piece; empty at the end.
    async fn piece(&mut self, app: &App) -> Answer<Vec<Bytes>> {
        self.begun = true;
        let mut piece = Vec::new();
        let mut bytes = 0;
        while bytes < PIECE_BYTES && piece.len() < PIECE_PARTS {
            let Some(part) = app.serving.patience.within(STALL_WAIT, self.body.frame()).await
            else {
                let seconds = STALL_WAIT.as_secs();
                return Err(bad_request(format!("no bytes of the body arrived for {seconds} s")));
            };
            let Some(part) = part else { break };
            let part = part.map_err(|error| bad_request(format!("the body broke off: {error}")))?;
            let Ok(data) = part.into_data() else { continue };
            bytes += data.len();
            piece.push(data);
        }
        Ok(piece)
    }

    async fn discard(&mut self) {
        let mut bytes = 0;
        while let Some(Ok(part)) = self.body.frame().await {
            bytes += part.data_ref().map_or(0, Bytes::len);
            if bytes > DISCARD_BYTES_MAX {
                return;
            }
        }
    }
}

//! A request's body into files: read here in pieces of bounded size, written on the pool, one piece
//! after the other. Whoever goes away in the middle leaves nothing behind.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use bytes::Bytes;
use http_body_util::BodyExt;
use windlass_protocol::ErrorCode;

use super::super::App;
use super::super::reply::{Answer, bad_request, internal};
use super::on_pool;
use crate::failure::Failure;
use windlass_files::{FileError, BodySink};

/// Bytes written at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Parts of a body in one piece: many small ones cost more than their bytes.
const PIECE_PARTS: usize = 64;

/// How long a body may stand still.
const STALL_WAIT: Duration = Duration::from_secs(60);

/// How long an upload waits for another to end before it is refused.
const TURN_WAIT: Duration = Duration::from_secs(60);

/// How much of a body that is refused is read away, so that its client hears why.
const DISCARD_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long that may take.
const DISCARD_WAIT: Duration = Duration::from_secs(60);

/// Takes a request's body in, and does what is to be done with it when all of it is there.
pub(super) async fn receive<I: BodySink, T: Send + 'static>(
    app: &App,
    request: Request,
    begin: Answer<impl FnOnce() -> Result<I, FileError> + Send + 'static>,
    finish: fn(I) -> Result<T, FileError>,
) -> Answer<T> {
    let awaits_word = request.headers().contains_key(header::EXPECT);
    let mut incoming = Incoming { body: request.into_body(), begun: false };
    let taken = match begin {
        Ok(begin) => incoming.write_into(app, begin).await,
        Err(refusal) => Err(refusal),
    };
    match taken {
        Ok(sink) => on_pool(move || finish(sink)).await,
        Err(refusal) => {
            // Who waits to be told to go on has sent nothing yet, and will not.
            if incoming.begun || !awaits_word {
                app.serving.patience.within(DISCARD_WAIT, incoming.discard()).await;
            }
            Err(refusal)
        }
    }
}

struct Incoming {
    body: Body,
    begun: bool,
}

impl Incoming {
    async fn write_into<I: BodySink>(
        &mut self,
        app: &App,
        begin: impl FnOnce() -> Result<I, FileError> + Send + 'static,
    ) -> Answer<I> {
        let turn =
            app.serving.patience.within(TURN_WAIT, app.files.uploads.clone().acquire_owned());
        let Some(turn) = turn.await else {
            let message = "other uploads take all of the node's places for them";
            return Err(Failure::new(ErrorCode::Overloaded, message).into());
        };
        let _turn = turn.map_err(internal)?;
        let mut sink = on_pool(begin).await?;
        loop {
            let piece = self.piece(app).await?;
            if piece.is_empty() {
                return Ok(sink);
            }
            // If nobody waits for it any more it is dropped there, and what was staged with it.
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
                return Err(bad_request(format!("nothing of the body came for {seconds} s")));
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

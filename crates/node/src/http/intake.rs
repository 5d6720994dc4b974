//! A request's body on its way in. Tells the connection's place when all of it is here, and keeps a
//! body that no handler has read: it is read away before the answer, since the connection of a
//! client that still sends would be broken off otherwise. Never looks at the bytes.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use windlass_client::timers::TimerPool;

use super::places::Seat;

/// How much of a body that nobody wants is read away before the connection is given up.
const UNWANTED_BYTES_MAX: usize = 32 * 1024 * 1024;

/// How long that may take.
const UNWANTED_WAIT: Duration = Duration::from_secs(10);

/// A request as handlers get it, and the body that they may leave unread. The usual request without a
/// body has none.
pub(super) fn arriving(
    request: Request<Incoming>,
    seat: &Arc<Seat>,
) -> (Request<Body>, Option<UnreadBody>) {
    if request.body().is_end_stream() {
        return (request.map(Body::new), None);
    }
    seat.marks().body_begins();
    let awaits_word = request.headers().contains_key(EXPECT);
    let unread = UnreadBody { left: Arc::default(), seat: seat.clone(), awaits_word };
    let left = unread.left.clone();
    let request = request.map(|body| {
        Body::new(ArrivingBody { body: Some(body), has_begun: false, seat: seat.clone(), left })
    });
    (request, Some(unread))
}

/// A body that a handler may have left unread.
pub(super) struct UnreadBody {
    left: Arc<Mutex<Option<Incoming>>>,
    seat: Arc<Seat>,
    /// The client sends nothing before it is told to go on.
    awaits_word: bool,
}

impl UnreadBody {
    /// Reads away what a handler has left, within bounds.
    pub async fn discard(self, patience: &TimerPool) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(body) = left.filter(|_| !self.awaits_word) {
            patience.within(UNWANTED_WAIT, read_away(body)).await;
        }
        self.seat.marks().body_ends();
    }
}

async fn read_away(mut body: Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > UNWANTED_BYTES_MAX {
            return;
        }
    }
}

struct ArrivingBody {
    /// Taken when it is dropped.
    body: Option<Incoming>,
    /// A handler reads it.
    has_begun: bool,
    seat: Arc<Seat>,
    left: Arc<Mutex<Option<Incoming>>>,
}

impl hyper::body::Body for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.has_begun = true;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        if frame.is_none() || body.is_end_stream() {
            self.seat.marks().body_ends();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, hyper::body::Body::size_hint)
    }
}

impl Drop for ArrivingBody {
    fn drop(&mut self) {
        if self.has_begun {
            // Its handler has all of it, or has given it up and answers.
            return self.seat.marks().body_ends();
        }
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
    }
}

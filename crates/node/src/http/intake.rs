//! A request's body while it arrives. Tells the connection slot when the body is complete. Keeps a body that
//! no handler has read and discards it before the response; otherwise the connection of a client that is
//! still sending would be reset. Never inspects the bytes.

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

use super::connection_slots::ConnectionSlot;

/// Maximum number of bytes of an unread body that are discarded before the connection is closed.
const DISCARD_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Maximum time to discard an unread body.
const DISCARD_WAIT: Duration = Duration::from_secs(10);

/// The request for the handler, and the body that the handler may leave unread. A request without a body has
/// none.
pub(super) fn arriving(
    request: Request<Incoming>,
    slot: &Arc<ConnectionSlot>,
) -> (Request<Body>, Option<UnreadBody>) {
    if request.body().is_end_stream() {
        return (request.map(Body::new), None);
    }
    slot.progress().body_begins();
    let expects_continue = request.headers().contains_key(EXPECT);
    let unread = UnreadBody { left: Arc::default(), slot: slot.clone(), expects_continue };
    let left = unread.left.clone();
    let request = request.map(|body| {
        Body::new(ArrivingBody { body: Some(body), has_begun: false, slot: slot.clone(), left })
    });
    (request, Some(unread))
}

/// A body that a handler may have left unread.
pub(super) struct UnreadBody {
    left: Arc<Mutex<Option<Incoming>>>,
    slot: Arc<ConnectionSlot>,
    /// The client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
}

impl UnreadBody {
    /// Reads away what a handler has left, within bounds.
    pub async fn discard(self, patience: &TimerPool) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(body) = left.filter(|_| !self.expects_continue) {
            patience.within(DISCARD_WAIT, discard(body)).await;
        }
        self.slot.progress().body_ends();
    }
}

async fn discard(mut body: Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > DISCARD_BYTES_MAX {
            return;
        }
    }
}

struct ArrivingBody {
    /// Taken when this value is dropped.
    body: Option<Incoming>,
    /// A handler has begun to read the body.
    has_begun: bool,
    slot: Arc<ConnectionSlot>,
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
            self.slot.progress().body_ends();
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
            // The handler has read the whole body, or has given up and responds.
            return self.slot.progress().body_ends();
        }
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
    }
}

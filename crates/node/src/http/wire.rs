//! Reports a connection's progress to its slot. The stream reports bytes read and written, and the body of a
//! response reports its end. Changes no byte.
//!
//! The stream owns the connection slot, so the owner of an upgraded stream gets the slot too.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use windlass_client::stream::LeanStream;

use super::connection_slots::{ConnectionSlot, WriteOutcome};

/// A connection's stream, with its slot.
pub(super) struct SlotStream {
    pub stream: LeanStream,
    /// Declared after the stream, so that the slot is freed after the descriptor is closed.
    pub slot: Arc<ConnectionSlot>,
}

impl SlotStream {
    /// Notes whether the client reads what is written.
    fn note(&self, written: &Poll<io::Result<usize>>) {
        let tried = if written.is_pending() { WriteOutcome::Blocked } else { WriteOutcome::Wrote };
        self.slot.progress().note_write(tried);
    }
}

impl AsyncRead for SlotStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.slot.progress().has_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SlotStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when everything has been written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.slot.progress().has_written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of a response. The next piece of a stream is made when the last piece is written, so a client
/// that does not read costs one piece and no read-ahead.
pub(super) struct ResponseBody {
    body: Body,
    is_stream: bool,
    /// Absent for an upgraded connection: what follows is no response.
    slot: Option<Arc<ConnectionSlot>>,
}

impl ResponseBody {
    pub fn new(body: Body, slot: Arc<ConnectionSlot>) -> Self {
        let is_stream = body.size_hint().exact().is_none();
        Self { body, is_stream, slot: Some(slot) }
    }

    /// The response that upgrades the connection.
    pub fn upgrade(body: Body, slot: &ConnectionSlot) -> Self {
        slot.upgraded();
        Self { body, is_stream: false, slot: None }
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, is_stream, slot } = &mut *self;
        let Some(slot) = slot.as_ref().filter(|_| *is_stream) else {
            return Pin::new(body).poll_frame(cx);
        };
        ready!(slot.progress().poll_piece_written(cx));
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if frame.is_some() {
            slot.progress().piece_begins();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.progress().answer_made();
        }
    }
}

//! What a connection's marks learn from: its stream, which tells of bytes read and answers
//! written, and its answers' bodies, which tell of their end. Changes no byte.
//!
//! The stream has the connection's place: whoever takes the stream over, takes that too.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use windlass_client::stream::LeanStream;

use super::places::{Seat, WriteTry};

/// A connection's stream.
pub(super) struct Wire {
    pub stream: LeanStream,
    /// After the stream: the place is free when the descriptor is.
    pub seat: Arc<Seat>,
}

impl Wire {
    /// Notes whether the client takes what is written.
    fn note(&self, written: &Poll<io::Result<usize>>) {
        let tried = if written.is_pending() { WriteTry::NoRoom } else { WriteTry::Wrote };
        self.seat.marks().write_was_tried(tried);
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.seat.marks().has_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
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

    /// Asked for when everything that was to be written is.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.seat.marks().has_written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer on its way. Of a stream, the next piece is made when the last one is
/// written: a client that does not read costs one piece, and nobody reads ahead for it.
pub(super) struct Outgoing {
    body: Body,
    is_stream: bool,
    /// Absent where the request stays in flight: what follows is no answer.
    seat: Option<Arc<Seat>>,
}

impl Outgoing {
    pub fn new(body: Body, seat: Arc<Seat>) -> Self {
        let is_stream = body.size_hint().exact().is_none();
        Self { body, is_stream, seat: Some(seat) }
    }

    /// The answer by which the connection becomes something else.
    pub fn last(body: Body, seat: &Seat) -> Self {
        seat.stays();
        Self { body, is_stream: false, seat: None }
    }
}

impl hyper::body::Body for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, is_stream, seat } = &mut *self;
        let Some(seat) = seat.as_ref().filter(|_| *is_stream) else {
            return Pin::new(body).poll_frame(cx);
        };
        ready!(seat.marks().poll_piece_written(cx));
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if frame.is_some() {
            seat.marks().piece_begins();
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

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(seat) = &self.seat {
            seat.marks().answer_made();
        }
    }
}

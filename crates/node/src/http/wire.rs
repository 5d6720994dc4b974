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
use tokio_rustls::server::TlsStream;
use windlass_client::door_stream::DoorStream;
use windlass_client::stream::LeanStream;

use super::connection_slots::{ConnectionSlot, WriteOutcome};
use crate::bounds::BudgetShare;

/// The node's end of a connection at a door.
pub(super) type AcceptedStream = DoorStream<TlsStream<LeanStream>>;

/// A connection's stream, with its slot.
pub(super) struct SlotStream {
    pub stream: AcceptedStream,
    /// Declared after the stream, so that the slot is freed after the descriptor is closed.
    pub slot: Arc<ConnectionSlot>,
}

impl SlotStream {
    /// Notes whether the client reads what is written.
    fn note<T>(&self, written: &Poll<io::Result<T>>) {
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
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        // An encrypted stream accepts bytes that the client has no room for yet. Then only the flush waits.
        if self.stream.holds_written_bytes() {
            self.note(&flushed);
        }
        ready!(flushed)?;
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
    /// Returned with the end of the response.
    _share: Option<BudgetShare>,
}

impl ResponseBody {
    pub fn new(body: Body, slot: Arc<ConnectionSlot>, share: Option<BudgetShare>) -> Self {
        let is_stream = body.size_hint().exact().is_none();
        Self { body, is_stream, slot: Some(slot), _share: share }
    }

    /// The response that upgrades the connection.
    pub fn upgrade(body: Body, slot: &ConnectionSlot) -> Self {
        slot.upgraded();
        Self { body, is_stream: false, slot: None, _share: None }
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, is_stream, slot, .. } = &mut *self;
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::tls_sides::{NAME, sides};
    use super::*;

    /// More than the buffers of a socket and of TLS hold together.
    const BYTES: u32 = 3_000_000;

    /// Both ends of a plain connection.
    fn pair() -> (LeanStream, LeanStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (LeanStream::new(near.into()).unwrap(), LeanStream::new(far.into()).unwrap())
    }

    fn sample() -> Vec<u8> {
        (0..BYTES).map(|n| (n % 251) as u8).collect()
    }

    /// Sends the sample from one stream to the other, half of it in several slices at once.
    async fn carry(from: &mut (impl AsyncWrite + Unpin), to: &mut (impl AsyncRead + Unpin)) {
        let sent = sample();
        let (first, second) = sent.split_at(sent.len() / 2);
        let writing = async {
            from.write_all(first).await.unwrap();
            let mut written = 0;
            while written < second.len() {
                let rest = &second[written..];
                let (head, tail) = rest.split_at(rest.len() / 3);
                let slices = [IoSlice::new(head), IoSlice::new(tail)];
                written += from.write_vectored(&slices).await.unwrap();
            }
            from.flush().await.unwrap();
        };
        let mut got = vec![0; sent.len()];
        let reading = async { to.read_exact(&mut got).await.unwrap() };
        tokio::join!(writing, reading);
        assert!(got == sent, "the bytes changed on their way");
    }

    #[tokio::test]
    async fn bytes_go_whole_in_both_directions_plain_and_encrypted() {
        let (near, mut far) = pair();
        let mut near = AcceptedStream::Plain(near);
        assert!(near.is_write_vectored() && !near.holds_written_bytes());
        carry(&mut near, &mut far).await;
        carry(&mut far, &mut near).await;

        let (near, far) = pair();
        let (acceptor, connector) = sides();
        let name = ServerName::try_from(NAME).unwrap();
        let (near, far) = tokio::join!(acceptor.accept(near), connector.connect(name, far));
        let (mut near, mut far) = (AcceptedStream::Tls(Box::new(near.unwrap())), far.unwrap());
        assert!(near.is_write_vectored() && near.holds_written_bytes());
        carry(&mut near, &mut far).await;
        carry(&mut far, &mut near).await;
    }

    #[tokio::test]
    async fn an_encrypted_stream_that_is_shut_down_ends_cleanly_at_the_other_end() {
        let (near, far) = pair();
        let (acceptor, connector) = sides();
        let name = ServerName::try_from(NAME).unwrap();
        let (near, far) = tokio::join!(acceptor.accept(near), connector.connect(name, far));
        let (mut near, mut far) = (AcceptedStream::Tls(Box::new(near.unwrap())), far.unwrap());
        near.write_all(b"the end").await.unwrap();
        near.shutdown().await.unwrap();
        let mut got = Vec::new();
        // Without the message that ends TLS, this would be an error.
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"the end");
    }
}

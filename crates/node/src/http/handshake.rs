//! The TLS handshake of a connection. A client in its handshake is treated as one that has sent a part of a request's
//! head: it has the same time limit, and its connection can be evicted.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use rustix::net::RecvFlags;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use windlass_client::stream::LeanStream;
use windlass_protocol::ErrorCode;

use super::connection_slots::ConnectionProgress;
use super::head_wait::HeadWait;
use crate::failure::Failure;

/// The first byte of a connection that begins with a TLS handshake. No HTTP request begins with it.
const HANDSHAKE: u8 = 0x16;

/// Maximum number of bytes of an unencrypted request that are read before the refusal.
const PLAIN_BYTES_MAX: usize = 16 * 1024;

/// The encrypted stream of a connection whose first byte has arrived. `None` if the client does not speak TLS, needs
/// too long, or its connection was evicted. `head` then limits the time until the first request too.
pub(super) async fn shake_hands(
    stream: LeanStream,
    acceptor: &TlsAcceptor,
    progress: &ConnectionProgress,
    head: &mut HeadWait,
) -> Option<Box<TlsStream<LeanStream>>> {
    if is_unencrypted(&stream) {
        refuse_unencrypted(stream).await;
        return None;
    }
    progress.has_read();
    let mut handshake = acceptor.accept(stream);
    poll_fn(|cx| {
        match Pin::new(&mut handshake).poll(cx) {
            Poll::Ready(Ok(stream)) => return Poll::Ready(Some(Box::new(stream))),
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        if progress.poll_evicted(cx).is_ready() {
            return Poll::Ready(None);
        }
        head.poll_over(progress, cx).map(|()| None)
    })
    .await
}

fn is_unencrypted(stream: &LeanStream) -> bool {
    let mut byte = [0_u8; 1];
    let seen = rustix::net::recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    seen.is_ok_and(|(_, bytes)| bytes > 0) && byte[0] != HANDSHAKE
}

/// Tells a client that this door needs TLS. A client that has sent a longer request may not receive that.
async fn refuse_unencrypted(mut stream: LeanStream) {
    // Unread bytes would reset the connection before the client reads the refusal. At least one byte has arrived.
    let mut arrived = vec![0; PLAIN_BYTES_MAX];
    if stream.read(&mut arrived).await.is_err() {
        return;
    }
    // The refusal is short enough for an empty socket buffer. A client that has left does not need it.
    let _ = stream.try_write(refusal().as_bytes());
    let _ = stream.shutdown().await;
}

fn refusal() -> String {
    let what = "this door is encrypted, and the request is not";
    let mut error = Failure::new(ErrorCode::BadRequest, what).to_api();
    "begin the address with https://".clone_into(&mut error.remedy);
    let body = serde_json::to_string(&error).unwrap_or_default();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::super::connection_slots::ConnectionSlots;
    use super::super::tls_sides::{NAME, sides};
    use super::*;

    /// The node's end of a connection at which these bytes have arrived, and the client's end.
    fn arrived(bytes: &[u8]) -> (LeanStream, UnixStream) {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(bytes).unwrap();
        (LeanStream::new(near.into()).unwrap(), far)
    }

    #[tokio::test]
    async fn a_connection_with_half_a_handshake_awaits_its_head_and_can_be_evicted() {
        let slots = ConnectionSlots::within(2);
        let slot = slots.take().await;
        let (stream, _far) = arrived(&[HANDSHAKE, 3, 1, 2, 0]);
        let (acceptor, _) = sides();
        let mut head = HeadWait::default();
        let mut shaking = pin!(shake_hands(stream, &acceptor, slot.progress(), &mut head));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(shaking.as_mut().poll(&mut cx).is_pending());
        assert!(slot.progress().awaits_head());
        let mut wanted = pin!(slots.free_one());
        assert!(wanted.as_mut().poll(&mut cx).is_pending());
        assert!(shaking.await.is_none());
    }

    #[tokio::test]
    async fn a_client_that_speaks_tls_gets_an_encrypted_stream() {
        let slots = ConnectionSlots::within(2);
        let slot = slots.take().await;
        let (stream, far) = arrived(b"");
        let (acceptor, connector) = sides();
        let mut head = HeadWait::default();
        let near = async {
            stream.readable().await.unwrap();
            shake_hands(stream, &acceptor, slot.progress(), &mut head).await
        };
        let far = LeanStream::new(far.into()).unwrap();
        let (near, far) = tokio::join!(near, connector.connect(NAME.try_into().unwrap(), far));
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        near.write_all(b"hello").await.unwrap();
        near.flush().await.unwrap();
        let mut got = [0; 5];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        // The client must still send a request in time.
        assert!(slot.progress().awaits_head());
    }

    #[tokio::test]
    async fn an_unencrypted_request_is_told_to_use_tls() {
        let slots = ConnectionSlots::within(2);
        let slot = slots.take().await;
        let (stream, mut far) = arrived(b"GET /v1/health HTTP/1.1\r\nhost: door.test\r\n\r\n");
        let (acceptor, _) = sides();
        let mut head = HeadWait::default();
        let shaken = shake_hands(stream, &acceptor, slot.progress(), &mut head).await;
        assert!(shaken.is_none());
        let mut answer = String::new();
        far.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("https://"), "{answer}");
    }
}

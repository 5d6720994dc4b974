//! One HTTP/1.1 connection and the pool of idle ones.
//!
//! The task that waits for an answer drives the connection: no task per connection, no wake-up
//! across threads. The pool holds at most [`IDLE_MAX`] idle connections. Nothing here retries.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use windlass_protocol::api::{API, API_HEADER, ApiVersion};

use crate::address::NodeAddress;
use crate::door_stream::NodeStream;

/// Number of idle connections that are kept. Another one is closed.
pub(crate) const IDLE_MAX: usize = 16;

/// The largest answer that is read whole. Any display or output range fits.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

type ConnectionDriver = http1::Connection<TokioIo<NodeStream>, Full<Bytes>>;

/// How an exchange failed.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The request did not leave completely, so the node did nothing.
    NotSent(String),
    /// The connection ended after the request left.
    Cut(String),
    /// The answer is not HTTP.
    NotHttp(String),
    /// The node's API version, which is not compatible with this client.
    Version(String),
}

type HttpRequest = Request<Full<Bytes>>;

impl ExchangeError {
    fn of(mut fault: TrySendError<HttpRequest>) -> Self {
        match fault.take_message() {
            Some(_) => Self::NotSent(fault.error().to_string()),
            None if fault.error().is_parse() => Self::NotHttp(fault.error().to_string()),
            None => Self::Cut(fault.error().to_string()),
        }
    }
}

/// The result of an upgrade request.
pub(crate) enum Upgraded {
    /// The upgraded stream, and the bytes that were already read from it.
    Agreed(NodeStream, Bytes),
    /// The node refused. The connection still speaks HTTP, and this was the answer.
    Refused(Box<HttpConnection>, Response<Incoming>),
}

/// A connection to the node. Dropping it closes it.
pub(crate) struct HttpConnection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` once the connection has ended.
    wire: Option<ConnectionDriver>,
    version_checked: bool,
}

impl HttpConnection {
    pub(crate) async fn open(address: &NodeAddress) -> io::Result<Self> {
        let stream = address.connect().await?;
        let (sender, wire) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Self { sender, wire: Some(wire), version_checked: false })
    }

    /// Sends the request and reads the head of the answer.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        let mut answer = Box::pin(self.sender.try_send_request(request));
        let wire = &mut self.wire;
        let answered = poll_fn(|cx| poll_driven(wire, cx, answer.as_mut())).await;
        let response = answered.map_err(ExchangeError::of)?;
        if !self.version_checked {
            check_version(&response)?;
            self.version_checked = true;
        }
        Ok(response)
    }

    /// Sends a request that upgrades the connection, if the node agrees.
    pub(crate) async fn upgrade(
        mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Upgraded, ExchangeError> {
        let mut answer = Box::pin(self.sender.try_send_request(request));
        let Some(mut wire) = self.wire.take() else {
            return Err(ExchangeError::NotSent("the connection has ended".to_owned()));
        };
        let answered = poll_fn(|cx| {
            if let Poll::Ready(answered) = answer.as_mut().poll(cx) {
                return Poll::Ready(answered);
            }
            // If the connection ends here, the answer's future reports why.
            let _ = wire.poll_without_shutdown(cx);
            answer.as_mut().poll(cx)
        });
        let response = answered.await.map_err(ExchangeError::of)?;
        drop(answer);
        check_version(&response)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let parts = wire.into_parts();
            return Ok(Upgraded::Agreed(parts.io.into_inner(), parts.read_buf));
        }
        self.wire = Some(wire);
        Ok(Upgraded::Refused(Box::new(self), response))
    }

    /// The next piece of an answer's body; `None` at its end.
    pub(crate) async fn chunk(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, String> {
        loop {
            let wire = &mut self.wire;
            let frame =
                poll_fn(|cx| poll_twice(wire, cx, |cx| Pin::new(&mut *body).poll_frame(cx)));
            match frame.await {
                None => return Ok(None),
                Some(Err(fault)) => return Err(fault.to_string()),
                // Trailers carry nothing here.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole body. A body that came in one piece is not copied.
    pub(crate) async fn collect(&mut self, mut body: Incoming) -> Result<Bytes, String> {
        let Some(first) = self.chunk(&mut body).await? else { return Ok(Bytes::new()) };
        if body.is_end_stream() {
            return Ok(first);
        }
        let mut whole = BytesMut::from(first);
        while let Some(more) = self.chunk(&mut body).await? {
            if whole.len() + more.len() > ANSWER_BYTES_MAX {
                return Err(format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"));
            }
            whole.extend_from_slice(&more);
        }
        Ok(whole.freeze())
    }

    /// Whether another request can go out at once: the last exchange is over and the node has not
    /// closed the connection meanwhile.
    fn poll_usable(&mut self, cx: &mut Context<'_>) -> bool {
        drive(&mut self.wire, cx);
        self.wire.is_some() && matches!(self.sender.poll_ready(cx), Poll::Ready(Ok(())))
    }
}

/// Polls `future`, then the connection, then `future` again: progress of one lets the other
/// continue in the same poll.
fn poll_driven<F: Future>(
    wire: &mut Option<ConnectionDriver>,
    cx: &mut Context<'_>,
    mut future: Pin<&mut F>,
) -> Poll<F::Output> {
    poll_twice(wire, cx, |cx| future.as_mut().poll(cx))
}

fn poll_twice<T>(
    wire: &mut Option<ConnectionDriver>,
    cx: &mut Context<'_>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    if let Poll::Ready(value) = poll(cx) {
        return Poll::Ready(value);
    }
    drive(wire, cx);
    poll(cx)
}

/// Lets the connection read and write. If it ends, the exchange that it cut reports why.
fn drive(wire: &mut Option<ConnectionDriver>, cx: &mut Context<'_>) {
    if let Some(live) = wire
        && Pin::new(live).poll(cx).is_ready()
    {
        *wire = None;
    }
}

fn check_version(response: &Response<Incoming>) -> Result<(), ExchangeError> {
    let Some(said) = response.headers().get(API_HEADER) else {
        return Err(ExchangeError::Version("an unnamed version".to_owned()));
    };
    let said = said.to_str().unwrap_or_default();
    match ApiVersion::parse(said) {
        Some(node) if API.compatible(node) => Ok(()),
        _ => Err(ExchangeError::Version(said.to_owned())),
    }
}

/// The idle connections to one node.
pub(crate) struct ConnectionPool {
    address: NodeAddress,
    idle: Mutex<VecDeque<HttpConnection>>,
}

impl ConnectionPool {
    pub(crate) fn new(address: NodeAddress) -> Self {
        Self { address, idle: Mutex::new(VecDeque::new()) }
    }

    pub(crate) fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// The most recently used idle connection that still works, or a new one.
    pub(crate) async fn take(&self) -> io::Result<HttpConnection> {
        while let Some(mut idle) = self.pop() {
            if poll_fn(|cx| Poll::Ready(idle.poll_usable(cx))).await {
                return Ok(idle);
            }
        }
        HttpConnection::open(&self.address).await
    }

    /// Keeps a connection whose exchange is over, for the next request.
    pub(crate) fn put(&self, connection: HttpConnection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() == IDLE_MAX {
            idle.pop_front();
        }
        idle.push_back(connection);
    }

    fn pop(&self) -> Option<HttpConnection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop_back()
    }
}

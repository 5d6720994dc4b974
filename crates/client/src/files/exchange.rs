//! One file transfer on a separate connection. The request body and the answer may both be streamed
//! in pieces. The task that waits for the transfer drives the connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use windlass_protocol::api::{API, API_HEADER, ApiError};

use super::content::{ContentSource, FileContent};
use crate::client::Client;
use crate::door_stream::NodeStream;
use crate::error::ClientError;

/// How long a whole upload may take.
const UPLOAD_WAIT: Duration = Duration::from_secs(6 * 3600);

/// How long the next piece of an answer may take.
const PIECE_WAIT: Duration = Duration::from_secs(60);

/// The largest answer that is read whole.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

type BoxedBody = UnsyncBoxBody<Bytes, io::Error>;

/// The body of a request.
pub(super) struct RequestBody(BoxedBody);

impl RequestBody {
    pub fn nothing() -> Self {
        Self::whole(Bytes::new())
    }

    pub fn pieces(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        let frames = pieces.map(|piece| piece.map(Frame::data));
        Self(StreamBody::new(frames).boxed_unsync())
    }

    fn whole(bytes: Bytes) -> Self {
        Self(Full::new(bytes).map_err(|never| match never {}).boxed_unsync())
    }
}

impl From<FileContent> for RequestBody {
    fn from(content: FileContent) -> Self {
        match content.0 {
            ContentSource::Whole(bytes) => Self::whole(bytes),
            ContentSource::Pieces(pieces) => Self::pieces(pieces),
        }
    }
}

/// A transfer whose answer has begun successfully.
pub(super) struct Exchange {
    client: Client,
    name: String,
    wire: TransferDriver,
    headers: HeaderMap,
    body: Incoming,
}

/// The connection; `None` once it has ended.
type TransferDriver = Option<http1::Connection<TokioIo<NodeStream>, BoxedBody>>;

impl Exchange {
    pub async fn send(
        client: &Client,
        method: Method,
        uri: String,
        headers: HeaderMap,
        body: RequestBody,
    ) -> Result<Self, ClientError> {
        let name = format!("{method} {}", uri.split('?').next().unwrap_or_default());
        let address = client.pool().address();
        let stream = address.connect().await.map_err(|cause| address.unreachable(cause))?;
        let (mut sender, wire) = http1::handshake(TokioIo::new(stream)).await.map_err(cut)?;
        let mut request = Request::new(body.0);
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().map_err(|fault: hyper::http::uri::InvalidUri| {
            ClientError::BadAnswer { request: name.clone(), cause: fault.to_string() }
        })?;
        *request.headers_mut() = headers;
        introduce(client, request.headers_mut());
        let mut wire = Some(wire);
        let mut answering = pin!(sender.send_request(request));
        let answering = poll_fn(|cx| driven(&mut wire, cx, |cx| answering.as_mut().poll(cx)));
        let answered = client.timers().within(UPLOAD_WAIT, answering).await;
        let Some(answered) = answered else {
            return Err(ClientError::Timeout { request: name, after: UPLOAD_WAIT });
        };
        let answer: Response<Incoming> = answered.map_err(|fault| unanswered(client, fault))?;
        let status = answer.status();
        let (parts, body) = answer.into_parts();
        let exchange = Self { client: client.clone(), name, wire, headers: parts.headers, body };
        if status.is_success() {
            return Ok(exchange);
        }
        let request = exchange.name.clone();
        let said = exchange.collect().await?;
        Err(match serde_json::from_slice::<ApiError>(&said) {
            Ok(error) => ClientError::Api(error),
            Err(_) => {
                let cause = format!("status {status} without a JSON error body");
                ClientError::BadAnswer { request, cause }
            }
        })
    }

    /// Method and path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn header(&self, name: &HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The next piece of the answer; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        let (wire, body) = (&mut self.wire, &mut self.body);
        loop {
            let part = poll_fn(|cx| driven(wire, cx, |cx| Pin::new(&mut *body).poll_frame(cx)));
            let Some(part) = self.client.timers().within(PIECE_WAIT, part).await else {
                let request = self.name.clone();
                return Err(ClientError::Timeout { request, after: PIECE_WAIT });
            };
            match part {
                None => return Ok(None),
                Some(Err(fault)) => return Err(cut(fault)),
                Some(Ok(part)) => {
                    if let Ok(data) = part.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole answer.
    pub async fn collect(mut self) -> Result<Bytes, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.chunk().await? {
            if whole.len() + piece.len() > ANSWER_BYTES_MAX {
                let cause = format!("the answer is longer than {ANSWER_BYTES_MAX} bytes");
                return Err(ClientError::BadAnswer { request: self.name, cause });
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Adds the headers that every request has.
fn introduce(client: &Client, headers: &mut HeaderMap) {
    client.pool().address().introduce(headers);
    let version = HeaderValue::from_str(&API.to_string()).expect("digits and a dot");
    headers.insert(HeaderName::from_static(API_HEADER), version);
    for (name, value) in client.origin() {
        headers.insert(HeaderName::from_static(name), value.clone());
    }
}

/// Polls, then lets the connection read and write, then polls again.
fn driven<T>(
    wire: &mut TransferDriver,
    cx: &mut Context<'_>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    if let Poll::Ready(value) = poll(cx) {
        return Poll::Ready(value);
    }
    if let Some(live) = wire
        && Pin::new(live).poll(cx).is_ready()
    {
        *wire = None;
    }
    poll(cx)
}

/// The error of a request that got no answer.
fn unanswered(client: &Client, fault: hyper::Error) -> ClientError {
    let not_http = if fault.is_parse() { client.pool().address().not_http() } else { None };
    not_http.map_or_else(|| cut(fault), ClientError::from)
}

fn cut(fault: hyper::Error) -> ClientError {
    ClientError::Cut { cause: fault.to_string() }
}

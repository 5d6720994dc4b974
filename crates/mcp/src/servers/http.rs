//! HTTP to servers with a URL: sends what `rmcp` sends, over plain HTTP/1.1, with one connection
//! per request. Limits what it reads. Has no TLS and follows no redirects.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http_body_util::{BodyDataStream, BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use tokio::net::TcpStream;
use tokio::time::timeout;
use windlass_protocol::limits::MESSAGE_BYTES_MAX;

/// How long a connect may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Most bytes of an error answer that are shown.
const ERROR_BYTES_MAX: usize = 4 * 1024;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";
const LAST_EVENT: &str = "last-event-id";

/// Sends requests. Has no state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PlainHttp;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("cannot connect to {address}: {cause}")]
    Connect { address: String, cause: std::io::Error },
    #[error("no connection to {0} within {CONNECT_WAIT:?}")]
    ConnectSlow(String),
    #[error("the request failed: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("the request cannot be made: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("the answer cannot be read: {0}")]
    Body(String),
    #[error("one event has more than {MESSAGE_BYTES_MAX} bytes")]
    EventTooLarge,
}

type TransportError = StreamableHttpError<HttpError>;
type Headers = HashMap<HeaderName, HeaderValue>;
type SseEvents = BoxStream<'static, Result<Sse, SseError>>;

impl StreamableHttpClient for PlainHttp {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        let body = serde_json::to_vec(&message)?;
        let extra = [(SESSION, session.as_deref())];
        let response = exchange(Method::POST, &uri, &extra, headers, body.into()).await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !status.is_success() {
            return Err(refused(response).await);
        }
        let began = header(&response, SESSION).map(str::to_owned);
        let wants_answer = matches!(message, ClientJsonRpcMessage::Request(_));
        let nothing = header(&response, CONTENT_LENGTH.as_str()) == Some("0");
        match header(&response, CONTENT_TYPE.as_str()) {
            _ if !wants_answer && nothing => Ok(StreamableHttpPostResponse::Accepted),
            Some(kind) if kind.starts_with(EVENTS) => {
                Ok(StreamableHttpPostResponse::Sse(events(response), began))
            }
            Some(kind) if kind.starts_with(JSON) => {
                let body = whole(response, MESSAGE_BYTES_MAX).await?;
                match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
                    Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, began)),
                    // Some servers answer messages that need no answer.
                    Err(_) if !wants_answer => Ok(StreamableHttpPostResponse::Accepted),
                    Err(fault) => Err(fault.into()),
                }
            }
            kind => Err(StreamableHttpError::UnexpectedContentType(kind.map(str::to_owned))),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _token: Option<String>,
        headers: Headers,
    ) -> Result<(), TransportError> {
        let extra = [(SESSION, Some(&*session))];
        let response = exchange(Method::DELETE, &uri, &extra, headers, Bytes::new()).await?;
        // A server may not support this; its session then expires.
        let done =
            response.status().is_success() || response.status() == StatusCode::METHOD_NOT_ALLOWED;
        if done { Ok(()) } else { Err(refused(response).await) }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _token: Option<String>,
        headers: Headers,
    ) -> Result<SseEvents, TransportError> {
        let extra = [(SESSION, session.as_deref()), (LAST_EVENT, last_event.as_deref())];
        let response = exchange(Method::GET, &uri, &extra, headers, Bytes::new()).await?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if !response.status().is_success() {
            return Err(refused(response).await);
        }
        match header(&response, CONTENT_TYPE.as_str()) {
            Some(kind) if kind.starts_with(EVENTS) => Ok(events(response)),
            kind => Err(StreamableHttpError::UnexpectedContentType(kind.map(str::to_owned))),
        }
    }
}

/// Sends one request on a new connection; returns the head of the answer.
async fn exchange(
    method: Method,
    uri: &str,
    extra: &[(&'static str, Option<&str>)],
    headers: Headers,
    body: Bytes,
) -> Result<Response<Incoming>, TransportError> {
    let uri: Uri =
        uri.parse().map_err(|fault: hyper::http::uri::InvalidUri| client(fault.into()))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map_or_else(String::new, ToString::to_string);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, &authority)
        .header(ACCEPT, format!("{JSON}, {EVENTS}"))
        .header(CONTENT_TYPE, JSON);
    for (name, value) in extra {
        if let Some(value) = value {
            request = request.header(*name, *value);
        }
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body)).map_err(|fault| client(fault.into()))?;
    let stream = connect(&uri).await.map_err(StreamableHttpError::Client)?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|fault| client(fault.into()))?;
    // The task ends with the answer's body, or when the body is dropped.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|fault| client(fault.into()))
}

async fn connect(uri: &Uri) -> Result<TcpStream, HttpError> {
    // A resolver takes an IPv6 address without its brackets.
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(80);
    let address = || format!("{host}:{port}");
    let stream = timeout(CONNECT_WAIT, TcpStream::connect((host, port)))
        .await
        .map_err(|_| HttpError::ConnectSlow(address()))?
        .map_err(|cause| HttpError::Connect { address: address(), cause })?;
    // Best effort: without it, small requests are only slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

fn client(fault: HttpError) -> TransportError {
    StreamableHttpError::Client(fault)
}

impl From<hyper::http::uri::InvalidUri> for HttpError {
    fn from(fault: hyper::http::uri::InvalidUri) -> Self {
        Self::Request(fault.into())
    }
}

/// The error for an unsuccessful answer.
async fn refused(response: Response<Incoming>) -> TransportError {
    let status = response.status();
    let body = whole(response, ERROR_BYTES_MAX).await.unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(format!("{status} {}", body.trim())))
}

async fn whole(response: Response<Incoming>, bytes_max: usize) -> Result<Bytes, TransportError> {
    let body = Limited::new(response.into_body(), bytes_max).collect().await;
    body.map(|body| body.to_bytes()).map_err(|fault| client(HttpError::Body(fault.to_string())))
}

fn header<'r>(response: &'r Response<Incoming>, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

/// The events of an answer. Each is at most as large as one message may be.
fn events(response: Response<Incoming>) -> SseEvents {
    let mut bound = EventBound::default();
    let chunks = BodyDataStream::new(response.into_body()).map(move |chunk| {
        let chunk = chunk.map_err(HttpError::Exchange)?;
        if bound.fits(&chunk) { Ok(chunk) } else { Err(HttpError::EventTooLarge) }
    });
    SseStream::from_bytes_stream(chunks).boxed()
}

/// Counts the bytes of the unfinished event. An empty line ends an event.
#[derive(Debug, Default)]
struct EventBound {
    bytes: usize,
    line_is_empty: bool,
}

impl EventBound {
    fn fits(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            match byte {
                b'\n' if self.line_is_empty => self.bytes = 0,
                b'\n' => self.line_is_empty = true,
                b'\r' => {}
                _ => self.line_is_empty = false,
            }
            self.bytes += 1;
        }
        self.bytes <= MESSAGE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_event_that_never_ends_is_too_large() {
        let mut bound = EventBound::default();
        let event = [b"data: ".as_slice(), &[b'x'; 1 << 20], b"\r\n\r\n"].concat();
        assert!((0..40).all(|_| bound.fits(&event)));
        let endless = vec![b'x'; 1 << 20];
        assert!(!(0..40).all(|_| bound.fits(&endless)));
    }
}

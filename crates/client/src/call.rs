//! One request to the node. Sends it, sends it again where that is safe, reads the answer's bytes
//! and turns every failure into a [`ClientError`]. Knows no endpoint.

use std::time::{Duration, Instant};

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::{Method, Request, Response, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{API, API_HEADER, ApiError};

use crate::address::NodeAddress;
use crate::client::Client;
use crate::connection::{ExchangeError, HttpConnection, Upgraded};
use crate::door_stream::NodeStream;
use crate::error::ClientError;
use crate::random;

/// How long an answer may take, on top of the wait that the request itself allows.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// The first and the longest pause between two attempts.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_millis(5);
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(200);

/// An attempt that lasted longer than this had reached a node. Its failure starts a new outage.
const OUTAGE_OVER: Duration = Duration::from_secs(1);

/// Whether a request may be sent again after a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The node carries the request out once, however often it arrives.
    Freely,
    /// Send it again only if it never left.
    IfNotSent,
}

/// A request, ready to be sent any number of times.
#[derive(Debug)]
pub(crate) struct HttpCall {
    method: Method,
    path: Bytes,
    body: Bytes,
    repeat: Repeat,
    answer_wait: Duration,
    accept: Option<&'static str>,
    /// The request upgrades its connection to a WebSocket.
    upgrades: bool,
}

/// A successful answer with its whole body.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A failed attempt: the error for the caller, and whether another attempt is safe.
struct FailedAttempt {
    error: ClientError,
    again: RetrySafety,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RetrySafety {
    /// The node did nothing.
    Safe,
    /// The node may have acted.
    IfRepeatable,
    Never,
}

impl HttpCall {
    pub(crate) fn get(path: String) -> Self {
        Self::new(Method::GET, path, Bytes::new(), Repeat::Freely)
    }

    pub(crate) fn delete(path: String) -> Self {
        Self::new(Method::DELETE, path, Bytes::new(), Repeat::IfNotSent)
    }

    pub(crate) fn post(path: String, repeat: Repeat) -> Self {
        Self::new(Method::POST, path, Bytes::new(), repeat)
    }

    pub(crate) fn post_json(path: String, repeat: Repeat, body: &impl Serialize) -> Self {
        let json = serde_json::to_vec(body).expect("the API's types are all JSON");
        Self::new(Method::POST, path, json.into(), repeat)
    }

    /// A request that has the same effect when it is sent twice.
    pub(crate) fn put(path: String, body: Bytes) -> Self {
        Self::new(Method::PUT, path, body, Repeat::Freely)
    }

    pub(crate) fn put_json(path: String, body: &impl Serialize) -> Self {
        let json = serde_json::to_vec(body).expect("the API's types are all JSON");
        Self::put(path, json.into())
    }

    fn new(method: Method, path: String, body: Bytes, repeat: Repeat) -> Self {
        Self {
            method,
            path: path.into(),
            body,
            repeat,
            answer_wait: ANSWER_WAIT,
            accept: None,
            upgrades: false,
        }
    }

    /// Lets the node take `wait_ms` longer to answer.
    pub(crate) fn waiting(mut self, wait_ms: u64) -> Self {
        self.answer_wait += Duration::from_millis(wait_ms);
        self
    }

    pub(crate) fn accepting(mut self, mime: &'static str) -> Self {
        self.accept = Some(mime);
        self
    }

    /// Makes the request upgrade its connection to a WebSocket.
    pub(crate) fn upgrading(mut self) -> Self {
        self.upgrades = true;
        self
    }

    fn request(&self, node: &NodeAddress) -> Result<Request<Full<Bytes>>, ClientError> {
        const JSON: HeaderValue = HeaderValue::from_static("application/json");
        let uri = Uri::from_maybe_shared(self.path.clone()).map_err(|fault| self.bad(fault))?;
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        node.introduce(headers);
        headers.insert(HeaderName::from_static(API_HEADER), api_version());
        if !self.body.is_empty() {
            headers.insert(CONTENT_TYPE, JSON);
        }
        if let Some(mime) = self.accept {
            headers.insert(ACCEPT, HeaderValue::from_static(mime));
        }
        if self.upgrades {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
            headers.insert(SEC_WEBSOCKET_KEY, websocket_key());
        }
        Ok(request)
    }

    fn bad(&self, cause: impl ToString) -> ClientError {
        ClientError::BadAnswer { request: self.name(), cause: cause.to_string() }
    }

    /// For messages: the method, and the path without its query. The query may hold search text.
    fn name(&self) -> String {
        let path = String::from_utf8_lossy(&self.path);
        format!("{} {}", self.method, path.split('?').next().unwrap_or_default())
    }
}

fn api_version() -> HeaderValue {
    use std::sync::OnceLock;
    static VERSION: OnceLock<HeaderValue> = OnceLock::new();
    let made = || HeaderValue::from_str(&API.to_string()).expect("digits and a dot");
    VERSION.get_or_init(made).clone()
}

/// Any 16 bytes do: the key only keeps caches from answering.
fn websocket_key() -> HeaderValue {
    let key = base64::engine::general_purpose::STANDARD.encode(random::hex::<8>());
    HeaderValue::from_str(&key).expect("letters and digits")
}

impl Client {
    /// Sends the request and parses the answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: HttpCall) -> Result<T, ClientError> {
        let answer = self.call(&call).await?;
        serde_json::from_slice(&answer.body).map_err(|fault| call.bad(fault))
    }

    /// Sends the request and reads the whole answer.
    pub(crate) async fn call(&self, call: &HttpCall) -> Result<HttpAnswer, ClientError> {
        let mut outage = Outage::new();
        loop {
            let tried = self.timers().within(call.answer_wait, self.answer(call)).await;
            match tried.unwrap_or_else(|| Err(call.late())) {
                Ok(answer) => return Ok(answer),
                Err(failure) => outage.pause(failure, call, self.retry_for()).await?,
            }
        }
    }

    /// Sends the request and returns the body as a stream, with the connection that carries it.
    pub(crate) async fn stream(
        &self,
        call: &HttpCall,
    ) -> Result<(HttpConnection, Incoming), ClientError> {
        let mut outage = Outage::new();
        loop {
            let tried = self.timers().within(call.answer_wait, self.head(call)).await;
            match tried.unwrap_or_else(|| Err(call.late())) {
                Ok((connection, response)) => return Ok((connection, response.into_body())),
                Err(failure) => outage.pause(failure, call, self.retry_for()).await?,
            }
        }
    }

    /// Upgrades a connection. Returns its stream and the bytes that were already read from it.
    pub(crate) async fn upgrade(
        &self,
        call: &HttpCall,
    ) -> Result<(NodeStream, Bytes), ClientError> {
        let mut outage = Outage::new();
        loop {
            let tried = self.timers().within(call.answer_wait, self.upgraded(call)).await;
            match tried.unwrap_or_else(|| Err(call.late())) {
                Ok(upgraded) => return Ok(upgraded),
                Err(failure) => outage.pause(failure, call, self.retry_for()).await?,
            }
        }
    }

    async fn upgraded(&self, call: &HttpCall) -> Result<(NodeStream, Bytes), FailedAttempt> {
        let request = self.request(call)?;
        match self.connection().await?.upgrade(request).await.map_err(|fault| self.failed(fault))? {
            Upgraded::Agreed(stream, read) => Ok((stream, read)),
            Upgraded::Refused(connection, response) => {
                Err(self.refused(call, *connection, response).await)
            }
        }
    }

    async fn answer(&self, call: &HttpCall) -> Result<HttpAnswer, FailedAttempt> {
        let (mut connection, response) = self.head(call).await?;
        let (parts, body) = response.into_parts();
        let body = connection.collect(body).await.map_err(FailedAttempt::cut)?;
        self.pool().put(connection);
        Ok(HttpAnswer { headers: parts.headers, body })
    }

    /// Sends the request and reads the head of the answer. A status other than success is an error.
    async fn head(
        &self,
        call: &HttpCall,
    ) -> Result<(HttpConnection, Response<Incoming>), FailedAttempt> {
        let request = self.request(call)?;
        let mut connection = self.connection().await?;
        let response = connection.exchange(request).await.map_err(|fault| self.failed(fault))?;
        if response.status().is_success() {
            return Ok((connection, response));
        }
        Err(self.refused(call, connection, response).await)
    }

    fn request(&self, call: &HttpCall) -> Result<Request<Full<Bytes>>, FailedAttempt> {
        let mut request = call.request(self.pool().address()).map_err(FailedAttempt::fatal)?;
        for (name, value) in self.origin() {
            request.headers_mut().insert(HeaderName::from_static(name), value.clone());
        }
        Ok(request)
    }

    /// The error that an unsuccessful answer holds.
    async fn refused(
        &self,
        call: &HttpCall,
        mut connection: HttpConnection,
        response: Response<Incoming>,
    ) -> FailedAttempt {
        let status = response.status();
        let body = match connection.collect(response.into_body()).await {
            Ok(body) => body,
            Err(cause) => return FailedAttempt::cut(cause),
        };
        self.pool().put(connection);
        match serde_json::from_slice::<ApiError>(&body) {
            Ok(error) if error.code == ErrorCode::VersionMismatch => {
                FailedAttempt::fatal(ClientError::Api(error))
            }
            Ok(error) => {
                // A node that is stopping did nothing with the request, and its successor may start
                // soon.
                let stopping = error.code == ErrorCode::ShuttingDown;
                let again = if stopping { RetrySafety::Safe } else { RetrySafety::Never };
                FailedAttempt { error: ClientError::Api(error), again }
            }
            Err(_) => {
                FailedAttempt::fatal(call.bad(format!("status {status} without a JSON error body")))
            }
        }
    }

    fn failed(&self, fault: ExchangeError) -> FailedAttempt {
        match fault {
            ExchangeError::NotSent(cause) => {
                FailedAttempt { error: ClientError::Cut { cause }, again: RetrySafety::Safe }
            }
            ExchangeError::Cut(cause) => FailedAttempt::cut(cause),
            ExchangeError::NotHttp(cause) => match self.pool().address().not_http() {
                Some(error) => FailedAttempt::fatal(error.into()),
                None => FailedAttempt::cut(cause),
            },
            ExchangeError::Version(node) => {
                FailedAttempt::fatal(ClientError::VersionMismatch { node })
            }
        }
    }

    /// A connection from the pool or a new one. Starts the node first if that is needed and
    /// allowed.
    async fn connection(&self) -> Result<HttpConnection, FailedAttempt> {
        match self.pool().take().await {
            Ok(connection) => Ok(connection),
            Err(cause) => self.reach(cause).await.map_err(|error| {
                let gone = error.is_unreachable();
                FailedAttempt {
                    error,
                    again: if gone { RetrySafety::Safe } else { RetrySafety::Never },
                }
            }),
        }
    }
}

/// A run of failed attempts.
struct Outage {
    attempt_began: Instant,
    failing_since: Option<Instant>,
    pause: Duration,
}

impl Outage {
    fn new() -> Self {
        Self { attempt_began: Instant::now(), failing_since: None, pause: PAUSE_FIRST }
    }

    /// Waits until the next attempt, or returns the error if there is no further attempt.
    async fn pause(
        &mut self,
        failure: FailedAttempt,
        call: &HttpCall,
        retry_for: Duration,
    ) -> Result<(), ClientError> {
        if self.attempt_began.elapsed() > OUTAGE_OVER {
            *self = Self::new();
        }
        let may_repeat = match failure.again {
            RetrySafety::Safe => true,
            RetrySafety::IfRepeatable => call.repeat == Repeat::Freely,
            RetrySafety::Never => false,
        };
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if !may_repeat || since.elapsed() + self.pause > retry_for {
            return Err(failure.error);
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.attempt_began = Instant::now();
        Ok(())
    }
}

impl HttpCall {
    fn late(&self) -> FailedAttempt {
        let error = ClientError::Timeout { request: self.name(), after: self.answer_wait };
        FailedAttempt::fatal(error)
    }
}

impl FailedAttempt {
    fn fatal(error: ClientError) -> Self {
        Self { error, again: RetrySafety::Never }
    }

    fn cut(cause: String) -> Self {
        Self { error: ClientError::Cut { cause }, again: RetrySafety::IfRepeatable }
    }
}

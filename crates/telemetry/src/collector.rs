//! One connection to the collector: posts the bodies of requests and says whether a failed one is worth another try. An
//! answer is only looked at for its status: whatever the collector sends, it changes nothing else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::TelemetryConfig;

/// Maximum time until the head of an answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the head of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Maximum size of the body of an answer, which is dropped.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Maximum time for the body of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("the collector cannot be reached: {0}")]
    Unreachable(String),
    #[error("the collector answers {0}")]
    Busy(StatusCode),
    #[error("the collector refuses the spans: {0}")]
    Refused(StatusCode),
}

impl ExportError {
    /// Whether the same spans may be taken later.
    pub fn is_passing(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// The collector of a node's spans.
pub struct Collector {
    config: TelemetryConfig,
    /// The connection of the last request, once its answer is read. `None` of the task: the connection is closed.
    connection: Option<JoinHandle<Option<OpenCollector>>>,
    /// Made when it is first needed.
    tls: Option<TlsConnector>,
}

/// A connection; dropping it closes it, whatever the collector does.
struct OpenCollector {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl OpenCollector {
    /// Reads the rest of an answer, after which the connection takes the next request.
    async fn after(self, answer: Incoming) -> Option<Self> {
        let answer = Limited::new(answer, ANSWER_BYTES_MAX).collect();
        let is_read = timeout(ANSWER_TIMEOUT, answer).await.is_ok_and(|answer| answer.is_ok());
        is_read.then_some(self)
    }
}

impl Drop for OpenCollector {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Collector {
    pub fn new(config: TelemetryConfig) -> Self {
        Self { config, connection: None, tls: None }
    }

    /// Posts a request. A call that is dropped or fails closes the connection.
    pub async fn send(&mut self, body: Vec<u8>) -> Result<(), ExportError> {
        let status = timeout(SEND_TIMEOUT, self.post(body))
            .await
            .unwrap_or_else(|_| Err(ExportError::Unreachable("it does not answer".to_owned())))?;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(ExportError::Busy(status)),
            status => Err(ExportError::Refused(status)),
        }
    }

    /// Posts a request, and waits for the status of its answer.
    async fn post(&mut self, body: Vec<u8>) -> Result<StatusCode, ExportError> {
        let request = self.request(body).map_err(unreachable_by)?;
        let mut connection = match self.kept().await {
            Some(connection) => connection,
            None => self.connect().await.map_err(unreachable_by)?,
        };
        let response = connection.sender.send_request(request).await.map_err(unreachable_by)?;
        let status = response.status();
        // The status decides. A task of its own reads the rest, so that spans that were taken are not sent again because
        // the rest is late.
        self.connection = Some(tokio::spawn(connection.after(response.into_body())));
        Ok(status)
    }

    /// The connection of the last request, if the collector has not closed it.
    async fn kept(&mut self) -> Option<OpenCollector> {
        let mut connection = self.connection.take()?.await.ok()??;
        connection.sender.ready().await.ok()?;
        Some(connection)
    }

    fn request(&self, body: Vec<u8>) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let endpoint = &self.config.endpoint;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&*endpoint.path)
            .header(HOST, &*endpoint.authority)
            .header(CONTENT_TYPE, "application/x-protobuf");
        for (name, value) in &self.config.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(Bytes::from(body)))
    }

    async fn connect(&mut self) -> io::Result<OpenCollector> {
        let (host, port) = (self.config.endpoint.host.clone(), self.config.endpoint.port);
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        if !self.config.endpoint.is_encrypted {
            return open(stream).await;
        }
        let connector = match &self.tls {
            Some(connector) => connector.clone(),
            None => self.tls.insert(connector()?).clone(),
        };
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        open(connector.connect(name, stream).await?).await
    }
}

async fn open<S>(stream: S) -> io::Result<OpenCollector>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let driver = tokio::spawn(async move {
        // The request that waits for the answer gets the error.
        let _ = connection.await;
    });
    Ok(OpenCollector { sender, driver })
}

/// TLS that trusts the authorities of the machine.
fn connector() -> io::Result<TlsConnector> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(io::Error::other("this machine has no certificates of public authorities"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn unreachable_by(error: impl std::fmt::Display) -> ExportError {
    ExportError::Unreachable(error.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn spans_are_taken_when_the_status_says_so_and_a_late_body_closes_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 1024];
            assert!(stream.read(&mut bytes).await.unwrap() > 0);
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n";
            stream.write_all(head).await.unwrap();
            // The body never comes. The client closes the connection.
            while stream.read(&mut bytes).await.unwrap_or(0) > 0 {}
        });
        let endpoint = format!("http://{address}");
        let config = TelemetryConfig::new(&endpoint, [], None, None).unwrap();
        let mut collector = Collector::new(config);
        timeout(PATIENCE, collector.send(vec![1])).await.unwrap().unwrap();
        timeout(PATIENCE, server).await.unwrap().unwrap();
    }
}

//! The HTTP connection to the host, and the removal of headers that must not be forwarded.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{
    CONNECTION, EXPECT, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::HEAD_BYTES_MAX;
use crate::secrets::bodies::ForwardedBody;
use crate::tunnel::Duplex;

/// A connection to a host, used for one request at a time.
pub(super) struct Relay {
    sender: SendRequest<ForwardedBody>,
    driver: Arc<Driver>,
}

/// The task that reads and writes a connection. It is aborted when the last reference is dropped.
pub(super) struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Resolves when the host has closed the connection.
pub(super) type HostClosed = oneshot::Receiver<Infallible>;

impl Relay {
    pub async fn open(stream: impl Duplex) -> hyper::Result<(Self, HostClosed)> {
        let (sender, connection) =
            Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await?;
        let (open, closed) = oneshot::channel();
        let driver = tokio::spawn(async move {
            // The request that was interrupted reports the error.
            let _ = connection.with_upgrades().await;
            drop(open);
        });
        Ok((Self { sender, driver: Arc::new(Driver(driver)) }, closed))
    }

    pub async fn send(
        &mut self,
        request: Request<ForwardedBody>,
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }

    /// Keeps the connection open while a response is read.
    pub fn driver(&self) -> Arc<Driver> {
        self.driver.clone()
    }
}

/// Whether a request asks to switch to WebSocket, the only switch that the proxy supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    WebSocket,
    No,
}

impl Switch {
    pub fn requested_by(headers: &HeaderMap) -> Self {
        match headers.get(UPGRADE) {
            Some(to) if to.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()) => Self::WebSocket,
            _ => Self::No,
        }
    }
}

const WEBSOCKET: &str = "websocket";

/// Removes hop-by-hop headers. A client may declare any header as hop-by-hop, so the proxy inserts the
/// headers that must be present after this call.
pub(super) fn strip(headers: &mut HeaderMap, switch: Switch) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let hop_by_hop = [
        CONNECTION,
        EXPECT,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in named.iter().chain(&hop_by_hop) {
        headers.remove(name);
    }
    if switch == Switch::WebSocket {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
    }
}

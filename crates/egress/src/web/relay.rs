//! The host's side of HTTP: a connection to it, and what of a message goes on and what does not.

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
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::HEAD_BYTES_MAX;
use crate::meter::Metered;

/// A connection to a host, for one request after the other.
pub(super) struct Relay {
    sender: SendRequest<Incoming>,
    driver: Arc<Driver>,
}

/// The task that reads and writes a connection. It ends with the last that needs it.
pub(super) struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Resolves when the host has closed the connection.
pub(super) type Closed = oneshot::Receiver<Infallible>;

impl Relay {
    pub async fn open(stream: Metered<TcpStream>) -> hyper::Result<(Self, Closed)> {
        let (sender, connection) =
            Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await?;
        let (open, closed) = oneshot::channel();
        let driver = tokio::spawn(async move {
            // Why it ended is told by the exchange that it cut.
            let _ = connection.with_upgrades().await;
            drop(open);
        });
        Ok((Self { sender, driver: Arc::new(Driver(driver)) }, closed))
    }

    pub async fn send(&mut self, request: Request<Incoming>) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }

    /// Keeps the connection going while an answer is read.
    pub fn driver(&self) -> Arc<Driver> {
        self.driver.clone()
    }
}

/// Whether a message may ask to become a WebSocket, the one protocol that is switched to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    WebSocket,
    No,
}

impl Switch {
    pub fn asked_by(headers: &HeaderMap) -> Self {
        match headers.get(UPGRADE) {
            Some(to) if to.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()) => Self::WebSocket,
            _ => Self::No,
        }
    }
}

const WEBSOCKET: &str = "websocket";

/// Removes what is between two neighbours only, and not for the far end. A client may name any header
/// as one of these: what must be there is put there after this.
pub(super) fn strip(headers: &mut HeaderMap, switch: Switch) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let between_neighbours = [
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
    for name in named.iter().chain(&between_neighbours) {
        headers.remove(name);
    }
    if switch == Switch::WebSocket {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
    }
}

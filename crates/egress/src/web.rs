//! HTTP/1: requests to the proxy (CONNECT, and requests with an absolute URI) and requests inside a
//! tunnel. The host of each request is checked; the forwarded `Host` header names the checked host. Secrets are put
//! into requests and masked in responses here.

mod forward;
mod relay;
mod responses;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use windlass_protocol::policy::{SecretScheme, normal_host};

use super::reach::{NotReached, SessionEgress, Upstream};
use super::rules::RefusalReason;
use super::secrets::Origin;
use super::timeouts::ProxyTimeouts;
use super::tunnel::{self, Duplex, is_for, is_guarded};
use forward::{Destination, forward};
use relay::{Driver, Relay};
use responses::{ProxyResponse, bad_gateway, bad_request, not_reached, ok, refused};

/// Maximum size of the head of a request or a response. A longer request gets status 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The port of `http://` URIs.
const DEFAULT_PORT: u16 = 80;

/// What a connection becomes after its response.
enum PendingUpgrade {
    Tunnel { client: OnUpgrade, upstream: Upstream },
    WebSocket(WebSocketEnds),
}

/// Both ends of a connection that switches to WebSocket.
struct WebSocketEnds {
    client: OnUpgrade,
    host: OnUpgrade,
    driver: Arc<Driver>,
    /// The host that the connection leads to, and its port.
    at: (String, u16),
}

/// Where a request handler leaves the upgrade of its connection. Requests of one connection are
/// served one at a time, so one slot is enough.
#[derive(Clone, Default)]
struct UpgradeSlot(Arc<Mutex<Option<PendingUpgrade>>>);

impl UpgradeSlot {
    fn set(&self, upgrade: PendingUpgrade) {
        *self.0.lock().expect("no holder of this lock can panic") = Some(upgrade);
    }

    fn take(&self) -> Option<PendingUpgrade> {
        self.0.lock().expect("no holder of this lock can panic").take()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().expect("no holder of this lock can panic").is_none()
    }
}

/// Serves a client that uses this connection as an HTTP proxy.
pub(super) async fn serve_proxy(client: impl Duplex, egress: &Arc<SessionEgress>) {
    let slot = UpgradeSlot::default();
    let service = service_fn(|request| {
        let (egress, slot) = (egress.clone(), slot.clone());
        async move { Ok::<_, Infallible>(answer_proxied(request, &egress, &slot).await) }
    });
    // An error means that the client closed its connection or sent invalid HTTP. It needs no report.
    let _ = server(egress.timeouts)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades()
        .await;
    match slot.take() {
        Some(PendingUpgrade::Tunnel { client, upstream }) => {
            if let Ok(client) = client.await {
                tunnel::run(TokioIo::new(client), upstream, egress).await;
            }
        }
        Some(PendingUpgrade::WebSocket(ends)) => join(ends, egress).await,
        None => {}
    }
}

fn server(timeouts: ProxyTimeouts) -> hyper::server::conn::http1::Builder {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(timeouts.head).max_buf_size(HEAD_BYTES_MAX);
    server
}

async fn answer_proxied(
    request: Request<Incoming>,
    egress: &Arc<SessionEgress>,
    slot: &UpgradeSlot,
) -> ProxyResponse {
    if request.method() == Method::CONNECT {
        return open_tunnel(request, egress, slot).await;
    }
    let authority =
        request.uri().authority().filter(|_| request.uri().scheme_str() == Some("http"));
    let Some((host, port)) =
        authority.and_then(|authority| host_and_port(authority, Some(DEFAULT_PORT)))
    else {
        return bad_request("send CONNECT host:port, or a request with an absolute http:// URI");
    };
    let upstream = match egress.reach(&host, port).await {
        Ok(upstream) => upstream,
        Err(why) => return not_reached(&host, port, why),
    };
    let origin = Origin { scheme: SecretScheme::Http, host: &upstream.host, port };
    match Relay::open(upstream.stream).await {
        Ok((mut relay, _)) => {
            let to = Destination { egress, origin, named: &upstream.host };
            forward(request, &to, &mut relay, slot).await
        }
        Err(_) => bad_gateway("the host closed the connection"),
    }
}

async fn open_tunnel(
    request: Request<Incoming>,
    egress: &SessionEgress,
    slot: &UpgradeSlot,
) -> ProxyResponse {
    let Some((host, port)) =
        request.uri().authority().and_then(|authority| host_and_port(authority, None))
    else {
        return bad_request("CONNECT needs host:port");
    };
    match egress.reach(&host, port).await {
        Ok(upstream) => {
            slot.set(PendingUpgrade::Tunnel { client: hyper::upgrade::on(request), upstream });
            ok()
        }
        Err(why) => not_reached(&host, port, why),
    }
}

/// Serves unencrypted HTTP inside a tunnel. `held` are the client's bytes that were read already.
pub(super) async fn serve_tunnel(
    client: impl Duplex,
    held: Vec<u8>,
    upstream: Upstream,
    egress: &Arc<SessionEgress>,
) {
    let Upstream { host, port, stream, .. } = upstream;
    let (reader, writer) = tokio::io::split(client);
    let client = tokio::io::join(std::io::Cursor::new(held).chain(reader), writer);
    let end = TunnelEnd { scheme: SecretScheme::Http, host, port };
    serve_requests(client, Ok(stream), end, egress).await;
}

/// Where a tunnel leads.
#[derive(Debug)]
pub(super) struct TunnelEnd {
    pub scheme: SecretScheme,
    pub host: String,
    pub port: u16,
}

/// Serves the requests in a tunnel. They are forwarded over the tunnel's connection; the tunnel ends when the host
/// closes that connection. Without a connection each request is answered with the reason.
pub(super) async fn serve_requests(
    client: impl Duplex,
    upstream: Result<impl Duplex, String>,
    end: TunnelEnd,
    egress: &Arc<SessionEgress>,
) {
    let opened = match upstream {
        Ok(stream) => Relay::open(stream).await.map_err(|error| error.to_string()),
        Err(why) => Err(why),
    };
    let (relay, failure, closed) = match opened {
        Ok((relay, closed)) => (Some(relay), None, Some(closed)),
        Err(why) => (None, Some(why), None),
    };
    let tunnel = Arc::new(HttpTunnel { end, relay: Mutex::new(relay), failure });
    let slot = UpgradeSlot::default();
    let service = service_fn(|request| {
        let (egress, slot, tunnel) = (egress.clone(), slot.clone(), tunnel.clone());
        async move { Ok::<_, Infallible>(answer_tunnelled(request, &tunnel, &egress, &slot).await) }
    });
    let served =
        server(egress.timeouts).serve_connection(TokioIo::new(client), service).with_upgrades();
    let mut served = pin!(served);
    let closed = async {
        match closed {
            // The sender is dropped, never used.
            Some(closed) => drop(closed.await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // Requests first: a response that has arrived is forwarded before the close is handled.
        biased;
        _ = served.as_mut() => {}
        () = closed => {
            if slot.is_empty() {
                served.as_mut().graceful_shutdown();
            }
            // As in `serve_proxy`: a client's error needs no report.
            let _ = served.as_mut().await;
        }
    }
    if let Some(PendingUpgrade::WebSocket(ends)) = slot.take() {
        join(ends, egress).await;
    }
}

/// A tunnel that carries HTTP.
struct HttpTunnel {
    end: TunnelEnd,
    /// Absent while a request is being forwarded.
    relay: Mutex<Option<Relay>>,
    /// Why there is no connection to the host.
    failure: Option<String>,
}

impl HttpTunnel {
    fn take(&self) -> Option<Relay> {
        self.relay.lock().expect("no holder of this lock can panic").take()
    }

    fn put_back(&self, relay: Relay) {
        *self.relay.lock().expect("no holder of this lock can panic") = Some(relay);
    }

    /// Whether a request in this tunnel may name the host. If either of the two may know a secret, the host must be the
    /// tunnel's own: a secret goes only to the host that the connection leads to.
    fn is_for(&self, host: &str, egress: &SessionEgress) -> bool {
        let TunnelEnd { scheme, host: own, port } = &self.end;
        let is_guarded = *scheme == SecretScheme::Https
            || is_guarded(host, *port, egress)
            || is_guarded(own, *port, egress);
        if is_guarded { host == own } else { is_for(host, own, *port, egress) }
    }
}

async fn answer_tunnelled(
    request: Request<Incoming>,
    tunnel: &HttpTunnel,
    egress: &Arc<SessionEgress>,
    slot: &UpgradeSlot,
) -> ProxyResponse {
    let TunnelEnd { scheme, host: own, port } = &tunnel.end;
    let Some(hosts) = requested_hosts(&request) else {
        return bad_request("the request's host is ambiguous or is no valid host name");
    };
    for host in &hosts {
        if !tunnel.is_for(host, egress) {
            let why = RefusalReason::HttpHost;
            egress.ledger.note(host, *port, Err(NotReached::Refused(why))).await;
            return refused(host, *port, why);
        }
    }
    if request.method() == Method::CONNECT {
        return bad_request("CONNECT inside a tunnel is not supported; send it to the proxy");
    }
    if let Some(why) = &tunnel.failure {
        return bad_gateway(&format!("{own}:{port} cannot be reached by TLS: {why}"));
    }
    let Some(mut relay) = tunnel.take() else {
        return bad_gateway("the host closed the connection");
    };
    let named = hosts.first().unwrap_or(own);
    let origin = Origin { scheme: *scheme, host: own, port: *port };
    let to = Destination { egress, origin, named };
    let response = forward(request, &to, &mut relay, slot).await;
    tunnel.put_back(relay);
    response
}

/// Every host that a request names, in its URI and in its `Host` header. `None` when there are several
/// `Host` headers, or a name is no valid host.
fn requested_hosts(request: &Request<Incoming>) -> Option<Vec<String>> {
    let mut headers = request.headers().get_all(HOST).iter();
    let header = headers.next().map(|value| Authority::try_from(value.as_bytes()));
    let header = header.transpose().ok()?;
    if headers.next().is_some() {
        return None;
    }
    let authorities = request.uri().authority().into_iter().chain(header.as_ref());
    authorities
        .map(|authority| normal_host(&host_and_port(authority, Some(DEFAULT_PORT))?.0))
        .collect()
}

/// Copies bytes between client and host after both switched to WebSocket.
async fn join(ends: WebSocketEnds, egress: &SessionEgress) {
    let WebSocketEnds { client, host, driver, at: (name, port) } = ends;
    let (Ok(client), Ok(host)) = (client.await, host.await) else { return };
    tokio::select! {
        () = tunnel::copy(TokioIo::new(client), TokioIo::new(host)) => {}
        () = tunnel::until_guarded(&name, port, egress) => {}
    }
    drop(driver);
}

/// The host and port of a URI. `None` when the URI contains user information.
fn host_and_port(authority: &Authority, default_port: Option<u16>) -> Option<(String, u16)> {
    if authority.as_str().contains('@') {
        return None;
    }
    let port = match authority.port() {
        Some(port) => Some(port.as_str().parse().ok()?),
        None => default_port,
    };
    Some((authority.host().to_owned(), port?))
}

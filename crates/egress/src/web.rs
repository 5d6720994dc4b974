//! HTTP/1: requests to the proxy (CONNECT, and requests with an absolute URI) and requests inside a
//! tunnel. The host of each request is checked; the forwarded `Host` header names the checked host.

mod relay;
mod responses;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use windlass_protocol::policy::normal_host;

use super::reach::{NotReached, SessionEgress, Upstream};
use super::rules::RefusalReason;
use super::timeouts::ProxyTimeouts;
use super::tunnel::{self, Duplex, is_for};
use relay::{Driver, Relay, Switch, strip};
use responses::{ProxyResponse, bad_gateway, bad_request, not_reached, ok, refused};

/// Maximum size of the head of a request or a response. A longer request gets status 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The port of `http://` URIs.
const DEFAULT_PORT: u16 = 80;

/// What a connection becomes after its response.
enum PendingUpgrade {
    Tunnel { client: OnUpgrade, upstream: Upstream },
    WebSocket { client: OnUpgrade, host: OnUpgrade, driver: Arc<Driver> },
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
        Some(PendingUpgrade::WebSocket { client, host, driver }) => {
            join(client, host, driver).await
        }
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
    egress: &SessionEgress,
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
    let host_header = host_header(&upstream.host, port);
    match Relay::open(upstream.stream).await {
        Ok((mut relay, _)) => forward(request, host_header, &mut relay, slot).await,
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

/// Serves HTTP inside a tunnel. `held` are the client's bytes that were read already. Requests are
/// forwarded over the tunnel's connection; the tunnel ends when the host closes that connection.
pub(super) async fn serve_tunnel(
    client: impl Duplex,
    held: Vec<u8>,
    upstream: Upstream,
    egress: &Arc<SessionEgress>,
) {
    let Upstream { host, port, stream, .. } = upstream;
    let Ok((relay, mut closed)) = Relay::open(stream).await else { return };
    let tunnel = Arc::new(HttpTunnel { host, port, relay: Mutex::new(Some(relay)) });
    let slot = UpgradeSlot::default();
    let service = service_fn(|request| {
        let (egress, slot, tunnel) = (egress.clone(), slot.clone(), tunnel.clone());
        async move { Ok::<_, Infallible>(answer_tunnelled(request, &tunnel, &egress, &slot).await) }
    });
    let (reader, writer) = tokio::io::split(client);
    let client = tokio::io::join(std::io::Cursor::new(held).chain(reader), writer);
    let served =
        server(egress.timeouts).serve_connection(TokioIo::new(client), service).with_upgrades();
    let mut served = pin!(served);
    tokio::select! {
        // Requests first: a response that has arrived is forwarded before the close is handled.
        biased;
        _ = served.as_mut() => {}
        _ = &mut closed => {
            if slot.is_empty() {
                served.as_mut().graceful_shutdown();
            }
            // As in `serve_proxy`: a client's error needs no report.
            let _ = served.as_mut().await;
        }
    }
    if let Some(PendingUpgrade::WebSocket { client, host, driver }) = slot.take() {
        join(client, host, driver).await;
    }
}

/// A tunnel that carries HTTP.
struct HttpTunnel {
    host: String,
    port: u16,
    /// Absent while a request is being forwarded.
    relay: Mutex<Option<Relay>>,
}

impl HttpTunnel {
    fn take(&self) -> Option<Relay> {
        self.relay.lock().expect("no holder of this lock can panic").take()
    }

    fn put_back(&self, relay: Relay) {
        *self.relay.lock().expect("no holder of this lock can panic") = Some(relay);
    }
}

async fn answer_tunnelled(
    request: Request<Incoming>,
    tunnel: &HttpTunnel,
    egress: &SessionEgress,
    slot: &UpgradeSlot,
) -> ProxyResponse {
    let Some(hosts) = requested_hosts(&request) else {
        return bad_request("the request's host is ambiguous or is no valid host name");
    };
    for host in &hosts {
        if !is_for(host, &tunnel.host, tunnel.port, egress) {
            let why = RefusalReason::HttpHost;
            egress.ledger.note(host, tunnel.port, Err(NotReached::Refused(why))).await;
            return refused(host, tunnel.port, why);
        }
    }
    if request.method() == Method::CONNECT {
        return bad_request("CONNECT inside a tunnel is not supported; send it to the proxy");
    }
    let host_header = host_header(hosts.first().unwrap_or(&tunnel.host), tunnel.port);
    let Some(mut relay) = tunnel.take() else {
        return bad_gateway("the host closed the connection");
    };
    let response = forward(request, host_header, &mut relay, slot).await;
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

/// Forwards a request with the checked host as its `Host` header, and returns the host's response.
async fn forward(
    mut request: Request<Incoming>,
    host_header: Option<HeaderValue>,
    relay: &mut Relay,
    slot: &UpgradeSlot,
) -> ProxyResponse {
    let Some(host_header) = host_header else {
        return bad_request("the host name cannot be a Host header");
    };
    let switch = Switch::requested_by(request.headers());
    let client = hyper::upgrade::on(&mut request);
    strip(request.headers_mut(), switch);
    request.headers_mut().insert(HOST, host_header);
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = origin_form(request.uri());
    let Ok(mut response) = relay.send(request).await else {
        return bad_gateway("the host closed the connection");
    };
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switched && switch == Switch::No {
        return bad_gateway("the host switched to a protocol that the request did not ask for");
    }
    strip(response.headers_mut(), if switched { switch } else { Switch::No });
    let driver = relay.driver();
    if switched {
        let host = hyper::upgrade::on(&mut response);
        slot.set(PendingUpgrade::WebSocket { client, host, driver: driver.clone() });
    }
    response.map(|body| {
        // The body owns the driver: the connection stays open while the response is read.
        let keep_driver = move |frame| {
            let _ = &driver;
            frame
        };
        body.map_frame(keep_driver).boxed_unsync()
    })
}

/// Copies bytes between client and host after both switched to WebSocket.
async fn join(client: OnUpgrade, host: OnUpgrade, driver: Arc<Driver>) {
    let (Ok(client), Ok(host)) = (client.await, host.await) else { return };
    tunnel::copy(TokioIo::new(client), TokioIo::new(host)).await;
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

/// The value of the `Host` header.
fn host_header(host: &str, port: u16) -> Option<HeaderValue> {
    let mut text = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if port != DEFAULT_PORT {
        text.push_str(&format!(":{port}"));
    }
    HeaderValue::try_from(text).ok()
}

/// The URI in origin form: only path and query, as an origin server expects it.
fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(path)
}

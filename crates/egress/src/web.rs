//! HTTP/1: the proxy's own requests (CONNECT, and requests with a whole URI), and requests inside a
//! tunnel. Each request's host is checked, and what goes on says the host that was checked.

mod answers;
mod relay;

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

use super::proxy::Times;
use super::reach::{Door, NotReached, Upstream};
use super::rules::Refused;
use super::tunnel::{self, Duplex, is_for};
use answers::{Answer, bad_gateway, bad_request, not_reached, ok, refused};
use relay::{Driver, Relay, Switch, strip};

/// The longest head of a request or an answer. A longer request is answered with 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The port of `http://` URIs.
const USUAL_PORT: u16 = 80;

/// What follows once an answer has turned the connection into something else.
enum After {
    Tunnel { client: OnUpgrade, upstream: Upstream },
    WebSocket { client: OnUpgrade, host: OnUpgrade, driver: Arc<Driver> },
}

/// Where a request leaves what follows it. Requests of one connection are served one by one.
#[derive(Clone, Default)]
struct Slot(Arc<Mutex<Option<After>>>);

impl Slot {
    fn leave(&self, after: After) {
        *self.0.lock().expect("no holder of this lock can panic") = Some(after);
    }

    fn take(&self) -> Option<After> {
        self.0.lock().expect("no holder of this lock can panic").take()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().expect("no holder of this lock can panic").is_none()
    }
}

/// Serves a client that takes us for its proxy.
pub(super) async fn serve_proxy(client: impl Duplex, door: &Arc<Door>) {
    let slot = Slot::default();
    let service = service_fn(|request| {
        let (door, slot) = (door.clone(), slot.clone());
        async move { Ok::<_, Infallible>(answer_proxied(request, &door, &slot).await) }
    });
    // A client that breaks off or talks nonsense is its own affair.
    let _ =
        server(door.times).serve_connection(TokioIo::new(client), service).with_upgrades().await;
    match slot.take() {
        Some(After::Tunnel { client, upstream }) => {
            if let Ok(client) = client.await {
                tunnel::run(TokioIo::new(client), upstream, door).await;
            }
        }
        Some(After::WebSocket { client, host, driver }) => join(client, host, driver).await,
        None => {}
    }
}

fn server(times: Times) -> hyper::server::conn::http1::Builder {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(times.head).max_buf_size(HEAD_BYTES_MAX);
    server
}

async fn answer_proxied(request: Request<Incoming>, door: &Door, slot: &Slot) -> Answer {
    if request.method() == Method::CONNECT {
        return open_tunnel(request, door, slot).await;
    }
    let authority =
        request.uri().authority().filter(|_| request.uri().scheme_str() == Some("http"));
    let Some((host, port)) = authority.and_then(|authority| place(authority, Some(USUAL_PORT)))
    else {
        return bad_request("send CONNECT host:port, or a whole http:// URI");
    };
    let upstream = match door.reach(&host, port).await {
        Ok(upstream) => upstream,
        Err(why) => return not_reached(&host, port, why),
    };
    let named = host_header(&upstream.host, port);
    match Relay::open(upstream.stream).await {
        Ok((mut relay, _)) => exchange(request, named, &mut relay, slot).await,
        Err(_) => bad_gateway("the host closed the connection"),
    }
}

async fn open_tunnel(request: Request<Incoming>, door: &Door, slot: &Slot) -> Answer {
    let Some((host, port)) = request.uri().authority().and_then(|wanted| place(wanted, None))
    else {
        return bad_request("CONNECT needs host:port");
    };
    match door.reach(&host, port).await {
        Ok(upstream) => {
            slot.leave(After::Tunnel { client: hyper::upgrade::on(request), upstream });
            ok()
        }
        Err(why) => not_reached(&host, port, why),
    }
}

/// Serves HTTP inside a tunnel, of which `held` has come already. It goes on over the tunnel's own
/// connection, and ends when the host closes that.
pub(super) async fn serve_tunnel(
    client: impl Duplex,
    held: Vec<u8>,
    upstream: Upstream,
    door: &Arc<Door>,
) {
    let Upstream { host, port, stream, .. } = upstream;
    let Ok((relay, mut closed)) = Relay::open(stream).await else { return };
    let tunnel = Arc::new(Tunnelled { host, port, relay: Mutex::new(Some(relay)) });
    let slot = Slot::default();
    let service = service_fn(|request| {
        let (door, slot, tunnel) = (door.clone(), slot.clone(), tunnel.clone());
        async move { Ok::<_, Infallible>(answer_tunnelled(request, &tunnel, &door, &slot).await) }
    });
    let (reader, writer) = tokio::io::split(client);
    let client = tokio::io::join(std::io::Cursor::new(held).chain(reader), writer);
    let served = server(door.times).serve_connection(TokioIo::new(client), service).with_upgrades();
    let mut served = pin!(served);
    tokio::select! {
        // First the requests: an answer that is there is passed on before the end is looked at.
        biased;
        _ = served.as_mut() => {}
        _ = &mut closed => {
            if slot.is_empty() {
                served.as_mut().graceful_shutdown();
            }
            // A client that breaks off or talks nonsense is its own affair.
            let _ = served.as_mut().await;
        }
    }
    if let Some(After::WebSocket { client, host, driver }) = slot.take() {
        join(client, host, driver).await;
    }
}

/// A tunnel that HTTP is spoken in.
struct Tunnelled {
    host: String,
    port: u16,
    /// Absent while a request is on its way.
    relay: Mutex<Option<Relay>>,
}

impl Tunnelled {
    fn take(&self) -> Option<Relay> {
        self.relay.lock().expect("no holder of this lock can panic").take()
    }

    fn put_back(&self, relay: Relay) {
        *self.relay.lock().expect("no holder of this lock can panic") = Some(relay);
    }
}

async fn answer_tunnelled(
    request: Request<Incoming>,
    tunnel: &Tunnelled,
    door: &Door,
    slot: &Slot,
) -> Answer {
    let Some(asked) = hosts_asked(&request) else {
        return bad_request("the request names its host in a way that cannot be read");
    };
    for host in &asked {
        if !is_for(host, &tunnel.host, tunnel.port, door) {
            let why = Refused::HttpHost;
            door.ledger.note(host, tunnel.port, Err(NotReached::Refused(why))).await;
            return refused(host, tunnel.port, why);
        }
    }
    if request.method() == Method::CONNECT {
        return bad_request("CONNECT is for the proxy itself");
    }
    let named = host_header(asked.first().unwrap_or(&tunnel.host), tunnel.port);
    let Some(mut relay) = tunnel.take() else {
        return bad_gateway("the host closed the connection");
    };
    let answer = exchange(request, named, &mut relay, slot).await;
    tunnel.put_back(relay);
    answer
}

/// Every host that a request names, in the URI and in its header; `None` where there is more than
/// one header, or one is no host.
fn hosts_asked(request: &Request<Incoming>) -> Option<Vec<String>> {
    let mut headers = request.headers().get_all(HOST).iter();
    let header = headers.next().map(|value| Authority::try_from(value.as_bytes()));
    let header = header.transpose().ok()?;
    if headers.next().is_some() {
        return None;
    }
    let asked = request.uri().authority().into_iter().chain(header.as_ref());
    asked.map(|authority| normal_host(&place(authority, Some(USUAL_PORT))?.0)).collect()
}

/// Sends a request on, as one for the host that was checked, and answers with what comes back.
async fn exchange(
    mut request: Request<Incoming>,
    named: Option<HeaderValue>,
    relay: &mut Relay,
    slot: &Slot,
) -> Answer {
    let Some(named) = named else { return bad_request("the host cannot be written") };
    let switch = Switch::asked_by(request.headers());
    let client = hyper::upgrade::on(&mut request);
    strip(request.headers_mut(), switch);
    request.headers_mut().insert(HOST, named);
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = origin_form(request.uri());
    let Ok(mut answer) = relay.send(request).await else {
        return bad_gateway("the host closed the connection");
    };
    let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switched && switch == Switch::No {
        return bad_gateway("the host switched protocols, which nobody asked for");
    }
    strip(answer.headers_mut(), if switched { switch } else { Switch::No });
    let driver = relay.driver();
    if switched {
        let host = hyper::upgrade::on(&mut answer);
        slot.leave(After::WebSocket { client, host, driver: driver.clone() });
    }
    answer.map(|body| {
        // The connection goes on for as long as the answer is read.
        let keep_driver = move |frame| {
            let _ = &driver;
            frame
        };
        body.map_frame(keep_driver).boxed_unsync()
    })
}

/// Joins two ends that have become a WebSocket.
async fn join(client: OnUpgrade, host: OnUpgrade, driver: Arc<Driver>) {
    let (Ok(client), Ok(host)) = (client.await, host.await) else { return };
    tunnel::copy(TokioIo::new(client), TokioIo::new(host)).await;
    drop(driver);
}

/// The host and port in a URI, which has no user in it.
fn place(authority: &Authority, usual_port: Option<u16>) -> Option<(String, u16)> {
    if authority.as_str().contains('@') {
        return None;
    }
    let port = match authority.port() {
        Some(port) => Some(port.as_str().parse().ok()?),
        None => usual_port,
    };
    Some((authority.host().to_owned(), port?))
}

/// A Host header.
fn host_header(host: &str, port: u16) -> Option<HeaderValue> {
    let mut text = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if port != USUAL_PORT {
        text.push_str(&format!(":{port}"));
    }
    HeaderValue::try_from(text).ok()
}

/// A URI as the host itself is asked for it.
fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(path)
}

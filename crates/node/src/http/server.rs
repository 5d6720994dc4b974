//! Accepts connections at the unix socket and the TCP door, and serves their requests. Checks the client's
//! credentials and its API version.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_keepalive;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{Instant, Sleep, sleep_until};
use windlass_client::TokenScope;
use windlass_client::stream::LeanStream;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{API, API_HEADER, ApiVersion};

use super::connection_slots::{ConnectionProgress, ConnectionSlot, ConnectionSlots};
use super::intake::arriving;
use super::reply::{Refusal, about_to_stop};
use super::tcp::TcpGate;
use super::wire::{ResponseBody, SlotStream};
use super::{App, router, scope, token_scopes};
use crate::failure::Failure;

/// Maximum time from the first to the last byte of a request's head.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// Maximum size of a head, and of a connection's buffer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// After a failed `accept`: maximum time to wait for a connection to close before the retry. Descriptors may
/// also become free elsewhere.
const FREE_WAIT: Duration = Duration::from_secs(1);

/// A socket at which clients connect.
#[derive(Debug)]
pub(crate) enum Listener {
    /// For programs of the same user; the kernel tells the peer's user.
    Socket(UnixListener),
    /// For clients with the token.
    Tcp(TcpListener, Box<TcpGate>),
}

/// Accepts connections until the node stops. `descriptors` is the node's limit of open descriptors. `doors`
/// are served in addition to `/v1`.
pub(crate) fn serve(listeners: Vec<Listener>, descriptors: u64, doors: Router, context: &App) {
    let slots = ConnectionSlots::within(descriptors);
    context.serving.bounds.long_connections.set_limit(slots.long_lived_max());
    let router = router(context.clone()).merge(doors);
    for listener in listeners {
        tokio::spawn(accept_all(listener, slots.clone(), router.clone(), context.clone()));
    }
}

async fn accept_all(listener: Listener, slots: Arc<ConnectionSlots>, router: Router, context: App) {
    let listener = Arc::new(listener);
    loop {
        match listener.accept().await {
            Ok(Some(stream)) => {
                let slot = slots.take().await;
                let (door, router, context) = (listener.clone(), router.clone(), context.clone());
                tokio::spawn(converse(stream, slot, door, router, context));
            }
            Ok(None) => {}
            Err(error) => {
                // Most likely the node is out of descriptors. The kernel reports that even if no client
                // waits. If one waits, an idle connection is evicted.
                if listener.has_caller() {
                    tracing::warn!(%error, "cannot accept a connection");
                    context.serving.patience.within(FREE_WAIT, slots.free_one()).await;
                } else {
                    context.serving.patience.within(FREE_WAIT, slots.wait_for_free()).await;
                }
            }
        }
    }
}

impl Listener {
    /// Whether a client waits to be accepted.
    fn has_caller(&self) -> bool {
        let listener = match self {
            Self::Socket(socket) => socket.as_fd(),
            Self::Tcp(tcp, _) => tcp.as_fd(),
        };
        let mut polled = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// The next connection; `None` if it must not be served.
    async fn accept(&self) -> io::Result<Option<LeanStream>> {
        let taken = match self {
            Self::Socket(socket) => {
                let (stream, _) = socket.accept().await?;
                let user = rustix::process::geteuid().as_raw();
                // The socket's directory already excludes other users. This check holds even if the
                // directory's mode was changed.
                if !stream.peer_cred().is_ok_and(|peer| [user, 0].contains(&peer.uid())) {
                    return Ok(None);
                }
                stream.into_std().map(OwnedFd::from)
            }
            Self::Tcp(tcp, _) => {
                let (stream, _) = tcp.accept().await?;
                // Responses are written whole, so they need no delay. Keep-alive detects a client that
                // disappeared.
                let set_up = stream.set_nodelay(true);
                let set_up = set_up.and_then(|()| Ok(set_socket_keepalive(&stream, true)?));
                set_up.and_then(|()| stream.into_std()).map(OwnedFd::from)
            }
        };
        // A stream that cannot be set up is most likely closed already.
        Ok(taken.and_then(LeanStream::new).ok())
    }

    /// What the sender of these headers may do, if it is authorised.
    fn check(&self, headers: &HeaderMap) -> Result<TokenScope, Failure> {
        match self {
            Self::Socket(_) => Ok(TokenScope::Admin),
            Self::Tcp(_, gate) => gate.check(headers),
        }
    }
}

/// One connection, from its first byte to its end.
async fn converse(
    stream: LeanStream,
    slot: ConnectionSlot,
    door: Arc<Listener>,
    router: Router,
    context: App,
) {
    // Buffers are allocated only after the first byte, because thousands of connections may send nothing.
    if begins(&stream, slot.progress()).await {
        Box::pin(exchange(stream, Arc::new(slot), door, router, context)).await;
    } else {
        drop(stream);
        // After the stream: the slot is free when the descriptor is closed.
        drop(slot);
    }
}

/// Waits for a connection's first byte. Returns false if the connection was evicted before.
async fn begins(stream: &LeanStream, progress: &ConnectionProgress) -> bool {
    let mut readable = pin!(stream.readable());
    poll_fn(|cx| {
        // A request that has arrived is answered, even if its connection was evicted.
        if progress.poll_evicted(cx).is_ready() && !stream.has_bytes() {
            return Poll::Ready(false);
        }
        readable.as_mut().poll(cx).map(|readable| readable.is_ok())
    })
    .await
}

/// Serves requests until the connection ends, takes too long for a head, or is evicted. An upgraded
/// connection belongs to its new owner, with its slot.
async fn exchange(
    stream: LeanStream,
    slot: Arc<ConnectionSlot>,
    door: Arc<Listener>,
    router: Router,
    context: App,
) {
    let service = {
        let slot = slot.clone();
        service_fn(move |request: Request<Incoming>| {
            slot.request_begins();
            let (door, router, context) = (door.clone(), router.clone(), context.clone());
            let slot = slot.clone();
            async move {
                let answered = answer(request, &slot, &door, router, &context).await;
                let last = answered.status() == StatusCode::SWITCHING_PROTOCOLS;
                Ok::<_, Infallible>(answered.map(|body| {
                    if last {
                        ResponseBody::upgrade(body, &slot)
                    } else {
                        ResponseBody::new(body, slot)
                    }
                }))
            }
        })
    };
    let wire = TokioIo::new(SlotStream { stream, slot: slot.clone() });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection = builder.max_buf_size(HEAD_BYTES_MAX).serve_connection(wire, service);
    let mut connection = pin!(connection.with_upgrades());
    let mut head = HeadWait::default();
    poll_fn(|cx| {
        // The connection is polled first: a request that has arrived is answered, even if its connection was
        // evicted. A client's error ends only that client's connection.
        if connection.as_mut().poll(cx).is_ready() || slot.progress().poll_evicted(cx).is_ready() {
            return Poll::Ready(());
        }
        head.poll_over(slot.progress(), cx)
    })
    .await;
}

/// The time limit of a head that does not arrive in one piece. Most heads arrive whole and need no timer.
#[derive(Default)]
struct HeadWait {
    timer: Option<Pin<Box<Sleep>>>,
}

impl HeadWait {
    fn poll_over(
        &mut self,
        progress: &ConnectionProgress,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<()> {
        if !progress.awaits_head() {
            self.timer = None;
            return Poll::Pending;
        }
        let timer =
            self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + HEAD_WAIT)));
        timer.as_mut().poll(cx)
    }
}

async fn answer(
    request: Request<Incoming>,
    slot: &Arc<ConnectionSlot>,
    door: &Listener,
    mut router: Router,
    context: &App,
) -> Response<Body> {
    use tower_service::Service;
    let allowed = match door.check(request.headers()) {
        Ok(allowed) => allowed,
        Err(failure) => return unauthorized(failure),
    };
    context.metrics.request();
    context.sessions.used();
    let of_a_session = request.uri().path().starts_with(SESSIONS);
    let only_looks = request.method() == Method::GET;
    let refused = check_version(&request)
        .and_then(|()| token_scopes::check(allowed, request.method(), request.uri().path()))
        .and_then(|()| scope::check(&request, context))
        .err()
        .or_else(|| (of_a_session && context.let_go()).then(about_to_stop));
    let (request, unread) = arriving(request, slot);
    let mut response = match refused {
        None => {
            let Ok(response) = router.as_service().call(request).await;
            // The session may have been released meanwhile. A GET request can be repeated at the next node.
            if of_a_session && only_looks && context.let_go() {
                Refusal(about_to_stop()).into_response()
            } else {
                response
            }
        }
        Some(failure) => {
            drop(request);
            Refusal(failure).into_response()
        }
    };
    if let Some(unread) = unread {
        unread.discard(&context.serving.patience).await;
    }
    response.headers_mut().insert(API_HEADER, HeaderValue::from_static(API_TEXT));
    response
}

/// The response to an unauthorised request. It closes the connection, so that an unauthorised client cannot
/// keep a connection slot.
fn unauthorized(failure: Failure) -> Response<Body> {
    let mut response = Refusal(failure).into_response();
    let headers = response.headers_mut();
    headers.insert(API_HEADER, HeaderValue::from_static(API_TEXT));
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The path prefix of all requests about sessions.
const SESSIONS: &str = "/v1/sessions";

/// [`API`] as a header value.
const API_TEXT: &str = "1.0";

fn check_version(request: &Request<Incoming>) -> Result<(), Failure> {
    let Some(header) = request.headers().get(API_HEADER) else { return Ok(()) };
    let theirs = header.to_str().ok().and_then(ApiVersion::parse);
    if theirs.is_some_and(|theirs| API.compatible(theirs)) {
        return Ok(());
    }
    let theirs = String::from_utf8_lossy(header.as_bytes()).into_owned();
    let node = env!("CARGO_PKG_VERSION");
    let message = format!("the client speaks API {theirs:?}, node {node} speaks {API}");
    Err(Failure::new(ErrorCode::VersionMismatch, message))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn the_header_text_is_the_api_version() {
        assert_eq!(API_TEXT, API.to_string());
    }

    #[tokio::test]
    async fn bytes_that_have_arrived_are_read_before_an_evicted_connection_closes() {
        for sent in [b"GET".as_slice(), b""] {
            let slots = ConnectionSlots::within(2);
            let slot = slots.take().await;
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(sent).unwrap();
            let stream = LeanStream::new(near.into()).unwrap();
            let mut room = pin!(slots.free_one());
            assert!(room.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(begins(&stream, slot.progress()).await, !sent.is_empty());
        }
    }
}

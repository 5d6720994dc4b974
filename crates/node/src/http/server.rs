//! Accepting connections and serving requests on them, at the unix socket and at the TCP door.
//! Who may ask is checked here; both sides say which API they speak.

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
use windlass_client::stream::LeanStream;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{API, API_HEADER, ApiVersion};

use super::intake::arriving;
use super::places::{Marks, Places, Seat};
use super::reply::{Refusal, about_to_stop};
use super::tcp::TcpGate;
use super::wire::{Outgoing, Wire};
use super::{App, router};
use crate::failure::Failure;

/// How long a request's head may take from its first byte to its last.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// The longest head; of a connection's buffers, no more is held at once.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Where no connection can be accepted: how long one of ours may take to make room before it is
/// tried again, since room may also come from elsewhere.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Where clients come from.
#[derive(Debug)]
pub(crate) enum Listener {
    /// The user's own programs, by their credentials.
    Socket(UnixListener),
    /// Whoever has the token.
    Tcp(TcpListener, TcpGate),
}

/// Accepts until the node stops. `descriptors` is how many the node may have open, and `doors` what
/// is served beside `/v1`.
pub(crate) fn serve(listeners: Vec<Listener>, descriptors: u64, doors: Router, context: &App) {
    let places = Places::within(descriptors);
    context.serving.bounds.long_connections.set(places.for_long());
    let router = router(context.clone()).merge(doors);
    for listener in listeners {
        tokio::spawn(accept_all(listener, places.clone(), router.clone(), context.clone()));
    }
}

async fn accept_all(listener: Listener, places: Arc<Places>, router: Router, context: App) {
    let listener = Arc::new(listener);
    loop {
        match listener.accept().await {
            Ok(Some(stream)) => {
                let seat = places.take().await;
                let (door, router, context) = (listener.clone(), router.clone(), context.clone());
                tokio::spawn(converse(stream, seat, door, router, context));
            }
            Ok(None) => {}
            Err(error) => {
                // Most likely out of descriptors, which the kernel says before it looks whether
                // anybody waits. If somebody does, an idle connection leaves for it.
                if listener.has_caller() {
                    tracing::warn!(%error, "cannot accept a connection");
                    context.serving.patience.within(ROOM_WAIT, places.make_room()).await;
                } else {
                    context.serving.patience.within(ROOM_WAIT, places.wait_for_room()).await;
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
        let mut asked = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// The next connection; none, if it is not to be served.
    async fn accept(&self) -> io::Result<Option<LeanStream>> {
        let taken = match self {
            Self::Socket(socket) => {
                let (stream, _) = socket.accept().await?;
                let user = rustix::process::geteuid().as_raw();
                // The directory keeps others out; this holds even where its mode was changed.
                if !stream.peer_cred().is_ok_and(|peer| [user, 0].contains(&peer.uid())) {
                    return Ok(None);
                }
                stream.into_std().map(OwnedFd::from)
            }
            Self::Tcp(tcp, _) => {
                let (stream, _) = tcp.accept().await?;
                // Answers are written whole; a client that is gone without a word is found out.
                let set_up = stream.set_nodelay(true);
                let set_up = set_up.and_then(|()| Ok(set_socket_keepalive(&stream, true)?));
                set_up.and_then(|()| stream.into_std()).map(OwnedFd::from)
            }
        };
        // One that cannot be set up is gone already, most likely.
        Ok(taken.and_then(LeanStream::new).ok())
    }

    /// Whether whoever sent these headers may ask.
    fn check(&self, headers: &HeaderMap) -> Result<(), Failure> {
        match self {
            Self::Socket(_) => Ok(()),
            Self::Tcp(_, gate) => gate.check(headers),
        }
    }
}

/// One connection, from its first byte to its end.
async fn converse(
    stream: LeanStream,
    seat: Seat,
    door: Arc<Listener>,
    router: Router,
    context: App,
) {
    // Buffers and all that are made for those who say something: thousands may not.
    if begins(&stream, seat.marks()).await {
        Box::pin(exchange(stream, Arc::new(seat), door, router, context)).await;
    } else {
        drop(stream);
        // Only now: the place is free when the descriptor is.
        drop(seat);
    }
}

/// Waits for a connection's first byte; whether it came before the connection had to leave.
async fn begins(stream: &LeanStream, marks: &Marks) -> bool {
    let mut readable = pin!(stream.readable());
    poll_fn(|cx| {
        // A request that has arrived is answered before its connection is closed to make room.
        if marks.poll_leave(cx).is_ready() && !stream.has_bytes() {
            return Poll::Ready(false);
        }
        readable.as_mut().poll(cx).map(|readable| readable.is_ok())
    })
    .await
}

/// Serves requests until the connection ends, takes too long over a head, or is told to leave. One
/// that became something else is its new owner's, with its place.
async fn exchange(
    stream: LeanStream,
    seat: Arc<Seat>,
    door: Arc<Listener>,
    router: Router,
    context: App,
) {
    let service = {
        let seat = seat.clone();
        service_fn(move |request: Request<Incoming>| {
            seat.request_begins();
            let (door, router, context) = (door.clone(), router.clone(), context.clone());
            let seat = seat.clone();
            async move {
                let answered = answer(request, &seat, &door, router, &context).await;
                let last = answered.status() == StatusCode::SWITCHING_PROTOCOLS;
                Ok::<_, Infallible>(answered.map(|body| {
                    if last { Outgoing::last(body, &seat) } else { Outgoing::new(body, seat) }
                }))
            }
        })
    };
    let wire = TokioIo::new(Wire { stream, seat: seat.clone() });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection = builder.max_buf_size(HEAD_BYTES_MAX).serve_connection(wire, service);
    let mut connection = pin!(connection.with_upgrades());
    let mut head = HeadWait::default();
    poll_fn(|cx| {
        // The connection comes first: a request that has arrived is answered before its connection is
        // closed to make room. A client's error ends that client's connection only.
        if connection.as_mut().poll(cx).is_ready() || seat.marks().poll_leave(cx).is_ready() {
            return Poll::Ready(());
        }
        head.poll_over(seat.marks(), cx)
    })
    .await;
}

/// The limit of a head that does not come in one piece. The usual one needs no timer.
#[derive(Default)]
struct HeadWait {
    timer: Option<Pin<Box<Sleep>>>,
}

impl HeadWait {
    fn poll_over(&mut self, marks: &Marks, cx: &mut std::task::Context<'_>) -> Poll<()> {
        if !marks.awaits_head() {
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
    seat: &Arc<Seat>,
    door: &Listener,
    mut router: Router,
    context: &App,
) -> Response<Body> {
    use tower_service::Service;
    if let Err(failure) = door.check(request.headers()) {
        return turn_away(failure);
    }
    context.metrics.request();
    context.sessions.used();
    let of_a_session = request.uri().path().starts_with(SESSIONS);
    let only_looks = request.method() == Method::GET;
    let refused = check_version(&request)
        .err()
        .or_else(|| (of_a_session && context.let_go()).then(about_to_stop));
    let (request, unread) = arriving(request, seat);
    let mut response = match refused {
        None => {
            let Ok(response) = router.as_service().call(request).await;
            // It may have been let go of meanwhile; whoever only looks may ask again.
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

/// The answer to whoever may not ask. Nothing more is heard from this connection: who does not
/// read the answers to what it may not ask would hold a place for nothing.
fn turn_away(failure: Failure) -> Response<Body> {
    let mut response = Refusal(failure).into_response();
    let headers = response.headers_mut();
    headers.insert(API_HEADER, HeaderValue::from_static(API_TEXT));
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Where everything about sessions is.
const SESSIONS: &str = "/v1/sessions";

/// [`API`] as a header value.
const API_TEXT: &str = "1.0";

fn check_version(request: &Request<Incoming>) -> Result<(), Failure> {
    let Some(said) = request.headers().get(API_HEADER) else { return Ok(()) };
    let theirs = said.to_str().ok().and_then(ApiVersion::parse);
    if theirs.is_some_and(|theirs| API.compatible(theirs)) {
        return Ok(());
    }
    let theirs = String::from_utf8_lossy(said.as_bytes()).into_owned();
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
    fn the_header_says_the_version_we_speak() {
        assert_eq!(API_TEXT, API.to_string());
    }

    #[tokio::test]
    async fn what_has_come_is_heard_before_its_connection_leaves() {
        for sent in [b"GET".as_slice(), b""] {
            let places = Places::within(2);
            let seat = places.take().await;
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(sent).unwrap();
            let stream = LeanStream::new(near.into()).unwrap();
            let mut room = pin!(places.make_room());
            assert!(room.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(begins(&stream, seat.marks()).await, !sent.is_empty());
        }
    }
}

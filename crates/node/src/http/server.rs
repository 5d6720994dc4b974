//! Accepts connections at the unix socket and the TCP door, and serves their requests. Checks the client's
//! credentials and its API version.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_keepalive;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::TlsAcceptor;
use windlass_client::TokenRights;
use windlass_client::stream::LeanStream;
use windlass_fleet::credentials::NodeTls;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{API, API_HEADER, ApiVersion};

use super::audit::{self, DoorKind, RemoteEnd, RequestSender};
use super::certificate::DoorCertificate;
use super::connection_slots::{ConnectionProgress, ConnectionSlot, ConnectionSlots};
use super::console_gate::{self, AdmittedClient, LoginMeans, check_page, is_log_in, is_of_page};
use super::handshake::shake_hands;
use super::head_wait::HeadWait;
use super::intake::arriving;
use super::peers::{ConnectionPeer, PassedOn, admit, refuse_removed};
use super::reply::{self, Refusal, about_to_stop};
use super::site::{DoorScheme, DoorSite, SiteUse};
use super::tcp::TcpGate;
use super::wire::{AcceptedStream, ResponseBody, SlotStream};
use super::{App, console, creation, router, scope, tenant, token_scopes};
use crate::bounds::BudgetShare;
use crate::clock;
use crate::console::ConsoleAccess;
use crate::failure::Failure;
use crate::fleet::forward::{self, Passed};

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
    /// For clients with the token; encrypted if the door has a certificate.
    Tcp { listener: TcpListener, gate: Box<TcpGate>, certificate: Option<Box<DoorCertificate>> },
    /// For the pages of the console, from the first login on. At a loopback address.
    Console(TcpListener, DoorSite),
    /// For the other nodes of the fleet; always encrypted.
    Peers(TcpListener, NodeTls),
}

/// Accepts connections until the node stops listening. `descriptors` is the node's limit of open descriptors. `doors`
/// are served in addition to `/v1`.
pub(crate) fn serve(listeners: Vec<Listener>, descriptors: u64, doors: Router, context: &App) {
    let slots = ConnectionSlots::within(descriptors);
    context.serving.bounds.set_requests(slots.count_max());
    context.serving.bounds.set_long_connections(slots.long_lived_max());
    context.metrics.connection_slots(slots.count_max());
    let router = router(context.clone()).merge(doors);
    for mut listener in listeners {
        if let Listener::Tcp { gate, .. } = &mut listener {
            gate.record_token_changes(&context.serving.audit.log);
        }
        tokio::spawn(accept_all(listener, slots.clone(), router.clone(), context.clone()));
    }
    tokio::spawn(accept_pages(slots, router, context.clone()));
}

/// Serves the console's addresses once somebody has asked for a login there. Until then they do not exist.
async fn accept_pages(slots: Arc<ConnectionSlots>, router: Router, context: App) {
    let (address, listeners) = context.serving.console.opened().await;
    let site = DoorSite::new(address, DoorScheme::Http);
    for listener in listeners {
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                let door = Listener::Console(listener, site);
                tokio::spawn(accept_all(door, slots.clone(), router.clone(), context.clone()));
            }
            Err(error) => tracing::error!(%error, %address, "cannot serve the console"),
        }
    }
}

async fn accept_all(listener: Listener, slots: Arc<ConnectionSlots>, router: Router, context: App) {
    let listener = Arc::new(listener);
    loop {
        match listener.accept().await {
            Ok(Some(stream)) => {
                let slot = slots.take().await;
                let (door, router, context) = (listener.clone(), router.clone(), context.clone());
                let open = context.metrics.connection_opened();
                tokio::spawn(async move {
                    converse(stream, slot, door, router, context).await;
                    drop(open);
                });
            }
            Ok(None) => {}
            Err(_) if listener.has_stopped(&context) => return,
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
            Self::Tcp { listener, .. } | Self::Console(listener, _) | Self::Peers(listener, _) => {
                listener.as_fd()
            }
        };
        let mut polled = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Whether the node has stopped listening here.
    fn has_stopped(&self, context: &App) -> bool {
        matches!(self, Self::Console(..)) && context.serving.console.has_stopped_listening()
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
            Self::Tcp { listener, .. } | Self::Console(listener, _) | Self::Peers(listener, _) => {
                accept_tcp(listener).await?
            }
        };
        // A stream that cannot be set up is most likely closed already.
        Ok(taken.and_then(LeanStream::new).ok())
    }

    /// The client that sends these headers, if it is authorised.
    fn check(
        &self,
        headers: &HeaderMap,
        console: &ConsoleAccess,
    ) -> Result<AdmittedClient, Failure> {
        match self {
            Self::Socket(_) => Ok(AdmittedClient::Owner),
            Self::Tcp { gate, .. } if is_of_page(headers) => {
                check_page(headers, gate.site(), console)
            }
            Self::Tcp { gate, .. } => gate.check(headers).map(AdmittedClient::Token),
            Self::Console(_, site) => check_page(headers, site, console),
            Self::Peers(..) => {
                Err(Failure::new(ErrorCode::Unauthorized, "this address is not for clients"))
            }
        }
    }

    fn kind(&self) -> DoorKind {
        match self {
            Self::Socket(_) => DoorKind::Socket,
            Self::Tcp { .. } => DoorKind::Tcp,
            Self::Console(..) => DoorKind::Console,
            Self::Peers(..) => DoorKind::Peers,
        }
    }

    /// How pages of the console name this door; `None` if browsers cannot use it.
    fn site(&self) -> Option<&DoorSite> {
        match self {
            Self::Tcp { gate, .. } => Some(gate.site()),
            Self::Console(_, site) => Some(site),
            Self::Socket(_) | Self::Peers(..) => None,
        }
    }

    /// With what a page logs in here.
    fn login_means(&self) -> LoginMeans {
        match self {
            Self::Tcp { .. } => LoginMeans::CodeOrToken,
            Self::Socket(_) | Self::Console(..) | Self::Peers(..) => LoginMeans::Code,
        }
    }

    /// For the TLS handshake of a new connection; `None` if this door is not encrypted.
    fn acceptor(&self) -> Option<TlsAcceptor> {
        match self {
            Self::Socket(_) | Self::Console(..) => None,
            Self::Tcp { certificate, .. } => Some(certificate.as_ref()?.acceptor()),
            Self::Peers(_, tls) => Some(tls.acceptor()),
        }
    }

    /// The other end of a connection at this door, after its handshake.
    fn peer(&self, stream: &AcceptedStream) -> ConnectionPeer {
        match (self, stream) {
            (Self::Socket(_) | Self::Tcp { .. } | Self::Console(..), _) => ConnectionPeer::Client,
            (Self::Peers(..), AcceptedStream::Tls(stream)) => {
                let (_, connection) = stream.get_ref();
                NodeTls::peer_of(connection).map_or(ConnectionPeer::Nobody, ConnectionPeer::Node)
            }
            (Self::Peers(..), AcceptedStream::Plain(_)) => ConnectionPeer::Nobody,
        }
    }

    /// Ends a connection when the certificate of the node at its other end expires: a node that was removed from the
    /// fleet keeps its connections, but not for longer.
    fn expiry(&self, stream: &AcceptedStream) -> Option<Pin<Box<Sleep>>> {
        let (Self::Peers(..), AcceptedStream::Tls(stream)) = (self, stream) else { return None };
        let left = NodeTls::peer_valid_for(stream.get_ref().1, clock::now_ms())?;
        Some(Box::pin(sleep_until(Instant::now() + left)))
    }

    /// The stream of a connection whose first byte has arrived; `None` if there is no request to serve.
    async fn open(
        &self,
        stream: LeanStream,
        progress: &ConnectionProgress,
        head: &mut HeadWait,
    ) -> Option<AcceptedStream> {
        let Some(acceptor) = self.acceptor() else { return Some(AcceptedStream::Plain(stream)) };
        // Boxed, because the handshake is large and the connection is long.
        let stream = Box::pin(shake_hands(stream, &acceptor, progress, head)).await?;
        Some(AcceptedStream::Tls(stream))
    }
}

/// Accepts a TCP connection. The inner result is about the connection alone.
async fn accept_tcp(listener: &TcpListener) -> io::Result<io::Result<OwnedFd>> {
    let (stream, _) = listener.accept().await?;
    // Responses are written whole, so they need no delay. Keep-alive detects a client that disappeared.
    let set_up = stream.set_nodelay(true);
    let set_up = set_up.and_then(|()| Ok(set_socket_keepalive(&stream, true)?));
    Ok(set_up.and_then(|()| stream.into_std()).map(OwnedFd::from))
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
    let mut head = HeadWait::default();
    let mut end = RemoteEnd::of(&stream, door.kind());
    let Some(stream) = door.open(stream, slot.progress(), &mut head).await else { return };
    end.peer = door.peer(&stream);
    let (end, mut expiry) = (Arc::new(end), door.expiry(&stream));
    let service = {
        let slot = slot.clone();
        service_fn(move |request: Request<Incoming>| {
            slot.request_begins();
            let (door, router, context) = (door.clone(), router.clone(), context.clone());
            let (slot, end) = (slot.clone(), end.clone());
            async move {
                let (answered, share) =
                    answer(request, &end, &slot, &door, router, &context).await?;
                let last = answered.status() == StatusCode::SWITCHING_PROTOCOLS;
                Ok::<_, RequestCutOff>(answered.map(|body| {
                    if last {
                        ResponseBody::upgrade(body, &slot)
                    } else {
                        ResponseBody::new(body, slot, share)
                    }
                }))
            }
        })
    };
    let wire = TokioIo::new(SlotStream { stream, slot: slot.clone() });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection = builder.max_buf_size(HEAD_BYTES_MAX).serve_connection(wire, service);
    let mut connection = pin!(connection.with_upgrades());
    poll_fn(|cx| {
        if expiry.as_mut().is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready()) {
            expiry = None;
            // A request in flight is still answered.
            connection.as_mut().graceful_shutdown();
        }
        // The connection is polled first: a request that has arrived is answered, even if its connection was
        // evicted. A client's error ends only that client's connection.
        if connection.as_mut().poll(cx).is_ready() || slot.progress().poll_evicted(cx).is_ready() {
            return Poll::Ready(());
        }
        head.poll_over(slot.progress(), cx)
    })
    .await;
}

/// The node that has the session went away with the request. The client's connection ends, as if its own node had.
#[derive(Debug, thiserror::Error)]
#[error("the request was passed on, and has no answer")]
struct RequestCutOff;

/// The answer, and the tenant's share of the requests that are being answered, for as long as the client gets the answer.
async fn answer(
    mut request: Request<Incoming>,
    end: &RemoteEnd,
    slot: &Arc<ConnectionSlot>,
    door: &Listener,
    router: Router,
    context: &App,
) -> Result<(Response<Body>, Option<BudgetShare>), RequestCutOff> {
    let site = door.site();
    if let Some(file) = site.and_then(|site| console::file(&request, site)) {
        return Ok((file, None));
    }
    let (client, rights) = match identify(&mut request, &end.peer, door, context) {
        Ok(found) => found,
        Err(failure) => {
            let sender = RequestSender { end, client: None, rights: None };
            audit::record_refused(&request, sender, &failure, context);
            return Ok((not_admitted(failure), None));
        }
    };
    // Anyone may try to log in: that is no use of the node, and keeps no connection.
    let logs_in = client == Some(AdmittedClient::LoggingIn);
    context.metrics.request();
    // A node may exit after its idle time without a request. A request that is being answered keeps it, however long.
    let _serving = (!logs_in).then(|| context.sessions.serve());
    if !logs_in {
        slot.progress().admit();
    }
    let of_a_session = request.uri().path().starts_with(SESSIONS);
    let only_looks = request.method() == Method::GET;
    let (share, refused) = match check_request(&mut request, &rights, context) {
        Ok(share) => (share, None),
        Err(failure) => (None, Some(failure)),
    };
    let sender = RequestSender { end, client: client.as_ref(), rights: Some(&rights) };
    let note = audit::begin(&mut request, sender, refused.as_ref(), context);
    let (request, unread) = arriving(request, slot);
    let mut response = match refused {
        None => {
            let response = served(request, &rights, router, context).await?;
            // The session may have been released meanwhile. A GET request can be repeated at the next node.
            if of_a_session && only_looks && context.let_go() {
                Refusal(about_to_stop()).into_response()
            } else {
                response
            }
        }
        Some(failure) => {
            let refusal = refused_with_methods(&request, failure);
            // The body that no handler has read is left for `unread`.
            drop(request);
            refusal
        }
    };
    audit::end(&note, &response, context);
    if rights.tenant.is_some() {
        response = reply::for_tenant(response);
    }
    if let Some(unread) = unread {
        unread.discard(&context.serving.patience).await;
    }
    response.headers_mut().insert(API_HEADER, HeaderValue::from_static(API_TEXT));
    if logs_in {
        end_unless_logged_in(&mut response, context);
    }
    if let Some(client) = &client {
        console_gate::stamp(&mut response, client, site, &context.serving.console);
    }
    Ok((response, share))
}

/// Whether an admitted client may send this request. Returns the tenant's share of the requests that are being answered.
fn check_request(
    request: &mut Request<Incoming>,
    rights: &TokenRights,
    context: &App,
) -> Result<Option<BudgetShare>, Failure> {
    check_version(request)?;
    token_scopes::check(rights, request.method(), request.uri().path())?;
    tenant::enter(request, rights.tenant.as_ref())?;
    scope::check(request, context)?;
    let share = claim_request(rights, context)?;
    let of_a_session = request.uri().path().starts_with(SESSIONS);
    if of_a_session && context.let_go() { Err(about_to_stop()) } else { Ok(share) }
}

/// Ends the connection of a client that has failed to log in. A login is a use of the node.
fn end_unless_logged_in(response: &mut Response<Body>, context: &App) {
    if response.status() == StatusCode::OK {
        context.sessions.used();
    } else {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// The answer to a refused request. For a wrong method it names the right ones.
fn refused_with_methods<B>(request: &Request<B>, failure: Failure) -> Response<Body> {
    let has_methods = failure.code == ErrorCode::MethodNotAllowed;
    let methods = has_methods.then(|| token_scopes::methods_of(request.uri().path()));
    let mut response = Refusal(failure).into_response();
    if let Some(Ok(methods)) = methods.map(|all| HeaderValue::from_str(&all.join(","))) {
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}

/// Claims a request of a tenant's client. The tenant's long-lived connections have a smaller limit, so they leave requests
/// for the tenant's short ones.
fn claim_request(rights: &TokenRights, context: &App) -> Result<Option<BudgetShare>, Failure> {
    let Some(tenant) = &rights.tenant else { return Ok(None) };
    context.serving.bounds.of(Some(tenant)).requests.claim(1).map(Some)
}

/// The sender of a request and its rights, if it is authorised. The sender is `None` at the door for nodes.
fn identify(
    request: &mut Request<Incoming>,
    peer: &ConnectionPeer,
    door: &Listener,
    context: &App,
) -> Result<(Option<AdmittedClient>, TokenRights), Failure> {
    refuse_removed(peer, context.fleet())?;
    let logs_in = door.site().filter(|_| is_log_in(request)).copied();
    let mut client = None;
    let rights = admit(request, peer, |headers| {
        let found = match logs_in {
            Some(site) => site.check(headers, SiteUse::Api).map(|()| AdmittedClient::LoggingIn),
            None => door.check(headers, &context.serving.console),
        }?;
        let rights = found.rights();
        client = Some(found);
        Ok(rights)
    })?;
    if let Some(client) = &client {
        console_gate::mark(request, client, door.site(), door.login_means());
    }
    Ok((client, rights))
}

/// The answer of this node's handlers, or of the node that has the session. `rights` is what the client may do.
async fn served(
    request: Request<Body>,
    rights: &TokenRights,
    mut router: Router,
    context: &App,
) -> Result<Response<Body>, RequestCutOff> {
    use tower_service::Service;
    let is_passed_on = request.extensions().get::<PassedOn>().is_some();
    if is_passed_on
        && let Some(failure) =
            Box::pin(forward::refuse_foreign(context, request.method(), request.uri())).await
    {
        return Ok(Refusal(failure).into_response());
    }
    let passed = match (creation::is_creation(&request), is_passed_on) {
        (true, true) => creation::admit(request, context),
        (true, false) => Box::pin(creation::place(request, rights, context)).await,
        (false, true) => Passed::Here(request),
        (false, false) => forward::pass_on(context, rights, request).await,
    };
    match passed {
        Passed::Here(request) => {
            let Ok(response) = router.as_service().call(request).await;
            Ok(response)
        }
        Passed::Answered(response) => Ok(response),
        Passed::Refused(failure) => Ok(Refusal(failure).into_response()),
        Passed::Cut => Err(RequestCutOff),
    }
}

/// The response to an unauthorised request. It closes the connection, so that an unauthorised client cannot
/// keep a connection slot.
fn not_admitted(failure: Failure) -> Response<Body> {
    let lacks_token = failure.code == ErrorCode::Unauthorized;
    let mut response = Refusal(failure).into_response();
    let headers = response.headers_mut();
    headers.insert(API_HEADER, HeaderValue::from_static(API_TEXT));
    if lacks_token {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
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

//! Passes a request on to the node that has the session, and the answer back. The other node trusts this one by its
//! certificate, and takes the rights of the client's token from a header. A request is passed on once.
//!
//! If the other node cannot be reached, nothing was done and the client is told so. If the connection ends after the
//! request has left, or the node no longer answers, nobody knows what was done: the client's connection is cut too, as if
//! its own node had died. A request that only reads changes nothing, so it is refused instead.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout_at};
use windlass_client::TokenRights;
use windlass_lifecycle::fleet::PeerStatus;
use windlass_protocol::fleet::PASSED_ON_HEADER;
use windlass_protocol::{ErrorCode, NodeName, SessionId};

use super::ended_here::{EndedSource, JournaledEnd, undecided};
use super::liveness::{AnswerWait, status_with};
use super::lost::{LostAnswer, LostSession};
use super::peer_body::PeerBody;
use super::peers::PeerSender;
use super::{FleetNode, SessionRoute, lost};
use crate::bounds::BudgetShare;
use crate::clock::now_ms;
use crate::context::Context;
use crate::failure::Failure;
use crate::http::CONSOLE_KEY;

/// Up to this size a body is read first, so that the request can be sent again.
const REPEATABLE_BYTES_MAX: usize = 64 * 1024;

/// How long a request waits for a node that starts again, and the pauses between the tries.
const OWNER_WAIT: Duration = Duration::from_secs(3);
const OWNER_PAUSE: Duration = Duration::from_millis(20);
const OWNER_PAUSE_MAX: Duration = Duration::from_millis(200);

/// How many connections a request tries that the other node closes before the request has left: more than the idle ones
/// that are kept to a node.
const CONNECTIONS_TRIED_MAX: usize = 40;

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Passed {
    /// This node serves it.
    Here(Request<Body>),
    Answered(Response<Body>),
    Refused(Failure),
    /// The client gets no answer: its connection ends.
    Cut,
}

/// Passes the request on, if another node has its session. `rights` is what the client's token allows.
pub(crate) async fn pass_on(
    context: &Context,
    rights: &TokenRights,
    request: Request<Body>,
) -> Passed {
    let Some(fleet) = context.fleet() else { return Passed::Here(request) };
    let Some(session) = session_of(request.uri()) else { return Passed::Here(request) };
    if context.sessions.knows(&session) {
        return Passed::Here(request);
    }
    // Boxed, because each connection keeps room for what its requests may need.
    Box::pin(pass_on_unknown(context, fleet, session, rights, request)).await
}

/// Passes a request on about a session that does not live here.
async fn pass_on_unknown(
    context: &Context,
    fleet: &FleetNode,
    session: SessionId,
    rights: &TokenRights,
    request: Request<Body>,
) -> Passed {
    match fleet.route(&session).await {
        SessionRoute::Here(entry) => match JournaledEnd::of(context, &session).source(entry) {
            EndedSource::Journal => Passed::Here(request),
            EndedSource::CopyOfEnded => {
                let (parts, body) = request.into_parts();
                let answer = lost::answer_ended(context, fleet, &session, &parts).await;
                match answer {
                    Some(answer) => answered_from_copy(answer, &parts),
                    None => Passed::Here(Request::from_parts(parts, body)),
                }
            }
            EndedSource::Copy(lost) => {
                let (parts, _) = request.into_parts();
                answer_lost(context, fleet, &lost, &parts).await
            }
            EndedSource::Undecided => Passed::Refused(undecided(fleet.name(), &session)),
        },
        SessionRoute::There(node) => match long_connection(context, &session, request.headers()) {
            Ok(share) => fleet.send(context, node, &session, rights, request, share).await,
            Err(failure) => Passed::Refused(failure),
        },
        SessionRoute::Lost(lost) => {
            let (parts, _) = request.into_parts();
            answer_lost(context, fleet, &lost, &parts).await
        }
        SessionRoute::Unknown(failure) => {
            let end = JournaledEnd::of(context, &session);
            match end.answers_alone(fleet.joined().is_some(), request.method().is_safe()) {
                true => Passed::Here(request),
                false => Passed::Refused(failure),
            }
        }
    }
}

async fn answer_lost(
    context: &Context,
    fleet: &FleetNode,
    lost: &LostSession,
    request: &Parts,
) -> Passed {
    let answered = lost::answer(context, fleet, lost, request).await;
    answered.map_or_else(Passed::Refused, |answer| answered_from_copy(answer, request))
}

fn answered_from_copy(answer: LostAnswer, request: &Parts) -> Passed {
    match answer {
        LostAnswer::Response(response) => Passed::Answered(response),
        LostAnswer::Copy(copy) => {
            let mut request = Request::from_parts(request.clone(), Body::empty());
            request.extensions_mut().insert(copy);
            Passed::Here(request)
        }
    }
}

/// The share of a connection that lasts: it counts here as it does at the node that has the session.
fn long_connection(
    context: &Context,
    session: &SessionId,
    headers: &HeaderMap,
) -> Result<Option<BudgetShare>, Failure> {
    let bounds = context.serving.bounds.of_session(session);
    lasts(headers).then(|| bounds.long_connections.claim(1)).transpose()
}

fn lasts(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE) || lost::wants_stream(headers)
}

/// How long the answer to a request may take.
fn answer_wait(request: &Parts) -> AnswerWait {
    let mut query = request.uri.query().into_iter().flat_map(|query| query.split('&'));
    let waits = query.any(|pair| pair.strip_prefix("wait_ms=").is_some_and(|wait| wait != "0"));
    if request.method.is_safe() && !waits && !lasts(&request.headers) {
        AnswerWait::Short
    } else {
        AnswerWait::Long
    }
}

/// The refusal of a request that was passed on to this node, if it has no such session. The node that passed it on asks
/// the directory then. A session that has ended here may have a successor of its name elsewhere.
pub(crate) async fn refuse_foreign(
    context: &Context,
    method: &Method,
    uri: &Uri,
) -> Option<Failure> {
    let session = session_of(uri)?;
    if context.sessions.knows(&session) {
        return None;
    }
    let end = JournaledEnd::of(context, &session);
    if end != JournaledEnd::Missing {
        let fleet = context.fleet()?;
        match fleet.look_up(&session).await {
            SessionRoute::Here(entry) => match end.source(entry) {
                EndedSource::Journal => return None,
                // The node that passed the request on reads the copy.
                EndedSource::Copy(_) | EndedSource::CopyOfEnded => {}
                EndedSource::Undecided => return Some(undecided(fleet.name(), &session)),
            },
            SessionRoute::There(_) | SessionRoute::Lost(_) => {}
            SessionRoute::Unknown(failure) => {
                let alone = end.answers_alone(fleet.joined().is_some(), method.is_safe());
                return (!alone).then_some(failure);
            }
        }
    }
    let message = format!("this node has no session {session}");
    Some(Failure::new(ErrorCode::NotHere, message))
}

/// The session that a request is about.
fn session_of(uri: &Uri) -> Option<SessionId> {
    let path = uri.path();
    let id = match path.strip_prefix("/v1/sessions/") {
        Some(rest) => rest.split('/').next(),
        None if path == "/v1/tools/host" => {
            uri.query()?.split('&').find_map(|pair| pair.strip_prefix("session="))
        }
        None => None,
    };
    SessionId::parse(id?).ok()
}

/// The request's body, as far as it is here.
pub(super) enum OutgoingBody {
    Whole(Bytes),
    Arriving(Body),
}

/// The connection of the client for whom a request is passed on. A request of this node itself has none.
#[derive(Default)]
pub(super) struct ClientConnection {
    /// If the client wants to upgrade it.
    pub upgrade: Option<OnUpgrade>,
    /// If it lasts.
    pub share: Option<BudgetShare>,
}

/// Why a request has no answer.
pub(super) enum SendError {
    /// Nothing was done.
    Unreachable(Failure),
    /// It may have been done.
    Cut,
}

impl FleetNode {
    async fn send(
        &self,
        context: &Context,
        mut node: NodeName,
        session: &SessionId,
        rights: &TokenRights,
        request: Request<Body>,
        share: Option<BudgetShare>,
    ) -> Passed {
        let (mut parts, body) = request.into_parts();
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let upgrade = upgrade.filter(|_| parts.headers.contains_key(UPGRADE));
        prepare(&mut parts.headers, rights, upgrade.is_some());
        let fits = body.size_hint().upper().is_some_and(|most| most <= REPEATABLE_BYTES_MAX as u64);
        let mut body = match fits {
            false => OutgoingBody::Arriving(body),
            true => match axum::body::to_bytes(body, REPEATABLE_BYTES_MAX).await {
                Ok(bytes) => OutgoingBody::Whole(bytes),
                Err(_) => return Passed::Cut,
            },
        };
        let mut is_second = false;
        loop {
            let again = match &body {
                OutgoingBody::Whole(bytes) => Some(bytes.clone()),
                OutgoingBody::Arriving(_) => None,
            };
            let refusal = match self.exchange(&node, Some(session), &parts, body).await {
                Ok((response, sender)) if response.status() != StatusCode::MISDIRECTED_REQUEST => {
                    let client = ClientConnection { upgrade, share };
                    return Passed::Answered(self.returned(node, response, sender, client));
                }
                Ok(_) => missing(session),
                Err(SendError::Unreachable(failure)) => failure,
                Err(SendError::Cut) => return Passed::Cut,
            };
            if is_second {
                return Passed::Refused(refusal);
            }
            // The route of the cache may be old.
            (node, body) = match (self.route_anew(session).await, again) {
                (SessionRoute::There(other), Some(bytes)) if other != node => {
                    (other, OutgoingBody::Whole(bytes))
                }
                (SessionRoute::There(other), None) if other != node => {
                    return Passed::Refused(moved(session));
                }
                (SessionRoute::Lost(lost), _) => {
                    return answer_lost(context, self, &lost, &parts).await;
                }
                (SessionRoute::Unknown(failure), _) => return Passed::Refused(failure),
                _ => {
                    let answered = self.answer_without_owner(context, session, &parts).await;
                    return answered.unwrap_or(Passed::Refused(refusal));
                }
            };
            is_second = true;
        }
    }

    /// The answer from the copy of a session whose owner cannot be reached or does not have its journal any more. `None` if
    /// the request needs the owner.
    async fn answer_without_owner(
        &self,
        context: &Context,
        session: &SessionId,
        request: &Parts,
    ) -> Option<Passed> {
        // The owner was lost, and is back with a new disk, or for other nodes only.
        if let Some(lost) = self.find_lost(session).await {
            return Some(answer_lost(context, self, &lost, request).await);
        }
        let answer = lost::answer_ended(context, self, session, request).await?;
        Some(answered_from_copy(answer, request))
    }

    /// Sends a request to a node, which has this session if it is about one.
    pub(super) async fn exchange(
        &self,
        node: &NodeName,
        session: Option<&SessionId>,
        parts: &Parts,
        body: OutgoingBody,
    ) -> Result<(Response<Incoming>, PeerSender), SendError> {
        let mut request = Request::new(match body {
            OutgoingBody::Whole(bytes) => Body::from(bytes),
            OutgoingBody::Arriving(body) => body,
        });
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = target(&parts.uri);
        *request.headers_mut() = parts.headers.clone();
        let wait = answer_wait(parts);
        for _ in 0..CONNECTIONS_TRIED_MAX {
            let mut sender = self.connection(node, session).await?;
            let sent = tokio::select! {
                biased;
                sent = sender.try_send_request(request) => sent,
                () = self.peers.until_gone(node, wait) => {
                    return Err(unanswered(&parts.method, node, session, "it does not answer"));
                }
            };
            match sent {
                Ok(response) => return Ok((response, sender)),
                // An idle connection that the other node has closed. Nothing was sent.
                Err(mut unsent) => match unsent.take_message() {
                    Some(message) => request = message,
                    None => {
                        let why = "it ended the connection";
                        return Err(unanswered(&parts.method, node, session, why));
                    }
                },
            }
        }
        Err(not_reached(node, session, "it closes every connection"))
    }

    /// A connection to a node. Waits a moment for a node that starts again. A node whose lease has expired is not waited
    /// for.
    async fn connection(
        &self,
        node: &NodeName,
        session: Option<&SessionId>,
    ) -> Result<PeerSender, SendError> {
        // With TLS 1.3, the other node refuses the certificate only after the request has left.
        if self.tls.expires_at() <= now_ms() {
            return Err(not_reached(node, session, "the certificate of this node has expired"));
        }
        if self.removed().has(node) {
            return Err(not_reached(node, session, "it was removed from the fleet"));
        }
        if self.peers.is_gone(node).await {
            return Err(not_reached(
                node,
                session,
                "it does not answer, and its lease has expired",
            ));
        }
        if let Some(sender) = self.peers.connections.take(node) {
            return Ok(sender);
        }
        let until = Instant::now() + OWNER_WAIT;
        let mut pause = OWNER_PAUSE;
        loop {
            let (address, status) = self.whereabouts(node).await;
            let error = match address {
                Some(address) => {
                    match timeout_at(until, self.peers.connections.open(node, &address)).await {
                        Ok(Ok(sender)) => return Ok(sender),
                        Ok(Err(error)) => error.to_string(),
                        Err(_) => "it does not answer".to_owned(),
                    }
                }
                None => "its address is not known".to_owned(),
            };
            if status != PeerStatus::Alive || Instant::now() + pause > until {
                return Err(not_reached(node, session, &error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(OWNER_PAUSE_MAX);
        }
    }

    /// Where a node was last reached, and what is known of its lease.
    async fn whereabouts(&self, node: &NodeName) -> (Option<String>, PeerStatus) {
        let Some(joined) = self.joined() else { return (None, PeerStatus::Unreachable) };
        let known = joined.membership.peer(node);
        let status = known.as_ref().map(|peer| peer.status);
        if let Some(address) = known.and_then(|peer| peer.address) {
            return (Some(address), status.unwrap_or(PeerStatus::Alive));
        }
        // A node that has joined a moment ago, or was lost long ago.
        let lease = joined.store.read_lease(node).await.ok().map(|current| current.record);
        let status = status_with(status, lease.as_ref().map(Option::is_some));
        (lease.flatten().map(|lease| lease.address), status)
    }

    /// The answer for the client.
    pub(super) fn returned(
        &self,
        node: NodeName,
        mut response: Response<Incoming>,
        sender: PeerSender,
        client: ClientConnection,
    ) -> Response<Body> {
        let ClientConnection { upgrade, share } = client;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = upgrade
        {
            let other = hyper::upgrade::on(&mut response);
            let peers = self.peers.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = join_streams(client, other) => {}
                    () = peers.until_gone(&node, AnswerWait::Long) => {}
                }
                drop(share);
            });
            return response.map(|_| Body::empty());
        }
        for header in [CONNECTION, TRANSFER_ENCODING] {
            response.headers_mut().remove(header);
        }
        let peers = self.peers.clone();
        response.map(|body| Body::new(PeerBody::new(body, node, sender, peers, share)))
    }
}

/// The headers for the other node: what this connection or this client's token is about stays here.
pub(super) fn prepare(headers: &mut HeaderMap, rights: &TokenRights, upgrades: bool) {
    for header in [AUTHORIZATION, COOKIE, EXPECT, TRANSFER_ENCODING] {
        headers.remove(header);
    }
    headers.remove(&CONSOLE_KEY);
    if !upgrades {
        headers.remove(CONNECTION);
        headers.remove(UPGRADE);
    }
    headers.insert(HOST, HeaderValue::from_static("windlass"));
    let rights = HeaderValue::from_str(&rights.to_string());
    headers.insert(PASSED_ON_HEADER, rights.expect("a scope and a tenant's name are ASCII"));
}

/// Path and query: the other node takes no other form.
fn target(uri: &Uri) -> Uri {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().unwrap_or_default()
}

/// The refusal of a request that a node, which has this session if the request is about one, does not answer.
fn not_reached(node: &NodeName, session: Option<&SessionId>, why: &str) -> SendError {
    let which = session.map(|session| format!(", which has session {session},"));
    let which = which.unwrap_or_default();
    let message = format!("node {node}{which} cannot be reached: {why}");
    SendError::Unreachable(Failure::new(ErrorCode::NodeUnreachable, message))
}

/// What becomes of a request that has left and has no answer. One that only reads has done nothing.
fn unanswered(
    method: &Method,
    node: &NodeName,
    session: Option<&SessionId>,
    why: &str,
) -> SendError {
    if method.is_safe() { not_reached(node, session, why) } else { SendError::Cut }
}

fn moved(session: &SessionId) -> Failure {
    let message = format!("another node has session {session} now; send the request again");
    Failure::new(ErrorCode::FleetUnavailable, message)
}

fn missing(session: &SessionId) -> Failure {
    Failure::new(ErrorCode::SessionNotFound, format!("there is no session {session}"))
}

/// Carries the bytes of an upgraded connection between the client and the other node, until either ends.
async fn join_streams(client: OnUpgrade, other: OnUpgrade) {
    let (Ok(client), Ok(other)) = tokio::join!(client, other) else { return };
    let (mut client, mut other) = (TokioIo::new(client), TokioIo::new(other));
    // An error means that one side is gone, and then the other ends too.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut other).await;
}

#[cfg(test)]
mod tests {
    use axum::http::header::ACCEPT;
    use windlass_client::TokenScope;

    use super::*;

    #[test]
    fn a_request_is_about_the_session_that_its_path_or_its_query_names() {
        for (uri, session) in [
            ("/v1/sessions/s1", Some("s1")),
            ("/v1/sessions/s1/turns?wait_ms=5", Some("s1")),
            ("/v1/sessions/s1/files/a/b", Some("s1")),
            ("/v1/tools/host?session=s1", Some("s1")),
            ("/v1/tools/host?a=b&session=s1", Some("s1")),
            ("/v1/sessions/s1@acme/turns", Some("s1@acme")),
            ("/v1/tools/host?owner=s1", None),
            ("/v1/sessions", None),
            ("/v1/sessions/", None),
            ("/v1/sessions/%2e%2e/turns", None),
            ("/v1/secrets/s1", None),
            ("/v1/node/disk?session=s1", None),
        ] {
            let found = session_of(&uri.parse().unwrap());
            assert_eq!(found.as_ref().map(SessionId::as_str), session, "{uri}");
        }
    }

    #[test]
    fn streams_and_upgrades_last() {
        for (name, value, expected) in [
            ("accept", "text/event-stream", true),
            ("accept", "application/json", false),
            ("upgrade", "websocket", true),
            ("content-type", "text/event-stream", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(lasts(&headers), expected, "{name}: {value}");
        }
    }

    #[test]
    fn a_request_that_only_looks_has_its_answer_soon() {
        for (method, uri, accept, expected) in [
            ("GET", "/v1/sessions/s1", "application/json", AnswerWait::Short),
            ("GET", "/v1/sessions/s1/events?after=3&wait_ms=0", "*/*", AnswerWait::Short),
            ("GET", "/v1/sessions/s1/events?after=3&wait_ms=500", "*/*", AnswerWait::Long),
            ("GET", "/v1/sessions/s1/events", "text/event-stream", AnswerWait::Long),
            ("POST", "/v1/sessions/s1/turns", "application/json", AnswerWait::Long),
            ("PUT", "/v1/sessions/s1/files/a", "*/*", AnswerWait::Long),
        ] {
            let request = Request::builder().method(method).uri(uri).header(ACCEPT, accept);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(answer_wait(&parts), expected, "{method} {uri} {accept}");
        }
    }

    #[test]
    fn a_request_without_an_answer_is_refused_if_it_only_reads_and_cut_otherwise() {
        let node = NodeName::parse("n1").unwrap();
        for (method, is_cut) in [
            (Method::GET, false),
            (Method::HEAD, false),
            (Method::POST, true),
            (Method::PUT, true),
            (Method::DELETE, true),
        ] {
            let error = unanswered(&method, &node, None, "it ended the connection");
            assert_eq!(matches!(error, SendError::Cut), is_cut, "{method}");
        }
    }

    #[test]
    fn the_token_the_login_and_forged_rights_stay_here() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        headers.append(PASSED_ON_HEADER, HeaderValue::from_static("admin"));
        headers.append(PASSED_ON_HEADER, HeaderValue::from_static("admin"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        headers.insert(COOKIE, HeaderValue::from_static("windlass_console=secret"));
        headers.insert(&CONSOLE_KEY, HeaderValue::from_static("secret"));
        let tenant = windlass_protocol::TenantName::parse("acme").ok();
        prepare(&mut headers, &TokenRights { scope: TokenScope::Read, tenant }, false);
        for header in [AUTHORIZATION, CONNECTION, COOKIE, CONSOLE_KEY.clone()] {
            assert!(!headers.contains_key(&header), "{header}");
        }
        let rights: Vec<_> = headers.get_all(PASSED_ON_HEADER).iter().collect();
        assert_eq!(rights, ["read@acme"]);
    }
}

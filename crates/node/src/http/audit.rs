//! Records requests in the audit log: who sends them, and how they were answered. `super::audit_routes` says which ones.

use std::borrow::Cow;
use std::net::SocketAddr;

use axum::body::Body;
use axum::http::header::USER_AGENT;
use axum::http::{HeaderMap, Request, Response};
use percent_encoding::percent_decode_str;
use rustix::net::getpeername;
use rustix::net::sockopt::socket_peercred;
use windlass_audit::{AuditActor, AuditDetails};
use windlass_client::TokenRights;
use windlass_client::stream::LeanStream;
use windlass_protocol::{ErrorCode, SessionId, TenantName};

use super::App;
use super::audit_routes::recorded;
use super::console_gate::AdmittedClient;
use super::peers::{ConnectionPeer, PassedOn};
use super::reply::RefusedWith;
use crate::audit::{AuditNote, SenderKind};
use crate::failure::Failure;

/// Maximum bytes of a `User-Agent` that are looked at. The log keeps fewer.
const CLIENT_BYTES_MAX: usize = 512;

/// A kind of door, by its name in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DoorKind {
    Socket,
    Tcp,
    Console,
    Peers,
}

impl DoorKind {
    fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Tcp => "tcp",
            Self::Console => "console",
            Self::Peers => "peers",
        }
    }
}

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct RemoteEnd {
    door: DoorKind,
    pub peer: ConnectionPeer,
    /// The user and the process at the other end of a unix socket.
    process: Option<(u32, i32)>,
    address: Option<SocketAddr>,
}

impl RemoteEnd {
    /// The other end of a connection that was just accepted.
    pub fn of(stream: &LeanStream, door: DoorKind) -> Self {
        let (mut process, mut address) = (None, None);
        if door == DoorKind::Socket {
            let peer = socket_peercred(stream).ok();
            process = peer.map(|peer| (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get()));
        } else {
            let peer = getpeername(stream).ok().flatten();
            address = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        }
        Self { door, peer: ConnectionPeer::Client, process, address }
    }
}

/// The sender of a request. Without rights it was not admitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestSender<'r> {
    pub end: &'r RemoteEnd,
    pub client: Option<&'r AdmittedClient>,
    pub rights: Option<&'r TokenRights>,
}

impl RequestSender<'_> {
    fn actor<B>(&self, request: &Request<B>) -> AuditActor {
        let token = match self.client {
            Some(AdmittedClient::Token(token)) => Some(match &token.name {
                Some(name) => name.to_string(),
                None => "node".to_owned(),
            }),
            _ => None,
        };
        let passed_on = request.extensions().get::<PassedOn>().map(|passed| passed.by.to_string());
        let peer = match &self.end.peer {
            ConnectionPeer::Node(node) => Some(node.to_string()),
            ConnectionPeer::Client | ConnectionPeer::Nobody => None,
        };
        let tenant = self.rights.and_then(|rights| rights.tenant.as_ref());
        AuditActor {
            door: self.end.door.name(),
            uid: self.end.process.map(|(uid, _)| uid),
            pid: self.end.process.map(|(_, pid)| pid),
            address: self.end.address,
            token,
            scope: self.rights.map(|rights| rights.scope.as_str()),
            tenant: tenant.map(TenantName::to_string),
            node: passed_on.or(peer),
            client: client_name(request.headers()),
        }
    }

    fn kind(&self) -> SenderKind {
        let is_admitted = self.rights.is_some() && self.client != Some(&AdmittedClient::LoggingIn);
        match self.end.peer {
            ConnectionPeer::Client if is_admitted => SenderKind::Known,
            ConnectionPeer::Node(_) => SenderKind::Known,
            ConnectionPeer::Client | ConnectionPeer::Nobody => SenderKind::Unknown,
        }
    }
}

/// What a client says it is.
fn client_name(headers: &HeaderMap) -> Option<String> {
    let bytes = headers.get(USER_AGENT)?.as_bytes();
    let bytes = bytes.get(..CLIENT_BYTES_MAX).unwrap_or(bytes);
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// The note of a request, which its handler finds in the extensions. Absent if such requests are not recorded. `refused`
/// is why the request is not served, if it is not.
pub(super) fn begin<B>(
    request: &mut Request<B>,
    sender: RequestSender<'_>,
    refused: Option<&Failure>,
    context: &App,
) -> AuditNote {
    let log = &context.serving.audit.log;
    if !log.is_enabled() {
        return AuditNote::default();
    }
    let Some(route) = recorded(request.method(), request.uri().path()) else {
        if let Some(failure) = refused {
            record_refused(request, sender, failure, context);
        }
        return AuditNote::default();
    };
    let (mut what, mut session) = (AuditDetails::default(), None);
    let tenant = sender.rights.and_then(|rights| rights.tenant.as_ref());
    for (name, part) in route.parts {
        let part = decoded(part);
        match name {
            "session" => session = Some(session_of(part, tenant)),
            // The turn's number has this name.
            "turn" => what.add("id", part.into_owned()),
            name => what.add(name, part.into_owned()),
        }
    }
    let note = AuditNote::new(log, sender.actor(request), sender.kind(), route.did, what);
    if let Some(session) = session {
        note.set_session(session);
    }
    request.extensions_mut().insert(note.clone());
    note
}

/// A part of a path as the handlers read it. What is not UTF-8 stays as the client has sent it.
fn decoded(part: &str) -> Cow<'_, str> {
    percent_decode_str(part).decode_utf8().unwrap_or(Cow::Borrowed(part))
}

/// The complete id of the session that a client names. The door completes it only in a request that it does not refuse.
fn session_of(named: Cow<'_, str>, tenant: Option<&TenantName>) -> String {
    let complete = tenant.and_then(|tenant| SessionId::within(&named, tenant).ok());
    complete.map_or_else(|| named.into_owned(), |id| id.to_string())
}

/// Records the request, now that it is answered.
pub(super) fn end(note: &AuditNote, response: &Response<Body>, context: &App) {
    if !note.is_present() {
        return;
    }
    match refusal(response) {
        None => note.send(),
        Some(code) => context.serving.audit.refused(note, &code),
    }
}

/// The code of a refusal, or the status if another program has answered.
fn refusal(response: &Response<Body>) -> Option<String> {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return None;
    }
    let code = response.extensions().get::<RefusedWith>();
    Some(match code {
        Some(RefusedWith(code)) => code.as_str().to_owned(),
        None => format!("status_{}", status.as_u16()),
    })
}

/// Records that the door has refused a request that is not recorded otherwise, because of who sends it.
pub(super) fn record_refused<B>(
    request: &Request<B>,
    sender: RequestSender<'_>,
    failure: &Failure,
    context: &App,
) {
    let is_foreign = failure.code == ErrorCode::SessionNotFound
        && sender.rights.is_some_and(|rights| rights.tenant.is_some());
    let is_about_sender = is_foreign
        || matches!(
            failure.code,
            ErrorCode::Unauthorized | ErrorCode::Forbidden | ErrorCode::ForeignSite
        );
    let audit = &context.serving.audit;
    if !is_about_sender || !audit.log.is_enabled() {
        return;
    }
    let what = AuditDetails::default()
        .with("method", request.method().as_str())
        .with("path", decoded(request.uri().path()).into_owned());
    let (who, kind) = (sender.actor(request), sender.kind());
    let note = AuditNote::new(&audit.log, who, kind, "request.refuse", what);
    audit.refused(&note, failure.code.as_str());
}

#[cfg(test)]
mod tests {
    use windlass_client::TokenScope;
    use windlass_protocol::{NodeName, TokenName};

    use super::super::door_tokens::AdmittedToken;
    use super::super::reply::Refusal;
    use super::*;
    use axum::http::HeaderValue;
    use axum::response::IntoResponse as _;

    fn end(door: DoorKind, peer: ConnectionPeer) -> RemoteEnd {
        let address = "192.0.2.1:5000".parse().ok();
        RemoteEnd { door, peer, process: None, address }
    }

    fn request(client: &'static [u8]) -> Request<()> {
        let mut request = Request::new(());
        let value = HeaderValue::from_bytes(client).unwrap();
        request.headers_mut().insert(USER_AGENT, value);
        request
    }

    #[test]
    fn the_log_names_the_token_and_never_has_it() {
        let rights = TokenRights::parse("run@acme").unwrap();
        let name = TokenName::parse("ci").ok();
        let client = AdmittedClient::Token(AdmittedToken { name, rights: rights.clone() });
        let end = end(DoorKind::Tcp, ConnectionPeer::Client);
        let sender = RequestSender { end: &end, client: Some(&client), rights: Some(&rights) };
        let who = sender.actor(&request(b"curl/8 \xff"));
        assert_eq!((who.door, who.token.as_deref()), ("tcp", Some("ci")));
        assert_eq!((who.scope, who.tenant.as_deref()), (Some("run"), Some("acme")));
        assert_eq!(who.client.as_deref(), Some("curl/8 \u{fffd}"));
        assert_eq!(sender.kind(), SenderKind::Known);
    }

    #[test]
    fn a_sender_is_known_by_its_rights_or_its_certificate() {
        let read = TokenRights::of_node(TokenScope::Read);
        let node = ConnectionPeer::Node(NodeName::parse("n1").unwrap());
        let (owner, login) = (AdmittedClient::Owner, AdmittedClient::LoggingIn);
        for (peer, client, rights, expected) in [
            (ConnectionPeer::Client, Some(&owner), Some(&read), SenderKind::Known),
            (ConnectionPeer::Client, Some(&login), Some(&read), SenderKind::Unknown),
            (ConnectionPeer::Client, None, None, SenderKind::Unknown),
            (ConnectionPeer::Nobody, None, Some(&read), SenderKind::Unknown),
            (node, None, None, SenderKind::Known),
        ] {
            let end = end(DoorKind::Peers, peer);
            let sender = RequestSender { end: &end, client, rights };
            assert_eq!(sender.kind(), expected, "{end:?}");
        }
    }

    #[test]
    fn a_part_of_a_path_is_recorded_as_handlers_read_it() {
        for (part, expected) in
            [("a/b.txt", "a/b.txt"), ("a%20b%2Fc", "a b/c"), ("%ff", "%ff"), ("100%", "100%")]
        {
            assert_eq!(decoded(part), expected);
        }
    }

    #[test]
    fn a_session_that_a_tenant_names_is_never_one_of_the_owner() {
        let acme = TenantName::parse("acme").unwrap();
        for (named, tenant, expected) in [
            ("s1", Some(&acme), "s1@acme"),
            ("s1@acme", Some(&acme), "s1@acme"),
            ("s1@other", Some(&acme), "s1@other"),
            ("s1", None, "s1"),
        ] {
            assert_eq!(session_of(named.into(), tenant), expected);
        }
    }

    #[test]
    fn a_refusal_is_recorded_with_its_code() {
        let refused = |code| refusal(&Refusal(Failure::new(code, "no")).into_response());
        assert_eq!(refused(ErrorCode::Forbidden).as_deref(), Some("forbidden"));
        let mut other = Response::new(Body::empty());
        assert_eq!(refusal(&other), None);
        *other.status_mut() = axum::http::StatusCode::BAD_GATEWAY;
        assert_eq!(refusal(&other).as_deref(), Some("status_502"));
    }
}

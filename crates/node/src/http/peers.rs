//! Who is at the other end of a connection, and what such a peer may request. At the door for nodes of a fleet the
//! peer's certificate decides, at all other doors the client's token or user.
//!
//! A node passes the requests of its clients on to the node that has the session. It has checked the client, and names
//! the rights of the client's token in the header [`PASSED_ON_HEADER`]. Only a node may send that header.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, Method, Request};
use windlass_client::{TokenRights, TokenScope};
use windlass_protocol::fleet::PASSED_ON_HEADER;
use windlass_protocol::{ErrorCode, NodeName};

use crate::failure::Failure;
use crate::fleet::FleetNode;

static PASSED_ON: HeaderName = HeaderName::from_static(PASSED_ON_HEADER);

/// Where a machine without a certificate joins the fleet, and where a node renews its certificate.
pub(super) use windlass_protocol::enrolment::{JOIN_PATH as JOIN, RENEW_PATH as RENEW};

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectionPeer {
    /// A client of the socket or of the TCP door.
    Client,
    /// A node of the fleet, by its certificate.
    Node(NodeName),
    /// A program without a certificate, at the door for nodes.
    Nobody,
}

/// In the extensions of a request that another node has passed on. Such a request is never passed on again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassedOn {
    /// The node that has checked the client.
    pub by: NodeName,
}

/// Refuses a node that was removed from the fleet. Its certificate may be valid for some days more.
pub(super) fn refuse_removed(
    peer: &ConnectionPeer,
    fleet: Option<&Arc<FleetNode>>,
) -> Result<(), Failure> {
    match (peer, fleet) {
        (ConnectionPeer::Node(node), Some(fleet)) => fleet.removed().check(node),
        _ => Ok(()),
    }
}

/// What the sender of a request may do. `check` authorises a client by the headers of its request.
pub(super) fn admit<B>(
    request: &mut Request<B>,
    peer: &ConnectionPeer,
    check: impl FnOnce(&HeaderMap) -> Result<TokenRights, Failure>,
) -> Result<TokenRights, Failure> {
    let for_nodes = [JOIN, RENEW].contains(&request.uri().path());
    match peer {
        ConnectionPeer::Client => {
            // A client must not speak as a node.
            request.headers_mut().remove(&PASSED_ON);
            let rights = check(request.headers())?;
            if for_nodes { Err(only_for_nodes(request)) } else { Ok(rights) }
        }
        ConnectionPeer::Nobody if asks(request, JOIN) => enroll(request, peer),
        ConnectionPeer::Nobody => Err(Failure::new(ErrorCode::Unauthorized, NOBODY)),
        ConnectionPeer::Node(_) if asks(request, RENEW) => enroll(request, peer),
        ConnectionPeer::Node(_) if for_nodes => {
            let message = "a node of the fleet renews its certificate and does not join again";
            Err(Failure::new(ErrorCode::Forbidden, message))
        }
        ConnectionPeer::Node(by) => {
            let rights = passed_on_rights(request.headers())?;
            request.headers_mut().remove(&PASSED_ON);
            request.extensions_mut().insert(PassedOn { by: by.clone() });
            Ok(rights)
        }
    }
}

const NOBODY: &str = "this address is for nodes of a fleet, and the client has no certificate of the fleet: run \
    `windlass fleet join`, or use the node's socket or its TCP door";

/// Whether this is a request that a node or a new node sends for itself, not for a client.
fn asks<B>(request: &Request<B>, path: &str) -> bool {
    let own = !request.headers().contains_key(&PASSED_ON);
    own && request.method() == Method::POST && request.uri().path() == path
}

/// Admits a request for a certificate. The handler finds the peer in the extensions.
fn enroll<B>(request: &mut Request<B>, peer: &ConnectionPeer) -> Result<TokenRights, Failure> {
    request.extensions_mut().insert(peer.clone());
    Ok(TokenRights::of_node(TokenScope::Admin))
}

fn only_for_nodes<B>(request: &Request<B>) -> Failure {
    let path = request.uri().path();
    let message = format!("{path} is only where the nodes of a fleet connect: `listen` of [fleet]");
    Failure::new(ErrorCode::NotFound, message)
}

/// The rights of the client for whom a node sends the request. An earlier release does not read rights with a tenant, so
/// it refuses the request.
fn passed_on_rights(headers: &HeaderMap) -> Result<TokenRights, Failure> {
    let mut values = headers.get_all(&PASSED_ON).iter();
    let (first, more) = (values.next(), values.next());
    let text = first.filter(|_| more.is_none()).and_then(|value| value.to_str().ok());
    text.and_then(TokenRights::parse).ok_or_else(|| {
        let message = format!(
            "a node that passes a request on names the rights of its client once: \
             {PASSED_ON_HEADER} is read, run or admin, with @TENANT if the client has a tenant"
        );
        Failure::new(ErrorCode::BadRequest, message)
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn request(method: Method, path: &str, passed_on: &'static str) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        for scope in passed_on.split_whitespace() {
            request.headers_mut().append(&PASSED_ON, HeaderValue::from_static(scope));
        }
        request
    }

    fn node() -> ConnectionPeer {
        ConnectionPeer::Node(NodeName::parse("n1").unwrap())
    }

    /// Admits the request where clients have the scope `run`.
    fn admitted(request: &mut Request<()>, peer: &ConnectionPeer) -> Result<String, ErrorCode> {
        let rights = admit(request, peer, |_| Ok(TokenRights::of_node(TokenScope::Run)));
        rights.map(|rights| rights.to_string()).map_err(|failure| failure.code)
    }

    #[test]
    fn each_peer_may_request_what_is_meant_for_it() {
        use ErrorCode::{BadRequest, Forbidden, NotFound, Unauthorized};
        const ADMIN: &str = "admin";
        let sessions = "/v1/sessions";
        for (peer, method, path, passed_on, expected) in [
            (ConnectionPeer::Client, Method::GET, sessions, "", Ok("run")),
            (ConnectionPeer::Client, Method::GET, sessions, "admin", Ok("run")),
            (ConnectionPeer::Client, Method::GET, sessions, "admin@acme", Ok("run")),
            (ConnectionPeer::Client, Method::POST, JOIN, "", Err(NotFound)),
            (ConnectionPeer::Client, Method::POST, RENEW, "admin", Err(NotFound)),
            (ConnectionPeer::Nobody, Method::POST, JOIN, "", Ok(ADMIN)),
            (ConnectionPeer::Nobody, Method::GET, JOIN, "", Err(Unauthorized)),
            (ConnectionPeer::Nobody, Method::POST, JOIN, "admin", Err(Unauthorized)),
            (ConnectionPeer::Nobody, Method::POST, RENEW, "", Err(Unauthorized)),
            (ConnectionPeer::Nobody, Method::GET, sessions, "admin", Err(Unauthorized)),
            (ConnectionPeer::Nobody, Method::GET, "/v1/health", "", Err(Unauthorized)),
            (node(), Method::POST, RENEW, "", Ok(ADMIN)),
            (node(), Method::POST, RENEW, "admin", Err(Forbidden)),
            (node(), Method::POST, JOIN, "", Err(Forbidden)),
            (node(), Method::GET, sessions, "read", Ok("read")),
            (node(), Method::GET, sessions, "run", Ok("run")),
            (node(), Method::GET, sessions, "run@acme", Ok("run@acme")),
            (node(), Method::GET, sessions, "run@", Err(BadRequest)),
            (node(), Method::GET, sessions, "run run@acme", Err(BadRequest)),
            (node(), Method::GET, sessions, "admin", Ok(ADMIN)),
            (node(), Method::GET, sessions, "", Err(BadRequest)),
            (node(), Method::GET, sessions, "Admin", Err(BadRequest)),
            (node(), Method::GET, sessions, "read admin", Err(BadRequest)),
            (node(), Method::GET, "/v1/fleet/join/", "", Err(BadRequest)),
        ] {
            let mut request = request(method, path, passed_on);
            let found = admitted(&mut request, &peer);
            assert_eq!(found.as_deref().map_err(|code| *code), expected, "{peer:?} {request:?}");
            assert!(found.is_err() || !request.headers().contains_key(&PASSED_ON), "{request:?}");
        }
    }

    #[test]
    fn only_a_request_of_a_node_is_marked_as_passed_on() {
        let mut request = request(Method::GET, "/v1/sessions", "run");
        admitted(&mut request, &ConnectionPeer::Client).unwrap();
        assert!(request.extensions().get::<PassedOn>().is_none());
        request.headers_mut().append(&PASSED_ON, HeaderValue::from_static("run"));
        admitted(&mut request, &node()).unwrap();
        let by = NodeName::parse("n1").unwrap();
        assert_eq!(request.extensions().get(), Some(&PassedOn { by }));
    }

    #[test]
    fn a_client_without_a_token_is_refused_before_the_path_counts() {
        let refused = |_: &HeaderMap| Err(Failure::new(ErrorCode::Unauthorized, "no token"));
        let mut request = request(Method::POST, JOIN, "");
        let failure = admit(&mut request, &ConnectionPeer::Client, refused).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Unauthorized);
    }

    #[test]
    fn a_handler_of_certificates_sees_the_peer() {
        for (peer, path) in [(ConnectionPeer::Nobody, JOIN), (node(), RENEW)] {
            let mut request = request(Method::POST, path, "");
            admitted(&mut request, &peer).unwrap();
            assert_eq!(request.extensions().get(), Some(&peer));
        }
    }
}

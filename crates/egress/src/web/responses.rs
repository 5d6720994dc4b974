//! The proxy's own responses: the tunnel is open, or the request is not forwarded.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, HeaderValue, UPGRADE};
use hyper::{Response, StatusCode};

use crate::reach::NotReached;
use crate::rules::RefusalReason;

pub(super) type ProxyResponse = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

/// The tunnel is open.
pub(super) fn ok() -> ProxyResponse {
    Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync())
}

pub(super) fn bad_request(what: &str) -> ProxyResponse {
    say(StatusCode::BAD_REQUEST, format!("windlass: {what}\n"))
}

/// Only HTTP/1.1 is possible here. Clients that have a second way without WebSocket take it at once by this status.
pub(super) fn only_http(what: &str) -> ProxyResponse {
    let mut response = say(StatusCode::UPGRADE_REQUIRED, format!("windlass: {what}\n"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    response
}

pub(super) fn bad_gateway(what: &str) -> ProxyResponse {
    say(StatusCode::BAD_GATEWAY, format!("windlass: {what}\n"))
}

/// Many programs show only the status line, so the status line also carries the reason.
pub(super) fn not_reached(host: &str, port: u16, why: NotReached) -> ProxyResponse {
    let status = match why {
        NotReached::Refused(why) => return refused(host, port, why),
        NotReached::TooSlow => StatusCode::GATEWAY_TIMEOUT,
        NotReached::Unknown | NotReached::Unreachable | NotReached::BadTls => {
            StatusCode::BAD_GATEWAY
        }
    };
    let response = say(status, format!("windlass: {host}:{port}: {why}\n"));
    with_phrase(response, why.to_string())
}

/// The policy does not allow the host. The status line also carries the reason.
pub(super) fn refused(host: &str, port: u16, why: RefusalReason) -> ProxyResponse {
    let (list, remedy) = match why {
        RefusalReason::SecretPlaceholder => (
            "policy.secrets",
            "send the placeholder only to the URL and in the header or parameter of its rule in policy.secrets"
                .to_owned(),
        ),
        RefusalReason::SecretMissing => {
            ("policy.secrets", "set the secret with `windlass secret set NAME`".to_owned())
        }
        RefusalReason::PrivateAddress => ("policy.network.hosts", allow(&format!("{host}:{port}=ADDRESS"))),
        _ => ("policy.network.hosts", allow(&format!("{host}:{port}"))),
    };
    let text = format!("windlass: {host}:{port} is refused: {why}; {remedy}\n");
    with_phrase(say(StatusCode::FORBIDDEN, text), format!("Refused by {list}: {why}"))
}

/// Sets the reason phrase in the status line of a response. A phrase that HTTP does not allow is left out.
fn with_phrase(mut response: ProxyResponse, phrase: String) -> ProxyResponse {
    if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// How to allow a host.
fn allow(rule: &str) -> String {
    format!("to allow it, create the session with policy.network.hosts: [{rule:?}]")
}

fn say(status: StatusCode, text: String) -> ProxyResponse {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

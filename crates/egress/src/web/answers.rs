//! What a client is told when its request does not go on.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use crate::reach::NotReached;
use crate::rules::Refused;

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

/// The tunnel is open.
pub(super) fn ok() -> Answer {
    Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync())
}

pub(super) fn bad_request(what: &str) -> Answer {
    say(StatusCode::BAD_REQUEST, format!("windlass: {what}\n"))
}

pub(super) fn bad_gateway(what: &str) -> Answer {
    say(StatusCode::BAD_GATEWAY, format!("windlass: {what}\n"))
}

pub(super) fn not_reached(host: &str, port: u16, why: NotReached) -> Answer {
    match why {
        NotReached::Refused(why) => refused(host, port, why),
        NotReached::TooSlow => {
            say(StatusCode::GATEWAY_TIMEOUT, format!("windlass: {host}:{port}: {why}\n"))
        }
        NotReached::Unknown | NotReached::Unreachable => {
            bad_gateway(&format!("{host}:{port}: {why}"))
        }
    }
}

/// The policy does not allow it. Many programs show no more than the status line, so the reason is
/// there too.
pub(super) fn refused(host: &str, port: u16, why: Refused) -> Answer {
    let rule = match why {
        Refused::PrivateAddress => format!("{host}:{port}=ADDRESS"),
        _ => format!("{host}:{port}"),
    };
    let text = format!(
        "windlass: {host}:{port} is refused: {why}; to allow it, create the session with \
         policy.network.hosts: [{rule:?}]\n"
    );
    let mut answer = say(StatusCode::FORBIDDEN, text);
    let phrase = format!("Refused by policy.network.hosts: {why}");
    if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
        answer.extensions_mut().insert(phrase);
    }
    answer
}

fn say(status: StatusCode, text: String) -> Answer {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

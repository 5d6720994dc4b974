//! Forwards one request to a host, and returns the host's response.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST, HeaderValue,
    TRANSFER_ENCODING,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode, Uri, Version};
use windlass_protocol::policy::BodyPlaceholder;

use super::relay::{Relay, Switch, strip};
use super::responses::{ProxyResponse, bad_gateway, bad_request, only_http, refused};
use super::{PendingUpgrade, UpgradeSlot, WebSocketEnds};
use crate::reach::{NotReached, SessionEgress};
use crate::rules::RefusalReason;
use crate::secrets::bodies::{ForwardedBody, RedactedBody, SearchedBody, unchecked};
use crate::secrets::redaction::{Redactor, redacted};
use crate::secrets::{Origin, SecretValue};
use crate::tunnel::is_guarded;

/// Where a request goes, and for which session.
pub(super) struct Destination<'d> {
    pub egress: &'d Arc<SessionEgress>,
    /// The host that the connection leads to. Secret rules are compared with this host.
    pub origin: Origin<'d>,
    /// The host that the request names, which was checked.
    pub named: &'d str,
}

/// Forwards a request with the checked host as its `Host` header and with the secrets that its rules allow.
pub(super) async fn forward(
    mut request: Request<Incoming>,
    to: &Destination<'_>,
    relay: &mut Relay,
    slot: &UpgradeSlot,
) -> ProxyResponse {
    let Some(host_header) = host_header(&Origin { host: to.named, ..to.origin }) else {
        return bad_request("the host name cannot be a Host header");
    };
    let switch = Switch::requested_by(request.headers());
    if switch == Switch::WebSocket && is_guarded(to.origin.host, to.origin.port, to.egress) {
        return only_http("WebSocket to a host that may know a secret is not supported");
    }
    let client = hyper::upgrade::on(&mut request);
    strip(request.headers_mut(), switch);
    request.headers_mut().insert(HOST, host_header);
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = origin_form(request.uri());
    let (request, values) = match to.screened(request) {
        Ok(screened) => screened,
        Err(why) => return to.refuse(why).await,
    };
    let Ok(mut response) = relay.send(request).await else {
        return bad_gateway("the host closed the connection, or the request broke off");
    };
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switched && switch == Switch::No {
        return bad_gateway("the host switched to a protocol that the request did not ask for");
    }
    let is_guarded = is_guarded(to.origin.host, to.origin.port, to.egress);
    if is_guarded && (switched || !is_readable(&response)) {
        return bad_gateway(
            "the response is compressed or a part of one, although the request asked for a whole, uncompressed one; \
             a response of a host that may know a secret is passed on only if it can be searched for the secret",
        );
    }
    strip(response.headers_mut(), if switched { switch } else { Switch::No });
    if is_guarded {
        redact_head(&mut response, values);
    }
    let driver = relay.driver();
    if switched {
        let host = hyper::upgrade::on(&mut response);
        let at = (to.origin.host.to_owned(), to.origin.port);
        let ends = WebSocketEnds { client, host, driver, at };
        slot.set(PendingUpgrade::WebSocket(ends));
        return response.map(BodyExt::boxed_unsync);
    }
    response.map(|body| {
        // The body owns the driver: the connection stays open while the response is read.
        let body = body.map_frame(move |frame| {
            let _ = &driver;
            frame
        });
        if !is_guarded {
            return body.boxed_unsync();
        }
        RedactedBody::new(body, to.new_values()).boxed_unsync()
    })
}

impl Destination<'_> {
    /// The request with its secrets, and the values that the response may contain.
    fn screened(
        &self,
        request: Request<Incoming>,
    ) -> Result<(Request<ForwardedBody>, Vec<Arc<SecretValue>>), RefusalReason> {
        let Some(secrets) = self.egress.ledger.secrets() else {
            return Ok((request.map(unchecked), Vec::new()));
        };
        let secrets = secrets.for_request();
        let (mut head, body) = request.into_parts();
        let body = match secrets.screen(&mut head, &self.origin)? {
            BodyPlaceholder::Pass => unchecked(body),
            BodyPlaceholder::Refuse => SearchedBody::new(body, self.on_found()).boxed_unsync(),
        };
        Ok((Request::from_parts(head, body), secrets.values_of(&self.origin)))
    }

    /// Counts the refusal of a request whose body has a placeholder. The request breaks off.
    fn on_found(&self) -> impl FnOnce() + Send + 'static {
        let (egress, host, port) =
            (self.egress.clone(), self.origin.host.to_owned(), self.origin.port);
        move || {
            tokio::spawn(async move {
                let why = NotReached::Refused(RefusalReason::SecretPlaceholder);
                egress.ledger.note(&host, port, Err(why)).await;
            });
        }
    }

    /// The values that the host may know, whenever they have changed since the last call.
    fn new_values(&self) -> impl FnMut() -> Vec<Arc<SecretValue>> + Send + 'static {
        let (egress, host) = (self.egress.clone(), self.origin.host.to_owned());
        let (scheme, port) = (self.origin.scheme, self.origin.port);
        let mut seen = None;
        move || {
            let Some(secrets) = egress.ledger.secrets() else { return Vec::new() };
            let changes = secrets.changes();
            if seen.replace(changes) == Some(changes) {
                return Vec::new();
            }
            secrets.for_request().values_of(&Origin { scheme, host: &host, port })
        }
    }

    async fn refuse(&self, why: RefusalReason) -> ProxyResponse {
        let Origin { host, port, .. } = self.origin;
        self.egress.ledger.note(host, port, Err(NotReached::Refused(why))).await;
        refused(host, port, why)
    }
}

/// Whether the body of a response can be searched: it is whole, and neither compressed nor coded otherwise.
fn is_readable<B>(response: &Response<B>) -> bool {
    let headers = response.headers();
    let is =
        |value: &HeaderValue, word: &str| value.as_bytes().eq_ignore_ascii_case(word.as_bytes());
    let is_in_parts = |value: &HeaderValue| {
        let kind = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        kind.starts_with("multipart/byteranges") || kind.starts_with("multipart/x-byteranges")
    };
    response.status() != StatusCode::PARTIAL_CONTENT
        && !headers.contains_key(CONTENT_RANGE)
        && !headers.get_all(CONTENT_TYPE).iter().any(is_in_parts)
        && headers.get_all(CONTENT_ENCODING).iter().all(|value| is(value, "identity"))
        && headers.get_all(TRANSFER_ENCODING).iter().all(|value| is(value, "chunked"))
}

/// Masks the values in the head of a response. A header whose name has a value is left out, and so is the text of the
/// status.
fn redact_head<B>(response: &mut Response<B>, values: Vec<Arc<SecretValue>>) {
    response.extensions_mut().remove::<ReasonPhrase>();
    let mut redactor = Redactor::new(values.clone());
    let headers = std::mem::take(response.headers_mut());
    let mut name_before = None;
    for (name, value) in headers {
        // A header with several values comes with its name once.
        let Some(name) = name.or_else(|| name_before.clone()) else { continue };
        name_before = Some(name.clone());
        if values.iter().any(|secret| secret.is_in_name(name.as_str())) {
            continue;
        }
        // A length is a number that the proxy itself relies on.
        let masked = match name == CONTENT_LENGTH {
            true => Ok(value),
            false => HeaderValue::from_maybe_shared(redacted(&mut redactor, value.as_bytes())),
        };
        if let Ok(masked) = masked {
            response.headers_mut().append(name, masked);
        }
    }
}

/// The value of the `Host` header.
fn host_header(origin: &Origin<'_>) -> Option<HeaderValue> {
    let Origin { scheme, host, port } = origin;
    let mut text = if host.contains(':') { format!("[{host}]") } else { (*host).to_owned() };
    if *port != scheme.default_port() {
        text.push_str(&format!(":{port}"));
    }
    HeaderValue::try_from(text).ok()
}

/// The URI in origin form: only path and query, as an origin server expects it.
fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(path)
}

//! The web console: its files, and the requests with which a page logs in and out. The files hold no data, so a browser
//! gets them without a login.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, LOCATION,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::response::IntoResponse;
use windlass_console::{ConsoleFile, FileCaching, INDEX};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{ApiError, ConsoleLogin, ConsoleSession, OpenConsole};

use super::App;
use super::body::within;
use super::console_gate::{LoginMeans, LoginRequest, cookies, set_cookie};
use super::reply::{Answer, Refusal, bad_request, internal};
use super::site::{DoorSite, SiteUse, single};
use crate::audit::AuditNote;
use crate::console::{LOGIN_LIFE_S, LoginCredential};
use crate::failure::Failure;

/// The address of the console, without the slash at its end.
const CONSOLE: &str = "/console";

/// Maximum size of the body that logs in, and maximum time until it has arrived: its client may be anyone.
const LOGIN_BYTES_MAX: usize = 4096;
const LOGIN_WAIT: Duration = Duration::from_secs(5);

/// Maximum size of the `Host` of a login, which the node stores. A name of DNS has at most 253 bytes.
const HOST_BYTES_MAX: usize = 300;

/// What the page may load. Without `unsafe-inline` no script and no style that a session printed takes effect, also not
/// in a frame whose document the page has written.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
    font-src 'self'; connect-src 'self'; frame-src 'self' blob:; form-action 'none'; base-uri 'none'; \
    frame-ancestors 'none'";

/// The headers of every answer for the console's address.
static SECURITY_HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The answer to a request for the console's page or for a file of it; `None` for another request. It ends the
/// connection: its client may be anyone, and must not keep a connection slot.
pub(super) fn file<B>(request: &axum::http::Request<B>, site: &DoorSite) -> Option<Response<Body>> {
    let rest = request.uri().path().strip_prefix(CONSOLE)?;
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return None;
    }
    let name = match rest {
        "" => None,
        "/" => Some(INDEX),
        rest => Some(rest.strip_prefix('/')?),
    };
    let mut response = match (site.check(request.headers(), SiteUse::File), name) {
        (Err(failure), _) => Refusal(failure).into_response(),
        (Ok(()), None) => redirect(),
        (Ok(()), Some(name)) => match windlass_console::file(name) {
            Some(found) => content(found),
            None => {
                let path = request.uri().path();
                let message = format!("there is nothing at {path}");
                Refusal(Failure::new(ErrorCode::NotFound, message)).into_response()
            }
        },
    };
    for (name, value) in &SECURITY_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Some(response)
}

fn redirect() -> Response<Body> {
    let mut response = StatusCode::FOUND.into_response();
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/console/"));
    response
}

fn content(file: ConsoleFile) -> Response<Body> {
    let mut response = Response::new(Body::from(file.bytes));
    let caching = match file.caching {
        FileCaching::Immutable => "public, max-age=31536000, immutable",
        FileCaching::Revalidate => "no-cache",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    response
}

/// Make an address with which a person logs in to the web console, once. The login has the rights of this client.
#[utoipa::path(post, path = "/v1/console/logins",
    responses((status = 201, body = ConsoleLogin), (status = "default", body = ApiError)))]
pub(super) async fn offer_login(
    State(app): State<App>,
    request: Request,
) -> Answer<Response<Body>> {
    let client = asked_by(&request)?.client.clone();
    let client = client.ok_or_else(|| forbidden("this client has no rights to pass on"))?;
    let console = app.serving.console.clone();
    let offered = tokio::task::spawn_blocking(move || console.offer_login(client)).await;
    let offered = offered.map_err(internal)??;
    Ok(unstored((StatusCode::CREATED, Json(offered)).into_response()))
}

/// Log in to the web console, with the code of an address or with a token. The cookie of the answer and `key` in the header
/// `X-Windlass-Console` authorise the page's further requests.
#[utoipa::path(post, path = "/v1/console/session", request_body = OpenConsole,
    responses((status = 200, body = ConsoleSession), (status = "default", body = ApiError)))]
pub(super) async fn log_in(
    State(app): State<App>,
    note: AuditNote,
    request: Request,
) -> Answer<Response<Body>> {
    let LoginRequest { site: Some(site), means, .. } = *asked_by(&request)? else {
        return Err(no_page());
    };
    let host = login_host(request.headers())?;
    let cookies: Vec<String> = cookies(request.headers()).map(str::to_owned).collect();
    let body = within(LOGIN_WAIT, to_bytes(request.into_body(), LOGIN_BYTES_MAX)).await;
    let Some(Ok(body)) = body else { return Err(no_credential()) };
    let Ok(OpenConsole { code, token }) = serde_json::from_slice(&body) else {
        return Err(no_credential());
    };
    note.add("by", if token.is_some() { "token" } else { "code" });
    let credential = match (code, token) {
        (Some(code), None) => LoginCredential::Code(code),
        (None, Some(_)) if means == LoginMeans::Code => return Err(no_tokens_here()),
        (None, Some(token)) => LoginCredential::Token(token),
        _ => return Err(no_credential()),
    };
    let console = app.serving.console.clone();
    let log_in = move || console.log_in(credential, &host, &cookies);
    let begun = tokio::task::spawn_blocking(log_in).await.map_err(internal)??;
    let mut response = unstored(Json(begun.session).into_response());
    let cookie = set_cookie(&begun.cookie, LOGIN_LIFE_S, site.scheme());
    response.headers_mut().insert(SET_COOKIE, cookie);
    Ok(response)
}

/// Log out of the web console: the login of the page ends.
#[utoipa::path(delete, path = "/v1/console/session",
    responses((status = 204, description = "The login has ended."), (status = "default", body = ApiError)))]
pub(super) async fn log_out(State(app): State<App>, request: Request) -> Answer<Response<Body>> {
    let asked = asked_by(&request)?;
    let (Some(login), Some(site)) = (asked.login.clone(), asked.site) else {
        return Err(no_page());
    };
    let console = app.serving.console.clone();
    let ended = tokio::task::spawn_blocking(move || console.log_out(&login)).await;
    ended.map_err(internal)??;
    let mut response = unstored(StatusCode::NO_CONTENT.into_response());
    response.headers_mut().insert(SET_COOKIE, set_cookie("", 0, site.scheme()));
    Ok(response)
}

/// The host at which the login is valid.
fn login_host(headers: &HeaderMap) -> Answer<String> {
    let host = single(headers, &HOST)?.unwrap_or_default();
    if host.len() > HOST_BYTES_MAX {
        return Err(bad_request(format!("the Host header has more than {HOST_BYTES_MAX} bytes")));
    }
    Ok(host.to_owned())
}

/// What the door has noted about the sender.
fn asked_by(request: &Request) -> Answer<&LoginRequest> {
    request.extensions().get::<LoginRequest>().ok_or_else(no_page)
}

fn no_page() -> Refusal {
    forbidden("only a page of the console logs in and out: run `windlass console`").into()
}

fn forbidden(message: &str) -> Failure {
    Failure::new(ErrorCode::Forbidden, message)
}

/// A page at the console's own address asks for no token: another program can take the port while no node runs.
fn no_tokens_here() -> Refusal {
    let message =
        "this address takes no tokens; run `windlass console` and open the address that it prints";
    Failure::new(ErrorCode::Unauthorized, message).into()
}

/// Never repeats the body, which may have a token.
fn no_credential() -> Refusal {
    bad_request("the body is {\"code\": CODE} or {\"token\": TOKEN}")
}

/// The answer has a secret, so no cache keeps it.
fn unstored(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::super::site::DoorScheme;
    use super::*;

    fn asked(
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> Option<Response<Body>> {
        let site = DoorSite::new("127.0.0.1:80".parse().unwrap(), DoorScheme::Http);
        let mut request = axum::http::Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        let mut sent = HeaderMap::new();
        for (name, value) in headers {
            sent.append(*name, HeaderValue::from_static(value));
        }
        *request.headers_mut() = sent;
        file(&request, &site)
    }

    #[test]
    fn only_the_files_of_the_console_are_served_without_a_login() {
        let host = ("host", "127.0.0.1:80");
        let cross = ("sec-fetch-site", "cross-site");
        for (method, path, headers, expected) in [
            (Method::GET, "/console", vec![host], Some(302)),
            (Method::GET, "/console/", vec![host], Some(200)),
            (Method::HEAD, "/console/", vec![host], Some(200)),
            (Method::GET, "/console/index.html?x=1", vec![host], Some(200)),
            (Method::GET, "/console/nothing", vec![host], Some(404)),
            (Method::GET, "/console/../v1/health", vec![host], Some(404)),
            (Method::GET, "/console//v1/health", vec![host], Some(404)),
            (Method::GET, "/console/", vec![], Some(403)),
            (Method::GET, "/console/", vec![("host", "evil.test:80")], Some(403)),
            (Method::GET, "/console/", vec![host, cross], Some(403)),
            (Method::GET, "/console/", vec![host, ("origin", "http://evil.test")], Some(403)),
            (
                Method::GET,
                "/console/",
                vec![host, cross, ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
                Some(200),
            ),
            (Method::POST, "/console/", vec![host], None),
            (Method::GET, "/consoles", vec![host], None),
            (Method::GET, "/v1/health", vec![host], None),
            (Method::GET, "/", vec![host], None),
        ] {
            let response = asked(method, path, &headers);
            let status = response.as_ref().map(|response| response.status().as_u16());
            assert_eq!(status, expected, "{path} {headers:?}");
            let Some(response) = response else { continue };
            for (name, value) in &SECURITY_HEADERS {
                assert_eq!(response.headers().get(name).unwrap(), value, "{path}");
            }
            assert_eq!(response.headers().get(CONNECTION).unwrap(), "close", "{path}");
        }
    }

    #[test]
    fn a_login_is_not_for_a_host_of_any_length() {
        for (length, expected) in [(0, true), (HOST_BYTES_MAX, true), (HOST_BYTES_MAX + 1, false)] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_str(&"h".repeat(length)).unwrap());
            let host = login_host(&headers);
            assert_eq!(host.is_ok(), expected, "{length}");
            assert_eq!(host.unwrap_or_default().len(), if expected { length } else { 0 });
        }
    }

    #[test]
    fn the_content_policy_allows_nothing_inline_and_nothing_from_elsewhere() {
        for forbidden in ["unsafe", "*", "http", "\n", "  "] {
            assert!(!CONTENT_POLICY.contains(forbidden), "{forbidden:?}");
        }
    }
}

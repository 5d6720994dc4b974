//! Clients of a door, as they were admitted: programs with their rights, and pages with a login of the console. A page
//! sends the login's cookie and its key with each request. Cookies are shared by all ports of a host, the key is not; a
//! page of another site has neither.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, HeaderName, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response};
use windlass_client::{TokenRights, TokenScope};

use super::door_tokens::{AdmittedToken, sha256};
use super::site::{DoorScheme, DoorSite, SiteUse, single};
use super::tcp::bearer_token;
use crate::console::{ConsoleAccess, ConsoleVisit, LOGIN_LIFE_S, LoginClient, LoginId};
use crate::failure::Failure;

/// Where a client asks for the address with which a person logs in.
pub(super) const LOGINS: &str = "/v1/console/logins";

/// Where a page begins and ends its login.
pub(super) const SESSION: &str = "/v1/console/session";

/// The cookie of a login.
const COOKIE_NAME: &str = "windlass_console";

/// The header with the key of a login.
pub(crate) static CONSOLE_KEY: HeaderName = HeaderName::from_static("x-windlass-console");

/// A client that a door has admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AdmittedClient {
    /// A program of the node's user, at the unix socket.
    Owner,
    /// A program with a token.
    Token(AdmittedToken),
    /// A page with a login of the console.
    Page(ConsoleVisit),
    /// A page that logs in. The body of its request says with what.
    LoggingIn,
}

impl AdmittedClient {
    pub fn rights(&self) -> TokenRights {
        match self {
            Self::Owner => TokenRights::of_node(TokenScope::Admin),
            Self::Token(token) => token.rights.clone(),
            Self::Page(visit) => visit.rights.clone(),
            // Enough for the one request, which reads nothing.
            Self::LoggingIn => TokenRights::of_node(TokenScope::Read),
        }
    }

    /// For whom a login is that this client asks for.
    fn login_client(&self, headers: &HeaderMap) -> Option<LoginClient> {
        match self {
            Self::Owner => Some(LoginClient::Owner),
            Self::Token(_) => {
                let token = bearer_token(headers).ok()??;
                Some(LoginClient::Token { sha256: sha256(token) })
            }
            Self::Page(visit) => Some(visit.client.clone()),
            Self::LoggingIn => None,
        }
    }
}

/// With what a page can log in at a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginMeans {
    /// The code of an address that `windlass console` prints.
    Code,
    CodeOrToken,
}

/// In the extensions of a request about logins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoginRequest {
    /// For whom a new login is.
    pub client: Option<LoginClient>,
    /// The login of the page that sends the request.
    pub login: Option<LoginId>,
    /// The address that the page uses; absent at the unix socket.
    pub site: Option<DoorSite>,
    pub means: LoginMeans,
}

/// Whether this is the request with which a page logs in, which needs no login.
pub(super) fn is_log_in<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path() == SESSION
}

/// Whether the request comes from a page that has logged in, or had. A token says that it comes from a program.
pub(super) fn is_of_page(headers: &HeaderMap) -> bool {
    let has_login = headers.contains_key(&CONSOLE_KEY) || cookies(headers).next().is_some();
    has_login && !headers.contains_key(AUTHORIZATION)
}

/// Checks the login of a page.
pub(super) fn check_page(
    headers: &HeaderMap,
    site: &DoorSite,
    console: &ConsoleAccess,
) -> Result<AdmittedClient, Failure> {
    site.check(headers, SiteUse::Api)?;
    let (key, host) = (single(headers, &CONSOLE_KEY)?, single(headers, &HOST)?);
    let visit = console.check(cookies(headers), key, host.unwrap_or_default())?;
    Ok(AdmittedClient::Page(visit))
}

/// The values of the console's cookies. Another program of this host may have set one too.
pub(super) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).filter_map(|pair| {
        let (name, value) = pair.trim_ascii().split_once('=')?;
        (name == COOKIE_NAME).then_some(value)
    })
}

/// Tells the handlers of logins who sends the request. Other requests stay as they are.
pub(super) fn mark<B>(
    request: &mut Request<B>,
    client: &AdmittedClient,
    site: Option<&DoorSite>,
    means: LoginMeans,
) {
    if ![LOGINS, SESSION].contains(&request.uri().path()) {
        return;
    }
    let login = match client {
        AdmittedClient::Page(visit) => Some(visit.login.clone()),
        _ => None,
    };
    let client = client.login_client(request.headers());
    request.extensions_mut().insert(LoginRequest { client, login, site: site.copied(), means });
}

/// Completes the answer to a page: no cache keeps it, and the login's cookie lasts longer if the login does.
pub(super) fn stamp(
    response: &mut Response<Body>,
    client: &AdmittedClient,
    site: Option<&DoorSite>,
    console: &Arc<ConsoleAccess>,
) {
    let (AdmittedClient::Page(visit), Some(site)) = (client, site) else { return };
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(cookie) = console.renew(&visit.login) {
        headers.append(SET_COOKIE, set_cookie(&cookie, LOGIN_LIFE_S, site.scheme()));
        let console = console.clone();
        drop(tokio::task::spawn_blocking(move || console.store_logins()));
    }
}

/// The header that sets the cookie of a login. With an age of 0 the browser forgets the cookie.
pub(super) fn set_cookie(value: &str, age_s: u64, scheme: DoorScheme) -> HeaderValue {
    let secure = match scheme {
        DoorScheme::Http => "",
        DoorScheme::Https => "; Secure",
    };
    let text = format!(
        "{COOKIE_NAME}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age_s}{secure}"
    );
    HeaderValue::from_str(&text).expect("hexadecimal digits are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn the_cookie_is_found_among_those_of_other_programs() {
        for (sent, expected) in [
            (vec![], vec![]),
            (vec!["windlass_console=a.b"], vec!["a.b"]),
            (vec!["x=1; windlass_console=a.b; y=windlass_console=c"], vec!["a.b"]),
            (
                vec!["windlass_console=1;windlass_console=2", "windlass_console="],
                vec!["1", "2", ""],
            ),
            (vec!["windlass_console", "windlass_console2=1", " windlass=2"], vec![]),
        ] {
            let pairs: Vec<_> = sent.iter().map(|value| (COOKIE, *value)).collect();
            let map = headers(&pairs);
            assert_eq!(cookies(&map).collect::<Vec<_>>(), expected, "{sent:?}");
        }
    }

    #[test]
    fn a_request_with_a_token_is_not_of_a_page() {
        let cookie = || (COOKIE, "windlass_console=a");
        let key = || (CONSOLE_KEY.clone(), "k");
        for (pairs, expected) in [
            (vec![], false),
            (vec![(COOKIE, "other=a")], false),
            (vec![cookie()], true),
            (vec![key()], true),
            (vec![cookie(), key()], true),
            (vec![cookie(), key(), (AUTHORIZATION, "Bearer t")], false),
        ] {
            assert_eq!(is_of_page(&headers(&pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn the_cookie_is_for_this_site_and_not_for_scripts() {
        for (scheme, expected) in [
            (
                DoorScheme::Http,
                "windlass_console=a.b; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200",
            ),
            (
                DoorScheme::Https,
                "windlass_console=a.b; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200; Secure",
            ),
        ] {
            assert_eq!(set_cookie("a.b", LOGIN_LIFE_S, scheme), expected);
        }
    }
}

//! Refuses requests that a browser sends for a page of another site. A page reaches the node only under the door's own
//! address, so neither a link nor a name that resolves to this machine (DNS rebinding) gives a foreign page an answer.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::HeaderMap;
use axum::http::header::{HOST, HeaderName, ORIGIN};
use windlass_protocol::ErrorCode;

use crate::failure::Failure;

/// Browsers say with these headers which page sends a request, and what for. Scripts cannot set them.
static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
static SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
static SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The address of a door, as a page names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DoorSite {
    address: SocketAddr,
    scheme: DoorScheme,
}

/// How the URL of a door begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DoorScheme {
    Http,
    /// The door has a certificate.
    Https,
}

impl DoorScheme {
    fn prefix(self) -> &'static str {
        match self {
            Self::Http => "http://",
            Self::Https => "https://",
        }
    }
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SiteUse {
    /// A file of the console, which holds no data. A link of another site may open it in a window of its own.
    File,
    /// Everything else.
    Api,
}

impl DoorSite {
    pub fn new(address: SocketAddr, scheme: DoorScheme) -> Self {
        Self { address, scheme }
    }

    pub fn scheme(&self) -> DoorScheme {
        self.scheme
    }

    /// Refuses a request of a foreign page. `Origin` names the site of the page. `Host` names the host of the URL, which
    /// another site can make resolve to this address.
    pub(super) fn check(&self, headers: &HeaderMap, site_use: SiteUse) -> Result<(), Failure> {
        let host = single(headers, &HOST)?.unwrap_or_default();
        if self.address.ip().is_loopback() && !self.is_ours(host) {
            return Err(foreign("the Host header names another host"));
        }
        let origin = single(headers, &ORIGIN)?;
        if origin.is_some_and(|origin| origin.strip_prefix(self.scheme.prefix()) != Some(host)) {
            return Err(foreign("the Origin header names another site"));
        }
        let is_own = match single(headers, &SEC_FETCH_SITE)? {
            // `none`: a person typed the address.
            None | Some("same-origin" | "none") => true,
            Some(_) => site_use == SiteUse::File && opens_a_window(headers)?,
        };
        if is_own { Ok(()) } else { Err(foreign("a page of another site sends the request")) }
    }

    /// Whether a host is this address, in one of the ways in which a program of this machine names it. The port is that
    /// of the door also behind an SSH tunnel.
    fn is_ours(&self, host: &str) -> bool {
        let port = self.address.port();
        host.eq_ignore_ascii_case(&format!("localhost:{port}"))
            || host == self.address.to_string()
            || host == format!("{}:{port}", Ipv4Addr::LOCALHOST)
            || host == format!("[{}]:{port}", Ipv6Addr::LOCALHOST)
    }
}

fn opens_a_window(headers: &HeaderMap) -> Result<bool, Failure> {
    let is_navigation = single(headers, &SEC_FETCH_MODE)? == Some("navigate");
    Ok(is_navigation && single(headers, &SEC_FETCH_DEST)? == Some("document"))
}

/// The value of a header, if it is present. A repeated header is refused, because readers differ in which
/// value they use.
pub(super) fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        let message = format!("the request has more than one {name} header");
        return Err(Failure::new(ErrorCode::Unauthorized, message));
    }
    Ok(first.map(|value| value.to_str().unwrap_or_default()))
}

fn foreign(message: &str) -> Failure {
    Failure::new(ErrorCode::ForeignSite, message)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn is_accepted(
        site: &DoorSite,
        site_use: SiteUse,
        pairs: &[(&'static str, &'static str)],
    ) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let checked = site.check(&headers, site_use);
        if let Err(failure) = &checked {
            let code = if pairs.len() > 1 && pairs[0].0 == pairs[1].0 {
                ErrorCode::Unauthorized
            } else {
                ErrorCode::ForeignSite
            };
            assert_eq!(failure.code, code, "{pairs:?}");
        }
        checked.is_ok()
    }

    const OURS: (&str, &str) = ("host", "127.0.0.1:80");
    const CROSS: (&str, &str) = ("sec-fetch-site", "cross-site");
    const NAVIGATE: (&str, &str) = ("sec-fetch-mode", "navigate");
    const DOCUMENT: (&str, &str) = ("sec-fetch-dest", "document");

    #[test]
    fn only_pages_of_the_own_address_are_served() {
        let site = DoorSite::new("127.0.0.1:80".parse().unwrap(), DoorScheme::Http);
        for (pairs, expected) in [
            (vec![OURS], true),
            (vec![("host", "LOCALHOST:80")], true),
            (vec![("host", "[::1]:80")], true),
            (vec![], false),
            (vec![("host", "127.0.0.1")], false),
            (vec![("host", "127.0.0.1:81")], false),
            (vec![("host", "127.0.0.2:80")], false),
            (vec![("host", "evil.test:80")], false),
            (vec![("host", "127.0.0.1:80.evil.test")], false),
            (vec![OURS, OURS], false),
            (vec![OURS, ("origin", "http://127.0.0.1:80")], true),
            (vec![OURS, ("origin", "http://localhost:80")], false),
            (vec![OURS, ("origin", "https://127.0.0.1:80")], false),
            (vec![OURS, ("origin", "http://127.0.0.1:81")], false),
            (vec![OURS, ("origin", "http://evil.test")], false),
            (vec![OURS, ("origin", "null")], false),
            (vec![OURS, ("origin", "")], false),
            (vec![OURS, ("sec-fetch-site", "same-origin")], true),
            (vec![OURS, ("sec-fetch-site", "none")], true),
            (vec![OURS, ("sec-fetch-site", "same-site")], false),
            (vec![OURS, ("sec-fetch-site", "")], false),
            (vec![OURS, CROSS], false),
        ] {
            for site_use in [SiteUse::File, SiteUse::Api] {
                assert_eq!(is_accepted(&site, site_use, &pairs), expected, "{pairs:?}");
            }
        }
    }

    #[test]
    fn another_site_can_open_only_the_page_and_only_in_a_window_of_its_own() {
        let site = DoorSite::new("127.0.0.1:80".parse().unwrap(), DoorScheme::Http);
        let frame = ("sec-fetch-dest", "iframe");
        for (pairs, expected) in [
            (vec![OURS, CROSS, NAVIGATE, DOCUMENT], true),
            (vec![OURS, CROSS, NAVIGATE, frame], false),
            (vec![OURS, CROSS, NAVIGATE], false),
            (vec![OURS, CROSS, DOCUMENT, ("sec-fetch-mode", "no-cors")], false),
        ] {
            assert_eq!(is_accepted(&site, SiteUse::File, &pairs), expected, "{pairs:?}");
            assert!(!is_accepted(&site, SiteUse::Api, &pairs), "{pairs:?}");
        }
    }

    #[test]
    fn an_address_for_other_machines_has_names_that_the_node_does_not_know() {
        let site = DoorSite::new("192.0.2.1:80".parse().unwrap(), DoorScheme::Https);
        for (pairs, expected) in [
            (vec![("host", "node.example:80")], true),
            (vec![("host", "node.example"), ("origin", "https://node.example")], true),
            (vec![("host", "node.example"), ("origin", "https://evil.test")], false),
        ] {
            assert_eq!(is_accepted(&site, SiteUse::Api, &pairs), expected, "{pairs:?}");
        }
    }
}

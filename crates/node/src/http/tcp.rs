//! Authorises requests at the TCP door by their token.

use std::net::SocketAddr;
use std::path::PathBuf;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use windlass_audit::AuditLog;
use windlass_client::{Token, TokenError};
use windlass_protocol::ErrorCode;

use super::door_tokens::{AdmittedToken, DoorTokens};
use super::site::{DoorScheme, DoorSite, SiteUse, single};
use crate::failure::Failure;

/// Checks the requests of the TCP door.
#[derive(Debug)]
pub(crate) struct TcpGate {
    site: DoorSite,
    tokens: DoorTokens,
}

impl TcpGate {
    /// Makes the node's token if there is none yet. `address` is the address that the door listens at, `token` the file
    /// of the node's token and `named` that of the named tokens.
    pub fn new(
        address: SocketAddr,
        scheme: DoorScheme,
        token: PathBuf,
        named: PathBuf,
    ) -> Result<Self, TokenError> {
        Token::read_or_make(&token)?;
        let site = DoorSite::new(address, scheme);
        Ok(Self { site, tokens: DoorTokens::new(token, named) })
    }

    pub fn site(&self) -> &DoorSite {
        &self.site
    }

    /// Records in this log how the tokens change.
    pub fn record_token_changes(&mut self, audit: &AuditLog) {
        self.tokens.record_changes(audit);
    }

    /// The token of the sender of these headers, if it is authorised. The node's own token allows everything.
    pub fn check(&self, headers: &HeaderMap) -> Result<AdmittedToken, Failure> {
        self.site.check(headers, SiteUse::Api)?;
        let Some(token) = bearer_token(headers)? else {
            return Err(refused("the request has no bearer token; send the node's token"));
        };
        let found = self.tokens.find(token);
        found.ok_or_else(|| refused("the token is not one of the node's tokens, or has expired"))
    }
}

/// The token in the header `Authorization`.
pub(super) fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, Failure> {
    let token = single(headers, &AUTHORIZATION)?.and_then(|value| {
        let (scheme, rest) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim_start())
    });
    Ok(token)
}

fn refused(message: &str) -> Failure {
    Failure::new(ErrorCode::Unauthorized, message)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use axum::http::HeaderValue;
    use axum::http::header::{HOST, HeaderName, ORIGIN};
    use windlass_client::{NamedTokens, NewToken, TokenScope};
    use windlass_protocol::{TenantName, TokenName};

    use super::*;

    fn gate(address: &str) -> (TcpGate, String, PathBuf) {
        gate_of(address, DoorScheme::Http)
    }

    fn gate_of(address: &str, scheme: DoorScheme) -> (TcpGate, String, PathBuf) {
        let name = address.replace([':', '[', ']'], "_");
        let dir = std::env::temp_dir().join(format!("wl-gate-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("token");
        let (address, named) = (address.parse().unwrap(), dir.join("tokens"));
        let gate = TcpGate::new(address, scheme, file.clone(), named).unwrap();
        let token = Token::read(&file).unwrap().as_str().to_owned();
        (gate, token, dir)
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let mut map = HeaderMap::new();
        for (name, text) in pairs {
            map.append(name.clone(), value(text));
        }
        map
    }

    #[test]
    fn only_the_whole_token_for_this_host_from_no_other_site_is_accepted() {
        let (gate, token, dir) = gate("127.0.0.1:8040");
        let bearer = format!("Bearer {token}");
        let (prefix, longer) = (&bearer[..bearer.len() - 1], format!("{bearer}0"));
        let ours = (HOST, "127.0.0.1:8040");
        let other = format!("Bearer {}", "0".repeat(token.len()));
        for (pairs, accepted) in [
            (vec![ours.clone(), (AUTHORIZATION, &*bearer)], true),
            (vec![(HOST, "LocalHost:8040"), (AUTHORIZATION, &*bearer)], true),
            (
                vec![ours.clone(), (ORIGIN, "http://127.0.0.1:8040"), (AUTHORIZATION, &*bearer)],
                true,
            ),
            (vec![ours.clone()], false),
            (vec![ours.clone(), (AUTHORIZATION, "Bearer ")], false),
            (vec![ours.clone(), (AUTHORIZATION, &*token)], false),
            (vec![ours.clone(), (AUTHORIZATION, prefix)], false),
            (vec![ours.clone(), (AUTHORIZATION, &*longer)], false),
            (vec![ours.clone(), (AUTHORIZATION, &*other)], false),
            (vec![ours.clone(), (AUTHORIZATION, &*bearer), (AUTHORIZATION, &*bearer)], false),
            (vec![(AUTHORIZATION, &*bearer)], false),
            (vec![(HOST, "evil.test:8040"), (AUTHORIZATION, &*bearer)], false),
            (vec![(HOST, "127.0.0.1:9"), (AUTHORIZATION, &*bearer)], false),
            (vec![ours.clone(), (ORIGIN, "http://windlass"), (AUTHORIZATION, &*bearer)], false),
            (vec![ours, (ORIGIN, "null"), (AUTHORIZATION, &*bearer)], false),
        ] {
            let checked = gate.check(&headers(&pairs));
            assert_eq!(checked.is_ok(), accepted, "{:?}: {checked:?}", headers(&pairs));
            if let Err(failure) = checked {
                assert!(!failure.message.contains(&token), "{failure:?}");
            }
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn only_pages_of_the_scheme_of_the_door_are_accepted() {
        for (port, scheme, accepted, refused) in [
            (8043, DoorScheme::Http, "http://", "https://"),
            (8044, DoorScheme::Https, "https://", "http://"),
        ] {
            let host = format!("127.0.0.1:{port}");
            let (gate, token, dir) = gate_of(&host, scheme);
            let bearer = format!("Bearer {token}");
            let check = |host: &str, origin: &str| {
                let all = [(HOST, host), (ORIGIN, origin), (AUTHORIZATION, &*bearer)];
                gate.check(&headers(&all)).is_ok()
            };
            assert!(check(&host, &format!("{accepted}{host}")), "{accepted}");
            assert!(!check(&host, &format!("{refused}{host}")), "{refused}");
            assert!(!check(&host, &format!("{accepted}other.test")), "{accepted}");
            assert!(!check("other.test", &format!("{accepted}other.test")), "{accepted}");
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn a_token_that_was_rotated_or_removed_is_refused_at_once() {
        let (gate, old, dir) = gate("[::1]:8041");
        let may = |token: &str| {
            let bearer = format!("Bearer {token}");
            gate.check(&headers(&[(HOST, "[::1]:8041"), (AUTHORIZATION, &bearer)])).is_ok()
        };
        assert!(may(&old));
        let new = Token::rotate(&dir.join("token")).unwrap();
        assert!(!may(&old));
        assert!(may(new.as_str()));
        fs::remove_file(dir.join("token")).unwrap();
        assert!(!may(new.as_str()));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_named_token_has_its_rights_until_it_is_removed_or_its_file_is_not_private() {
        let (gate, own, dir) = gate("[::1]:8042");
        let file = dir.join("tokens");
        let rights = |token: &str| {
            let bearer = format!("Bearer {token}");
            let all = [(HOST, "[::1]:8042"), (AUTHORIZATION, &*bearer)];
            gate.check(&headers(&all)).ok().map(|found| found.rights.to_string())
        };
        let make = |name: &str, scope, tenant: Option<&str>, expires_at_ms| {
            let name = TokenName::parse(name).unwrap();
            let tenant = tenant.map(|tenant| TenantName::parse(tenant).unwrap());
            let new = NewToken { name, scope, tenant, created_at_ms: 0, expires_at_ms };
            NamedTokens::create(&file, new).unwrap()
        };
        let read = make("a", TokenScope::Read, None, None);
        let run = make("b", TokenScope::Run, Some("acme"), None);
        let past = make("c", TokenScope::Admin, None, Some(1));
        assert_eq!(rights(&own).as_deref(), Some("admin"));
        assert_eq!(rights(read.as_str()).as_deref(), Some("read"));
        assert_eq!(rights(run.as_str()).as_deref(), Some("run@acme"));
        assert_eq!(rights(past.as_str()), None);
        NamedTokens::remove(&file, &TokenName::parse("a").unwrap()).unwrap();
        assert_eq!(rights(read.as_str()), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(rights(run.as_str()), None);
        assert_eq!(rights(&own).as_deref(), Some("admin"));
        fs::remove_dir_all(dir).unwrap();
    }
}

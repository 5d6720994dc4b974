//! Authorises requests at the TCP door. The token is read again whenever its file changes, so the old token
//! is refused from the next request on after a rotation.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use subtle::ConstantTimeEq;
use windlass_client::{Token, TokenError};
use windlass_protocol::ErrorCode;

use crate::failure::Failure;

/// Checks the requests of the TCP door.
#[derive(Debug)]
pub(crate) struct TcpGate {
    address: SocketAddr,
    file: PathBuf,
    cached: Mutex<CachedToken>,
}

/// The token, and the version of the file that it was read from.
#[derive(Debug)]
struct CachedToken {
    token: Option<Token>,
    file: Option<TokenFileVersion>,
}

/// Identifies a version of the token file: a new version has another inode, change time or size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TokenFileVersion {
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

impl TcpGate {
    /// Makes the token if there is none yet. `address` is the address that the door listens at.
    pub fn new(address: SocketAddr, file: PathBuf) -> Result<Self, TokenError> {
        Token::read_or_make(&file)?;
        Ok(Self { address, file, cached: Mutex::new(CachedToken { token: None, file: None }) })
    }

    /// Whether the sender of these headers is authorised.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Failure> {
        self.check_site(headers)?;
        let token = single(headers, &AUTHORIZATION)?.and_then(|value| {
            let (scheme, rest) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim_start())
        });
        let Some(token) = token else {
            return Err(refused("the request has no bearer token; send the node's token"));
        };
        if self.is_token(token) {
            Ok(())
        } else {
            Err(refused("the token is not the node's token"))
        }
    }

    /// Refuses requests of a foreign web page in a browser. `Origin` names the site of the page. `Host` names
    /// the host of the URL, which another site can make resolve to this address (DNS rebinding).
    fn check_site(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let host = single(headers, &HOST)?.unwrap_or_default();
        if self.address.ip().is_loopback() && !self.is_ours(host) {
            return Err(refused("the Host header names another host"));
        }
        match single(headers, &ORIGIN)? {
            Some(origin) if origin.strip_prefix("http://") != Some(host) => {
                Err(refused("the Origin header names another site"))
            }
            _ => Ok(()),
        }
    }

    fn is_ours(&self, host: &str) -> bool {
        let port = self.address.port();
        host.eq_ignore_ascii_case(&format!("localhost:{port}")) || host == self.address.to_string()
    }

    fn is_token(&self, candidate: &str) -> bool {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let file = fs::metadata(&self.file).ok().map(|file| TokenFileVersion {
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
            bytes: file.len(),
        });
        if file.is_none() || file != cached.file {
            // Without the token file every request is refused.
            let token = Token::read(&self.file);
            if let Err(error) = &token {
                tracing::warn!(%error, "cannot read the token: the TCP door refuses all requests");
            }
            *cached = CachedToken { token: token.ok(), file };
        }
        let Some(token) = &cached.token else { return false };
        token.as_str().as_bytes().ct_eq(candidate.as_bytes()).into()
    }
}

/// The value of a header, if it is present. A repeated header is refused, because readers differ in which
/// value they use.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(refused(&format!("the request has more than one {name} header")));
    }
    Ok(first.map(|value| value.to_str().unwrap_or_default()))
}

fn refused(message: &str) -> Failure {
    Failure::new(ErrorCode::Unauthorized, message)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn gate(address: &str) -> (TcpGate, String, PathBuf) {
        let name = address.replace([':', '[', ']'], "_");
        let dir = std::env::temp_dir().join(format!("wl-gate-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("token");
        let gate = TcpGate::new(address.parse().unwrap(), file.clone()).unwrap();
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
}

//! Authorises requests at the TCP door. The tokens are read again whenever their file changes, so a token that was
//! rotated or removed is refused from the next request on.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use subtle::ConstantTimeEq;
use windlass_client::{NamedTokens, Token, TokenError, TokenScope};
use windlass_protocol::ErrorCode;

use crate::clock;
use crate::failure::Failure;

/// Checks the requests of the TCP door.
#[derive(Debug)]
pub(crate) struct TcpGate {
    address: SocketAddr,
    token: CachedFile<Token>,
    named: CachedFile<NamedTokens>,
}

/// What a file of tokens holds, and the version of the file that it was read from.
#[derive(Debug)]
struct CachedFile<T> {
    path: PathBuf,
    cached: Mutex<CachedContent<T>>,
}

#[derive(Debug)]
struct CachedContent<T> {
    content: Option<T>,
    version: Option<TokenFileVersion>,
}

/// Identifies a version of a token file: a new version has another inode, change time or size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TokenFileVersion {
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

impl<T> CachedFile<T> {
    fn new(path: PathBuf) -> Self {
        Self { path, cached: Mutex::new(CachedContent { content: None, version: None }) }
    }

    /// Uses what the file holds now. `None` if the file does not exist or cannot be used.
    fn with<E: std::fmt::Display, R>(
        &self,
        read: impl FnOnce(&Path) -> Result<T, E>,
        ask: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let version = fs::metadata(&self.path).ok().map(|file| TokenFileVersion {
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
            bytes: file.len(),
        });
        if version.is_none() {
            *cached = CachedContent { content: None, version };
        } else if version != cached.version {
            let content = read(&self.path);
            if let Err(error) = &content {
                tracing::warn!(%error, "cannot read the tokens: the TCP door refuses them");
            }
            *cached = CachedContent { content: content.ok(), version };
        }
        cached.content.as_ref().map(ask)
    }
}

impl TcpGate {
    /// Makes the node's token if there is none yet. `address` is the address that the door listens at, `token` the file
    /// of the node's token and `named` that of the named tokens.
    pub fn new(address: SocketAddr, token: PathBuf, named: PathBuf) -> Result<Self, TokenError> {
        Token::read_or_make(&token)?;
        Ok(Self { address, token: CachedFile::new(token), named: CachedFile::new(named) })
    }

    /// The scope of the sender of these headers, if it is authorised. The node's own token allows everything.
    pub fn check(&self, headers: &HeaderMap) -> Result<TokenScope, Failure> {
        self.check_site(headers)?;
        let token = single(headers, &AUTHORIZATION)?.and_then(|value| {
            let (scheme, rest) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim_start())
        });
        let Some(token) = token else {
            return Err(refused("the request has no bearer token; send the node's token"));
        };
        let is_own = self
            .token
            .with(Token::read, |own| bool::from(own.as_str().as_bytes().ct_eq(token.as_bytes())));
        if is_own == Some(true) {
            return Ok(TokenScope::Admin);
        }
        let named = self.named.with(NamedTokens::read, |all| all.scope_of(token, clock::now_ms()));
        named
            .flatten()
            .ok_or_else(|| refused("the token is not one of the node's tokens, or has expired"))
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
    use std::os::unix::fs::PermissionsExt;

    use axum::http::HeaderValue;
    use windlass_client::NewToken;
    use windlass_protocol::TokenName;

    use super::*;

    fn gate(address: &str) -> (TcpGate, String, PathBuf) {
        let name = address.replace([':', '[', ']'], "_");
        let dir = std::env::temp_dir().join(format!("wl-gate-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("token");
        let gate = TcpGate::new(address.parse().unwrap(), file.clone(), dir.join("tokens"));
        let gate = gate.unwrap();
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

    #[test]
    fn a_named_token_has_its_scope_until_it_is_removed_or_its_file_is_not_private() {
        let (gate, own, dir) = gate("[::1]:8042");
        let file = dir.join("tokens");
        let scope = |token: &str| {
            let bearer = format!("Bearer {token}");
            gate.check(&headers(&[(HOST, "[::1]:8042"), (AUTHORIZATION, &bearer)])).ok()
        };
        let make = |name: &str, scope, expires_at_ms| {
            let name = TokenName::parse(name).unwrap();
            let new = NewToken { name, scope, created_at_ms: 0, expires_at_ms };
            NamedTokens::create(&file, new).unwrap()
        };
        let (read, run) = (make("a", TokenScope::Read, None), make("b", TokenScope::Run, None));
        let past = make("c", TokenScope::Admin, Some(1));
        assert_eq!(scope(&own), Some(TokenScope::Admin));
        assert_eq!(scope(read.as_str()), Some(TokenScope::Read));
        assert_eq!(scope(run.as_str()), Some(TokenScope::Run));
        assert_eq!(scope(past.as_str()), None);
        NamedTokens::remove(&file, &TokenName::parse("a").unwrap()).unwrap();
        assert_eq!(scope(read.as_str()), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(scope(run.as_str()), None);
        assert_eq!(scope(&own), Some(TokenScope::Admin));
        fs::remove_dir_all(dir).unwrap();
    }
}

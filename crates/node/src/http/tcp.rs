//! The TCP door: where it may listen, and who may come in by it. The token is read from its file
//! again whenever that changes, so that a rotated one is refused from the next request on.

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

/// What stands at the TCP door.
#[derive(Debug)]
pub(crate) struct TcpGate {
    address: SocketAddr,
    file: PathBuf,
    known: Mutex<Known>,
}

/// The token, and the file it came from as it was then.
#[derive(Debug)]
struct Known {
    token: Option<Token>,
    file: Option<Version>,
}

/// Which version of a file this is: a new one has another inode, time or size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

impl TcpGate {
    /// Makes the token if there is none yet. `address` is where the door really listens.
    pub fn new(address: SocketAddr, file: PathBuf) -> Result<Self, TokenError> {
        Token::read_or_make(&file)?;
        Ok(Self { address, file, known: Mutex::new(Known { token: None, file: None }) })
    }

    /// Whether whoever sent these headers may ask.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Failure> {
        self.check_site(headers)?;
        let said = one(headers, &AUTHORIZATION)?.and_then(|value| {
            let (scheme, rest) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim_start())
        });
        let Some(said) = said else { return Err(no("this door asks for the node's token")) };
        if self.is_token(said) { Ok(()) } else { Err(no("that is not the node's token")) }
    }

    /// A browser sends a page's requests where the page wants; the page's own site is in `Origin`,
    /// and a name that was made to lead here is in `Host`.
    fn check_site(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let host = one(headers, &HOST)?.unwrap_or_default();
        if self.address.ip().is_loopback() && !self.is_ours(host) {
            return Err(no("the request was meant for another host"));
        }
        match one(headers, &ORIGIN)? {
            Some(origin) if origin.strip_prefix("http://") != Some(host) => {
                Err(no("the request comes from another site"))
            }
            _ => Ok(()),
        }
    }

    fn is_ours(&self, host: &str) -> bool {
        let port = self.address.port();
        host.eq_ignore_ascii_case(&format!("localhost:{port}")) || host == self.address.to_string()
    }

    fn is_token(&self, said: &str) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let file = fs::metadata(&self.file).ok().map(|file| Version {
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
            bytes: file.len(),
        });
        if file.is_none() || file != known.file {
            // Without its file nobody comes in.
            let token = Token::read(&self.file);
            if let Err(error) = &token {
                tracing::warn!(%error, "the TCP door is shut");
            }
            *known = Known { token: token.ok(), file };
        }
        let Some(token) = &known.token else { return false };
        token.as_str().as_bytes().ct_eq(said.as_bytes()).into()
    }
}

/// The header's value; none, if it is not there. Said twice, it is not to be trusted.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(no(&format!("{name} is there twice")));
    }
    Ok(first.map(|value| value.to_str().unwrap_or_default()))
}

fn no(message: &str) -> Failure {
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
    fn only_the_whole_token_for_our_host_from_no_other_site_comes_in() {
        let (gate, token, dir) = gate("127.0.0.1:8040");
        let bearer = format!("Bearer {token}");
        let (prefix, longer) = (&bearer[..bearer.len() - 1], format!("{bearer}0"));
        let ours = (HOST, "127.0.0.1:8040");
        let other = format!("Bearer {}", "0".repeat(token.len()));
        for (pairs, comes_in) in [
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
            assert_eq!(checked.is_ok(), comes_in, "{:?}: {checked:?}", headers(&pairs));
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

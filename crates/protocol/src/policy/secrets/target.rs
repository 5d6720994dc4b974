//! The target of a secret rule: the start of the URLs that a secret may go to.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BadSecretRule;
use crate::policy::hosts::{HostRule, normal_host};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SecretScheme {
    Https,
    Http,
}

impl SecretScheme {
    pub fn default_port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }
}

/// The start of the URLs that a secret may go to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SecretTarget {
    pub scheme: SecretScheme,
    /// In the form of [`normal_host`].
    pub host: String,
    pub port: u16,
    /// The start of the path. A path matches if it is equal, or goes on after a `/`.
    pub path: String,
}

impl SecretTarget {
    pub fn parse(text: &str) -> Result<Self, BadSecretRule> {
        let bad = || BadSecretRule::Target(text.to_owned());
        let (scheme, rest) = match text.split_once("://") {
            Some(("https", rest)) => (SecretScheme::Https, rest),
            Some(("http", rest)) => (SecretScheme::Http, rest),
            _ => return Err(bad()),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        // One host: a list of hosts is a list of rules.
        let rule = HostRule::parse(authority).map_err(|_| bad())?;
        let is_path_byte = |byte: u8| byte.is_ascii_graphic() && !b"?#%\"<>\\^`{|}".contains(&byte);
        let is_plain = path.bytes().all(is_path_byte) && is_plain_path(path);
        if rule.any_below || rule.address.is_some() || !is_plain {
            return Err(bad());
        }
        let port = rule.port.unwrap_or(scheme.default_port());
        Ok(Self { scheme, host: rule.host, port, path: path.to_owned() })
    }

    pub fn is_at(&self, scheme: SecretScheme, host: &str, port: u16) -> bool {
        self.scheme == scheme
            && self.port == port
            && normal_host(host).is_some_and(|host| host == self.host)
    }

    /// Whether a request's path starts with the target's. A path that a server may read in another way (`..`, `//`,
    /// `;`, most escapes, characters outside of ASCII) matches only a target for the whole host.
    pub(super) fn has_path(&self, path: &str) -> bool {
        if self.path == "/" {
            return true;
        }
        let Some(rest) = path.strip_prefix(&self.path) else { return false };
        is_plain_path(path)
            && (self.path.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
    }
}

/// Whether every server reads the path in the same way.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@/%".contains(&byte);
    let count = path.split('/').count();
    let is_plain_segment = |(at, segment): (usize, &str)| {
        let is_first_or_last = at == 0 || at + 1 == count;
        !segment.starts_with("..") && segment != "." && (!segment.is_empty() || is_first_or_last)
    };
    // An escape stands for a visible character that has no meaning in a path.
    let is_plain_escape = |(at, _): (usize, &str)| {
        let digits = path.as_bytes().get(at + 1..at + 3).unwrap_or_default();
        let code =
            std::str::from_utf8(digits).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
        digits.iter().all(u8::is_ascii_hexdigit)
            && code.is_some_and(|code| {
                (b' '..=b'~').contains(&code)
                    && !code.is_ascii_alphanumeric()
                    && !b"-._~/\\%;?#".contains(&code)
            })
    };
    let space_after_dots = path.contains("..%20") || path.contains("%20..");
    path.starts_with('/')
        && path.bytes().all(is_plain)
        && !space_after_dots
        && path.split('/').enumerate().all(is_plain_segment)
        && path.match_indices('%').all(is_plain_escape)
}

impl fmt::Display for SecretTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme.as_str())?;
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path)
    }
}

impl TryFrom<String> for SecretTarget {
    type Error = BadSecretRule;
    fn try_from(text: String) -> Result<Self, BadSecretRule> {
        Self::parse(&text)
    }
}

impl From<SecretTarget> for String {
    fn from(target: SecretTarget) -> Self {
        target.to_string()
    }
}

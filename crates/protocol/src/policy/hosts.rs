//! Rules about hosts: what a session may reach by name.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Rules, any of which lets a host through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Vec<String>)]
pub struct HostRules(pub Vec<HostRule>);

/// A host that can be reached: `name`, `name:port`, `*.name`, and each of them with `=address` to
/// say where the name is, whatever DNS says. An IP literal, a private address or a service of this
/// machine is reached only by a rule that names it: `10.0.0.5:443`, `localhost:8080`,
/// `index.corp=10.0.0.5`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct HostRule {
    /// In lower case, without a final dot; with `any_below`, what follows `*.`.
    pub host: String,
    /// Whether it stands for every name below `host`, and not for `host` itself.
    pub any_below: bool,
    /// Any port when absent.
    pub port: Option<u16>,
    /// Where the name is, whatever DNS says.
    pub address: Option<std::net::IpAddr>,
}

/// Why a text is no host rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no host rule: write name, name:port, *.name or name=address")]
pub struct BadHostRule(pub String);

impl HostRule {
    pub fn parse(text: &str) -> Result<Self, BadHostRule> {
        let bad = || BadHostRule(text.to_owned());
        let (place, address) = match text.split_once('=') {
            Some((place, address)) => (place, Some(address.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let (name, port) = split_port(place).ok_or_else(bad)?;
        let (name, any_below) = match name.strip_prefix("*.") {
            Some(below) => (below, true),
            None => (name, false),
        };
        let host = normal_host(name).ok_or_else(bad)?;
        Ok(Self { host, any_below, port, address })
    }

    /// Whether it lets `host` (as [`normal_host`] writes it) and `port` through.
    pub fn matches(&self, host: &str, port: u16) -> bool {
        let named = match self.any_below {
            true => host
                .strip_suffix(&self.host)
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            false => host == self.host,
        };
        named && self.port.is_none_or(|only| only == port)
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.any_below {
            f.write_str("*.")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        self.address.map_or(Ok(()), |address| write!(f, "={address}"))
    }
}

impl TryFrom<String> for HostRule {
    type Error = BadHostRule;

    fn try_from(text: String) -> Result<Self, BadHostRule> {
        Self::parse(&text)
    }
}

impl From<HostRule> for String {
    fn from(rule: HostRule) -> Self {
        rule.to_string()
    }
}

/// A host as it is compared: lower case, without a final dot or brackets; `None` for what is no
/// host name or address.
pub fn normal_host(name: &str) -> Option<String> {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = bare.parse::<std::net::IpAddr>() {
        return Some(address.to_string());
    }
    let host = bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase();
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = !host.is_empty()
        && host.len() <= 253
        && host.chars().all(letters)
        && host.split('.').all(|label| !label.is_empty() && label.len() <= 63);
    good.then_some(host)
}

/// `name:port` or `[v6]:port`, the port optional.
fn split_port(place: &str) -> Option<(&str, Option<u16>)> {
    if place.starts_with('[') {
        let end = place.find(']')? + 1;
        let port = match &place[end..] {
            "" => None,
            rest => Some(rest.strip_prefix(':')?.parse().ok()?),
        };
        return Some((&place[..end], port));
    }
    match place.rsplit_once(':') {
        // More than one colon: an address without brackets.
        Some((name, _)) if name.contains(':') => Some((place, None)),
        Some((name, port)) => Some((name, Some(port.parse().ok()?))),
        None => Some((place, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_rules_are_read_and_written() {
        for text in [
            "pypi.org",
            "pypi.org:443",
            "*.example.com",
            "*.example.com:443",
            "10.0.0.5:443",
            "index.corp=10.0.0.5",
            "index.corp:8080=127.0.0.1",
            "[::1]:80",
            "localhost:8000",
        ] {
            assert_eq!(HostRule::parse(text).map(String::from), Ok(text.to_owned()));
        }
        assert_eq!(HostRule::parse("PyPI.org.").map(String::from), Ok("pypi.org".to_owned()));
        for text in ["", "*", "a b", "x:99999", "a..b", "x=y", "x://y", "*.", "a/b"] {
            assert_eq!(HostRule::parse(text), Err(BadHostRule(text.to_owned())));
        }
    }

    #[test]
    fn a_rule_lets_through_what_it_names_and_nothing_else() {
        let matches =
            |rule: &str, host: &str, port| HostRule::parse(rule).unwrap().matches(host, port);
        assert!(matches("a.org", "a.org", 80));
        assert!(!matches("a.org", "b.a.org", 80));
        assert!(!matches("a.org:443", "a.org", 80));
        assert!(matches("*.a.org", "b.a.org", 80));
        assert!(matches("*.a.org", "c.b.a.org", 80));
        assert!(!matches("*.a.org", "a.org", 80));
        assert!(!matches("*.a.org", "evila.org", 80));
        assert!(!matches("*.a.org", ".a.org", 80));
    }
}

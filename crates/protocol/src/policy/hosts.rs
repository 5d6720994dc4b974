//! Host rules: which hosts a session may reach.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A list of host rules. A host is allowed if any rule matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Vec<String>)]
pub struct HostRules(pub Vec<HostRule>);

/// A host that can be reached: `name`, `name:port` or `*.name`. Each form can end with `=address`, which sets
/// the address of the name instead of DNS. An IP literal, a private address or a service of this machine is
/// reachable only if a rule names it: `10.0.0.5:443`, `localhost:8080`, `index.corp=10.0.0.5`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct HostRule {
    /// The host in lower case, without a final dot. With `any_below`, the part after `*.`.
    pub host: String,
    /// Whether the rule matches every name below `host`, but not `host` itself.
    pub any_below: bool,
    /// The port. Absent: any port.
    pub port: Option<u16>,
    /// The address of the name, instead of DNS.
    pub address: Option<std::net::IpAddr>,
}

/// A text is not a host rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host rule: write name, name:port, *.name or name=address")]
pub struct BadHostRule(pub String);

impl HostRule {
    pub fn parse(text: &str) -> Result<Self, BadHostRule> {
        let bad = || BadHostRule(text.to_owned());
        let (host_port, address) = match text.split_once('=') {
            Some((host_port, address)) => (host_port, Some(address.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let (name, port) = split_port(host_port).ok_or_else(bad)?;
        let (name, any_below) = match name.strip_prefix("*.") {
            Some(below) => (below, true),
            None => (name, false),
        };
        let host = normal_host(name).ok_or_else(bad)?;
        Ok(Self { host, any_below, port, address })
    }

    /// Whether the rule allows `host` (in the form of [`normal_host`]) and `port`.
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

/// The normal form of a host for comparison: lower case, without a final dot or brackets. `None` if the text
/// is not a host name or an address.
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

/// Splits `name:port` or `[v6]:port`. The port is optional.
fn split_port(host_port: &str) -> Option<(&str, Option<u16>)> {
    if host_port.starts_with('[') {
        let end = host_port.find(']')? + 1;
        let port = match &host_port[end..] {
            "" => None,
            rest => Some(rest.strip_prefix(':')?.parse().ok()?),
        };
        return Some((&host_port[..end], port));
    }
    match host_port.rsplit_once(':') {
        // More than one colon: an IPv6 address without brackets.
        Some((name, _)) if name.contains(':') => Some((host_port, None)),
        Some((name, port)) => Some((name, Some(port.parse().ok()?))),
        None => Some((host_port, None)),
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

//! The messages with which a node joins a fleet and renews its certificate. They go over TLS, as JSON, to the node that
//! has the fleet's authority. This file never decides who may join: `windlass_fleet::credentials` does.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::NodeName;

/// The version of all messages of this module.
pub const ENROLMENT: u32 = 1;

/// Maximum size of a message of this module.
pub const ENROLMENT_BYTES_MAX: usize = 64 * 1024;

/// Where a node sends a [`JoinRequest`].
pub const JOIN_PATH: &str = "/v1/fleet/join";

/// Where a node sends a [`RenewRequest`].
pub const RENEW_PATH: &str = "/v1/fleet/renew";

/// A machine with an invitation asks for the certificate of a node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub version: u32,
    /// The secret of the invitation, as base64url.
    pub secret: String,
    pub node: NodeName,
    /// The certificate signing request, as PEM. The authority uses only its public key.
    pub csr: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAnswer {
    pub version: u32,
    /// The certificate of the node, as PEM.
    pub certificate: String,
    /// The certificate of the fleet's authority, as PEM.
    pub ca: String,
    pub settings: FleetSettings,
}

/// A node asks for a certificate that is valid for longer. The request comes over a connection with the node's present
/// certificate, which says for which name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    pub version: u32,
    /// The certificate signing request, as PEM.
    pub csr: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewAnswer {
    pub version: u32,
    /// The certificate of the node, as PEM.
    pub certificate: String,
}

/// What all nodes of a fleet have in common.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetSettings {
    /// URLs of the servers of the store. A URL may carry a user and a password.
    pub servers: Vec<String>,
    pub replicas: usize,
    pub lease_ms: u64,
    pub lost_after_ms: u64,
}

/// The URL without the user and the password in front of its host.
pub fn without_password(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((before, host)) => match before.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://...@{host}"),
            None => format!("...@{host}"),
        },
        None => url.to_owned(),
    }
}

/// Whether the URL carries a user or a password.
pub fn has_password(url: &str) -> bool {
    url.contains('@')
}

/// Whether all URLs that carry a user and a password carry the same ones. The others get those, too.
pub fn have_one_login(urls: &[String]) -> bool {
    let mut logins = urls.iter().filter_map(|url| login(url));
    let first = logins.next();
    logins.all(|login| Some(login) == first)
}

/// What a URL carries in front of its host, as it is written.
fn login(url: &str) -> Option<&str> {
    let (before, _) = url.rsplit_once('@')?;
    Some(before.split_once("://").map_or(before, |(_, login)| login))
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest").field("node", &self.node).finish_non_exhaustive()
    }
}

impl fmt::Debug for FleetSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(|url| without_password(url)).collect();
        f.debug_struct("FleetSettings")
            .field("servers", &servers)
            .field("replicas", &self.replicas)
            .field("lease_ms", &self.lease_ms)
            .field("lost_after_ms", &self.lost_after_ms)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://me:key@127.0.0.1:4222", "nats://...@127.0.0.1:4222"),
            ("tls://me:k@y/z@db.example.org", "tls://...@db.example.org"),
            ("me:key@127.0.0.1", "...@127.0.0.1"),
        ] {
            assert_eq!(without_password(url), shown);
            assert_eq!(has_password(url), url != shown);
        }
        for (urls, expected) in [
            (vec!["nats://a", "nats://b"], true),
            (vec!["nats://me:key@a", "nats://b", "tls://me:key@c"], true),
            (vec!["nats://me:key@a", "nats://me:yek@b"], false),
        ] {
            let owned: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            assert_eq!(have_one_login(&owned), expected, "{urls:?}");
        }
        let servers = vec!["nats://me:key@127.0.0.1".to_owned()];
        let settings = FleetSettings { servers, replicas: 3, lease_ms: 1, lost_after_ms: 1 };
        assert!(!format!("{settings:?}").contains("key"));
        let request = JoinRequest {
            version: ENROLMENT,
            secret: "hidden".to_owned(),
            node: NodeName::parse("n1").unwrap(),
            csr: String::new(),
        };
        assert!(!format!("{request:?}").contains("hidden"));
    }
}

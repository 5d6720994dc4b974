//! Resolves a host name and connects to it, if the rules allow the host. A name is resolved once, and
//! the proxy connects only to the addresses that it checked: a later change in DNS has no effect. A
//! name that no rule allows is never resolved.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::ledger::Ledger;
use super::meter::Metered;
use super::rules::{Allowed, RefusalReason, address_allowed, decide, named_addresses};
use super::timeouts::ProxyTimeouts;

/// Maximum time to resolve a name and connect.
const REACH_TIME: Duration = Duration::from_secs(30);

/// Maximum time to connect to one address of a name.
const ATTEMPT_TIME: Duration = Duration::from_secs(10);

/// Maximum number of addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Maximum number of concurrent name lookups in the node. Each takes a thread of the blocking pool,
/// which the journal needs too.
const LOOKUPS_MAX: usize = 64;

/// Maximum length of an invalid host name in the log.
const SHOWN_CHARS_MAX: usize = 80;

/// Why a host was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReached {
    #[error(transparent)]
    Refused(#[from] RefusalReason),
    #[error("the host name cannot be resolved")]
    Unknown,
    #[error("the host does not answer in time")]
    TooSlow,
    #[error("the host refuses the connection or is unreachable")]
    Unreachable,
    #[error("the host's TLS certificate is not valid, or the host does not speak TLS")]
    BadTls,
}

/// The egress of one session: its ledger, the name resolver and the time limits.
#[derive(Debug)]
pub struct SessionEgress {
    pub ledger: Arc<Ledger>,
    pub resolver: Arc<Resolver>,
    pub timeouts: ProxyTimeouts,
}

/// A connection to a host that is allowed.
#[derive(Debug)]
pub struct Upstream {
    pub host: String,
    pub port: u16,
    pub source: AddressSource,
    pub stream: Metered<TcpStream>,
}

/// Where the address of a host comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressSource {
    /// The rule that allows the host names the address.
    Rule,
    Dns,
}

impl SessionEgress {
    /// Connects to `host`, as the client spelled it. The decision is counted, allowed or not.
    pub async fn reach(&self, host: &str, port: u16) -> Result<Upstream, NotReached> {
        let allowed = match decide(self.ledger.rules(), host, port) {
            Ok(allowed) => allowed,
            Err(refused) => {
                self.ledger.note(&loggable_host(host), port, Err(refused.into())).await;
                return Err(refused.into());
            }
        };
        let connected = timeout(REACH_TIME, self.connect(&allowed, port)).await;
        match connected.unwrap_or(Err(NotReached::TooSlow)) {
            Ok((stream, source)) => {
                let flow = self.ledger.note(&allowed.host, port, Ok(())).await;
                let stream = Metered::new(stream, flow);
                Ok(Upstream { host: allowed.host, port, source, stream })
            }
            Err(why) => {
                self.ledger.note(&allowed.host, port, Err(why)).await;
                Err(why)
            }
        }
    }

    async fn connect(
        &self,
        allowed: &Allowed<'_>,
        port: u16,
    ) -> Result<(TcpStream, AddressSource), NotReached> {
        let (found, source) = match named_addresses(allowed.rule) {
            Some(named) => (named, AddressSource::Rule),
            None => (self.look_up(&allowed.host).await, AddressSource::Dns),
        };
        let known = !found.is_empty();
        let reachable =
            found.into_iter().filter(|address| address_allowed(allowed.rule, *address).is_ok());
        let mut result =
            Err(if known { RefusalReason::PrivateAddress.into() } else { NotReached::Unknown });
        for address in reachable.take(ADDRESSES_MAX) {
            match timeout(ATTEMPT_TIME, TcpStream::connect((address, port))).await {
                // The address is public, but it is this machine's. No byte has been sent.
                Ok(Ok(stream))
                    if source == AddressSource::Dns && leads_to_this_machine(&stream) =>
                {
                    result = Err(RefusalReason::PrivateAddress.into());
                }
                Ok(Ok(stream)) => {
                    // An optimisation: without it the stream still works.
                    let _ = stream.set_nodelay(true);
                    return Ok((stream, source));
                }
                Ok(Err(_)) => result = Err(NotReached::Unreachable),
                Err(_) => result = Err(NotReached::TooSlow),
            }
        }
        result
    }

    async fn look_up(&self, host: &str) -> Vec<IpAddr> {
        let Some(slot) = self.ledger.lookup_slot().await else { return Vec::new() };
        let found = self.resolver.look_up(host).await;
        drop(slot);
        found
    }
}

/// Whether a connection leads to a public address of this machine: then both ends have the same
/// address.
fn leads_to_this_machine(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(here), Ok(there)) => here.ip() == there.ip(),
        _ => true,
    }
}

/// The host name for the log: normalised, or escaped and shortened if it is no valid host name.
fn loggable_host(host: &str) -> String {
    windlass_protocol::policy::normal_host(host).unwrap_or_else(|| {
        host.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect()
    })
}

/// Resolves host names.
#[derive(Debug)]
pub enum Resolver {
    /// The machine's resolver, with a limit of concurrent lookups.
    System { slots: Arc<Semaphore> },
    /// A test's answers: each is used once, the last one repeatedly.
    #[cfg(test)]
    Script(std::sync::Mutex<Vec<Vec<IpAddr>>>),
}

impl Resolver {
    pub fn system() -> Self {
        Self::System { slots: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    /// The addresses of a name; empty when the name cannot be resolved.
    async fn look_up(&self, host: &str) -> Vec<IpAddr> {
        let slots = match self {
            Self::System { slots } => slots,
            #[cfg(test)]
            Self::Script(answers) => {
                let mut answers = answers.lock().unwrap();
                return if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
            }
        };
        let Ok(slot) = slots.clone().acquire_owned().await else { return Vec::new() };
        let host = host.to_owned();
        let looked_up = tokio::task::spawn_blocking(move || {
            let found = (host.as_str(), 0).to_socket_addrs();
            // The thread holds the slot, because the caller may give up before the lookup ends.
            drop(slot);
            found.map(|found| found.map(|address| address.ip()).collect())
        });
        let mut found: Vec<IpAddr> = looked_up.await.ok().and_then(Result::ok).unwrap_or_default();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_to_this_machine_s_own_address_is_recognised() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(leads_to_this_machine(&stream));
        // The same machine, but the two ends have different addresses.
        let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!leads_to_this_machine(&stream));
    }

    #[tokio::test]
    async fn the_system_knows_its_own_name() {
        let resolver = Resolver::system();
        let found = resolver.look_up("localhost").await;
        assert!(found.iter().any(IpAddr::is_loopback), "{found:?}");
    }

    #[test]
    fn an_invalid_host_name_is_escaped_for_the_log() {
        assert_eq!(loggable_host("A.org"), "a.org");
        assert_eq!(loggable_host("a\u{1b}[2J\n"), "a\\u{1b}[2J\\n");
        assert!(loggable_host(&"x y".repeat(1000)).len() <= SHOWN_CHARS_MAX);
    }
}

//! From a host's name to a connection, if the rules allow it. A name is looked up once, and only
//! the addresses that were checked are connected to: what the name means a moment later is nothing
//! to us. A name that no rule allows is never looked up.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::ledger::Ledger;
use super::meter::Metered;
use super::proxy::Times;
use super::rules::{Allowed, Refused, address_allowed, decide, named_addresses};

/// How long it may take from a name to a connection.
const REACH_TIME: Duration = Duration::from_secs(30);

/// How long one address may take to answer, where there are others.
const ATTEMPT_TIME: Duration = Duration::from_secs(10);

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Names that the node looks up at once: each takes a thread, of those that the journal needs too.
const LOOKUPS_MAX: usize = 64;

/// The longest host that is shown as the client wrote it, though it is none.
const SHOWN_CHARS_MAX: usize = 80;

/// Why a host was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReached {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("its name is not known")]
    Unknown,
    #[error("it does not answer in time")]
    TooSlow,
    #[error("it takes no connection")]
    Unreachable,
}

/// What leads out of one session.
#[derive(Debug)]
pub struct Door {
    pub ledger: Arc<Ledger>,
    pub resolver: Arc<Resolver>,
    pub times: Times,
}

/// A connection to a host that is allowed.
#[derive(Debug)]
pub struct Upstream {
    pub host: String,
    pub port: u16,
    pub place: Place,
    pub stream: Metered<TcpStream>,
}

/// Who says where a host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The rule that allows it.
    Named,
    /// DNS.
    LookedUp,
}

impl Door {
    /// Connects to `host`, written as the client wrote it. Either way the decision is counted.
    pub async fn reach(&self, host: &str, port: u16) -> Result<Upstream, NotReached> {
        let allowed = match decide(self.ledger.rules(), host, port) {
            Ok(allowed) => allowed,
            Err(refused) => {
                self.ledger.note(&shown(host), port, Err(refused.into())).await;
                return Err(refused.into());
            }
        };
        let connected = timeout(REACH_TIME, self.connect(&allowed, port)).await;
        match connected.unwrap_or(Err(NotReached::TooSlow)) {
            Ok((stream, place)) => {
                let flow = self.ledger.note(&allowed.host, port, Ok(())).await;
                let stream = Metered::new(stream, flow);
                Ok(Upstream { host: allowed.host, port, place, stream })
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
    ) -> Result<(TcpStream, Place), NotReached> {
        let (found, place) = match named_addresses(allowed.rule) {
            Some(named) => (named, Place::Named),
            None => (self.look_up(&allowed.host).await, Place::LookedUp),
        };
        let known = !found.is_empty();
        let good =
            found.into_iter().filter(|address| address_allowed(allowed.rule, *address).is_ok());
        let mut result =
            Err(if known { Refused::PrivateAddress.into() } else { NotReached::Unknown });
        for address in good.take(ADDRESSES_MAX) {
            match timeout(ATTEMPT_TIME, TcpStream::connect((address, port))).await {
                // Nothing has been sent, and nothing is.
                Ok(Ok(stream)) if place == Place::LookedUp && is_own(&stream) => {
                    result = Err(Refused::PrivateAddress.into());
                }
                Ok(Ok(stream)) => {
                    // A setting for speed: where it cannot be had, the stream works all the same.
                    let _ = stream.set_nodelay(true);
                    return Ok((stream, place));
                }
                Ok(Err(_)) => result = Err(NotReached::Unreachable),
                Err(_) => result = Err(NotReached::TooSlow),
            }
        }
        result
    }

    async fn look_up(&self, host: &str) -> Vec<IpAddr> {
        let Some(place) = self.ledger.lookup().await else { return Vec::new() };
        let found = self.resolver.look_up(host).await;
        drop(place);
        found
    }
}

/// Whether a connection leads to this machine, by a public address of its own: then both ends have
/// the same.
fn is_own(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(here), Ok(there)) => here.ip() == there.ip(),
        _ => true,
    }
}

/// A host for the log, though it may be none.
fn shown(host: &str) -> String {
    windlass_protocol::policy::normal_host(host).unwrap_or_else(|| {
        host.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect()
    })
}

/// Where addresses come from.
#[derive(Debug)]
pub enum Resolver {
    /// The machine's own way, with a bound on how many are asked for at once.
    System { places: Arc<Semaphore> },
    /// Answers made up by a test, each used once, the last one for ever.
    #[cfg(test)]
    Script(std::sync::Mutex<Vec<Vec<IpAddr>>>),
}

impl Resolver {
    pub fn system() -> Self {
        Self::System { places: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    /// The addresses of a name; none when it is not known.
    async fn look_up(&self, host: &str) -> Vec<IpAddr> {
        let places = match self {
            Self::System { places } => places,
            #[cfg(test)]
            Self::Script(answers) => {
                let mut answers = answers.lock().unwrap();
                return if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
            }
        };
        let Ok(place) = places.clone().acquire_owned().await else { return Vec::new() };
        let host = host.to_owned();
        let looked_up = tokio::task::spawn_blocking(move || {
            let found = (host.as_str(), 0).to_socket_addrs();
            // Held by the thread: whoever asked may be gone before the answer comes.
            drop(place);
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
    async fn a_connection_to_this_machine_s_own_address_is_known() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(is_own(&stream));
        // The same machine, but seen as if it were another.
        let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!is_own(&stream));
    }

    #[tokio::test]
    async fn the_system_knows_its_own_name() {
        let resolver = Resolver::system();
        let found = resolver.look_up("localhost").await;
        assert!(found.iter().any(IpAddr::is_loopback), "{found:?}");
    }

    #[test]
    fn what_is_no_host_is_shown_without_harm() {
        assert_eq!(shown("A.org"), "a.org");
        assert_eq!(shown("a\u{1b}[2J\n"), "a\\u{1b}[2J\\n");
        assert!(shown(&"x y".repeat(1000)).len() <= SHOWN_CHARS_MAX);
    }
}

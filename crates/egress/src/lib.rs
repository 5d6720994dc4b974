//! The egress proxy of a session whose policy is a list of hosts. The sandbox has one listener and
//! no route to the network. The keeper passes each accepted connection to the node as a descriptor.
//! This crate serves it as a proxy: by host name, and only for hosts that the rules allow.
//!
//! - [`handoff`] receives the connection from the keeper;
//! - [`rules`] decides, [`reach`] resolves names and connects, [`ledger`] counts the decisions;
//! - [`proxy`] serves a connection as [`socks`] or [`web`], then as a [`tunnel`]; [`hello`] inspects
//!   the first bytes in the tunnel;
//! - [`secrets`] puts values of secrets into requests, and ends TLS for the hosts of secret rules.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod environment;
mod handoff;
mod hello;
mod ledger;
mod meter;
mod proxy;
mod reach;
mod rules;
mod secrets;
mod socks;
#[cfg(test)]
mod tests;
mod timeouts;
mod tunnel;
mod web;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use windlass_protocol::SessionId;

pub use environment::proxy_environment;
pub use ledger::{Decision, DecisionSink, Ledger};
use reach::{Resolver, SessionEgress};
pub use rules::{RefusalReason, is_public};
pub use secrets::{
    Authority, AuthorityError, BadSecretValue, SecretSource, SecretValue, SessionSecrets,
};
use timeouts::ProxyTimeouts;

/// Finds the ledger of a session. `None` when the session has no egress or does not exist.
pub type FindLedger = Arc<dyn Fn(&SessionId) -> Option<Arc<Ledger>> + Send + Sync>;

/// Maximum number of keeper connections whose message has not been received. Further keepers wait to
/// be accepted.
const HANDOFFS_MAX: usize = 256;

/// Maximum number of client connections of all sessions together, whatever the descriptor limit.
const CONNECTIONS_MAX: u64 = 4096;

/// One connection is allowed per so many descriptors of the node. Each connection takes two
/// descriptors, so all connections together take at most a quarter.
const DESCRIPTORS_SHARE: u64 = 8;

/// Pause after a failed `accept`. Nothing signals when a descriptor is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum time to receive a keeper's message. The keeper sends it before the node accepts.
const HANDOFF_TIME: Duration = Duration::from_secs(5);

/// Serves the connections that keepers pass, until the node stops. `descriptors` is the node's limit
/// of open descriptors.
pub async fn serve(listener: UnixListener, descriptors: u64, find: FindLedger) {
    let handoffs = Arc::new(Semaphore::new(HANDOFFS_MAX));
    let connections_max = (descriptors / DESCRIPTORS_SHARE).clamp(1, CONNECTIONS_MAX);
    let connections =
        Arc::new(Semaphore::new(usize::try_from(connections_max).unwrap_or(usize::MAX)));
    let resolver = Arc::new(Resolver::system());
    let user = rustix::process::geteuid().as_raw();
    loop {
        let Ok(handoff_slot) = handoffs.clone().acquire_owned().await else { return };
        let keeper = match listener.accept().await {
            Ok((keeper, _)) => keeper,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a keeper's egress connection; retrying");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // The socket's directory already excludes other users. This check holds even if the
        // directory's mode was changed.
        if !keeper.peer_cred().is_ok_and(|peer| peer.uid() == user) {
            continue;
        }
        let (find, resolver) = (find.clone(), resolver.clone());
        let connections = connections.clone();
        tokio::spawn(async move {
            let received = receive(keeper, &find, resolver).await;
            drop(handoff_slot);
            let Some((client, egress)) = received else { return };
            match connections.try_acquire() {
                Ok(_connection) => proxy::serve(client, egress).await,
                Err(_) => egress.ledger.note_too_many_connections().await,
            }
        });
    }
}

/// The connection that a keeper passes, and the egress of its session. If either is missing, the
/// connection is closed.
async fn receive(
    keeper: UnixStream,
    find: &FindLedger,
    resolver: Arc<Resolver>,
) -> Option<(TcpStream, Arc<SessionEgress>)> {
    let passed = tokio::time::timeout(HANDOFF_TIME, handoff::receive(&keeper)).await.ok()?;
    let (client, session) = match passed {
        Ok(passed) => passed,
        Err(error) => {
            tracing::warn!(%error, "cannot receive an egress connection from a keeper");
            return None;
        }
    };
    let ledger = find(&session)?;
    Some((client, Arc::new(SessionEgress { ledger, resolver, timeouts: ProxyTimeouts::DEFAULT })))
}

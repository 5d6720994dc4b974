//! A session's way to the network where its policy is a list of hosts. Inside the sandbox there is
//! one listener and no route; its keeper passes each connection on to here as a descriptor, and here
//! it is served as a proxy: by name, for the hosts that the rules allow, and for nobody else.
//!
//! - [`rules`] decides, [`reach`] looks up and connects, [`ledger`] counts and remembers;
//! - [`proxy`] serves a connection: [`socks`] or [`web`], then a [`tunnel`] whose first bytes
//!   [`hello`] looks at.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod environment;
mod hello;
mod ledger;
mod meter;
mod passed;
mod proxy;
mod reach;
mod rules;
mod socks;
#[cfg(test)]
mod tests;
mod tunnel;
mod web;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use windlass_protocol::SessionId;

pub use environment::proxy_environment;
pub use ledger::{Decision, Ledger, SessionOwner};
use proxy::Times;
use reach::{Door, Resolver};

/// Finds the ledger of a session, if it has one.
pub type FindLedger = Arc<dyn Fn(&SessionId) -> Option<Arc<Ledger>> + Send + Sync>;

/// Keepers' connections that have not said yet what they bring; more wait to be accepted.
const PASSING_MAX: usize = 256;

/// Connections of all sessions together, however many descriptors there are.
const CONNECTIONS_MAX: u64 = 4096;

/// Of so many descriptors of the node one connection may be had: each takes two, so that all
/// together take a quarter.
const DESCRIPTORS_SHARE: u64 = 8;

/// How long nothing is accepted when it failed: nobody says when a descriptor is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a keeper may take to say it. It has said it before we accept.
const PASSING_TIME: Duration = Duration::from_secs(5);

/// Takes in what keepers pass on, until the node stops. `descriptors` is how many the node may have
/// open.
pub async fn serve(listener: UnixListener, descriptors: u64, find: FindLedger) {
    let places = Arc::new(Semaphore::new(PASSING_MAX));
    let most = (descriptors / DESCRIPTORS_SHARE).clamp(1, CONNECTIONS_MAX);
    let connections = Arc::new(Semaphore::new(usize::try_from(most).unwrap_or(usize::MAX)));
    let resolver = Arc::new(Resolver::system());
    let user = rustix::process::geteuid().as_raw();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let keeper = match listener.accept().await {
            Ok((keeper, _)) => keeper,
            Err(error) => {
                tracing::warn!(%error, "cannot accept what a keeper passes on");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // The directory keeps others out; this holds even where its mode was changed.
        if !keeper.peer_cred().is_ok_and(|peer| peer.uid() == user) {
            continue;
        }
        let (find, resolver) = (find.clone(), resolver.clone());
        let connections = connections.clone();
        tokio::spawn(async move {
            let taken = take_in(keeper, &find, resolver).await;
            drop(place);
            let Some((client, door)) = taken else { return };
            match connections.try_acquire() {
                Ok(_connection) => proxy::serve(client, door).await,
                Err(_) => door.ledger.turn_away().await,
            }
        });
    }
}

/// The connection that a keeper brings, and the door of its session. Without either it is closed.
async fn take_in(
    keeper: UnixStream,
    find: &FindLedger,
    resolver: Arc<Resolver>,
) -> Option<(TcpStream, Arc<Door>)> {
    let passed = tokio::time::timeout(PASSING_TIME, passed::receive(&keeper)).await.ok()?;
    let (client, session) = match passed {
        Ok(passed) => passed,
        Err(error) => {
            tracing::warn!(%error, "a keeper passed on nothing that can be served");
            return None;
        }
    };
    let ledger = find(&session)?;
    Some((client, Arc::new(Door { ledger, resolver, times: Times::USUAL })))
}

//! What clients are told about the fleet: its nodes with their load, and how this node stands in it. Asks the nodes that
//! are alive, all at once and within one time limit. Changes nothing.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use windlass_fleet::FleetClock;
use windlass_fleet::membership::PeerReport;
use windlass_lifecycle::fleet::PeerStatus;
use windlass_protocol::fleet_view::{
    FleetNodeCounts, FleetNodeList, FleetNodeStatus, FleetNodeView, FleetStatus, FleetStoreStatus,
    NodeLoad,
};

use super::{FleetNode, load};
use crate::clock::now_ms;
use crate::context::Context;
use crate::failure::Failure;

/// How long all nodes together may take to tell their load.
const LOADS_WAIT: Duration = Duration::from_millis(500);

/// Maximum number of nodes that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;

/// How long the store may take to answer.
const STORE_WAIT: Duration = Duration::from_millis(1_500);

/// All nodes of the fleet, by name.
pub(crate) async fn nodes(context: &Context, fleet: &FleetNode) -> FleetNodeList {
    let turns = Semaphore::new(ASKED_AT_ONCE);
    let until = Instant::now() + LOADS_WAIT;
    let others = others(fleet).into_iter().map(|peer| view_of(fleet, peer, &turns, until));
    let mut nodes = join_all(others).await;
    nodes.push(own_view(context, fleet));
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    FleetNodeList { nodes }
}

/// How this node stands in its fleet.
pub(crate) async fn status(context: &Context, fleet: &FleetNode) -> FleetStatus {
    let (list, store) = tokio::join!(nodes(context, fleet), store_status(fleet));
    let (generation, renewed_at) = match fleet.joined() {
        Some(joined) => {
            let states = joined.membership.states();
            let state = states.borrow();
            (state.generation, state.renewed_at)
        }
        None => {
            let waiting = fleet.waiting();
            (waiting.generation(), waiting.renewed_at())
        }
    };
    let loads = list.nodes.iter().filter_map(|node| node.load.as_ref());
    FleetStatus {
        node: fleet.name().clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        standing: load::standing(fleet),
        cordoned: fleet.is_cordoned(),
        generation,
        lease_age_ms: renewed_at.map(|at| FleetClock.now().since(at)),
        lease_close_ms: fleet.config.timing.close_ms,
        lease_fence_ms: fleet.config.timing.fence_ms(),
        store,
        certificate_expires_at_ms: fleet.peers.connections.certificate_expires_at_ms(),
        nodes: FleetNodeCounts::of(&list),
        sessions: loads.map(|load| load.sessions.live).sum(),
    }
}

/// The other nodes, as far as this node knows: also those that were lost within the last day, unless they were removed.
pub(crate) fn others(fleet: &FleetNode) -> Vec<PeerReport> {
    let peers = fleet.joined().map(|joined| joined.membership.peers()).unwrap_or_default();
    let is_told = |peer: &PeerReport| {
        let has_left =
            matches!(peer.status, PeerStatus::Lost(_)) && fleet.removed().has(&peer.node);
        peer.node != *fleet.name() && !has_left
    };
    peers.into_iter().filter(is_told).collect()
}

pub(crate) fn status_of(status: PeerStatus) -> FleetNodeStatus {
    match status {
        PeerStatus::Alive => FleetNodeStatus::Alive,
        PeerStatus::Unreachable => FleetNodeStatus::Unreachable,
        PeerStatus::Lost(_) => FleetNodeStatus::Lost,
    }
}

fn own_view(context: &Context, fleet: &FleetNode) -> FleetNodeView {
    let joined = fleet.joined();
    FleetNodeView {
        node: fleet.name().clone(),
        status: FleetNodeStatus::Alive,
        is_self: true,
        address: Some(fleet.config.address.clone()),
        generation: joined.and_then(|joined| joined.membership.generation()),
        load: Some(load::measure(context, fleet)),
        error: None,
        answer_ms: None,
        clock_ahead_ms: None,
    }
}

async fn view_of(
    fleet: &FleetNode,
    peer: PeerReport,
    turns: &Semaphore,
    until: Instant,
) -> FleetNodeView {
    let node = peer.node;
    let status = status_of(peer.status);
    let answered = match status {
        FleetNodeStatus::Alive => Some(timed_load(fleet, &node, turns, until).await),
        FleetNodeStatus::Unreachable | FleetNodeStatus::Lost => None,
    };
    let (load, error) = match answered {
        Some(Ok(answer)) => (Some(answer), None),
        Some(Err(failure)) => (None, Some(failure.message)),
        None => (None, None),
    };
    FleetNodeView {
        node,
        status,
        is_self: false,
        address: peer.address,
        generation: peer.member.map(|member| member.generation),
        answer_ms: load.as_ref().map(|answer| answer.took_ms),
        clock_ahead_ms: load.as_ref().map(TimedLoad::clock_ahead_ms),
        load: load.map(|answer| answer.load),
        error,
    }
}

/// The load of a node, and when it was asked for.
struct TimedLoad {
    load: NodeLoad,
    asked_at_ms: u64,
    took_ms: u64,
}

impl TimedLoad {
    /// The node read its clock at some time between question and answer.
    fn clock_ahead_ms(&self) -> i64 {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        signed(self.load.at_ms).saturating_sub(signed(self.asked_at_ms + self.took_ms / 2))
    }
}

async fn timed_load(
    fleet: &FleetNode,
    node: &windlass_protocol::NodeName,
    turns: &Semaphore,
    until: Instant,
) -> Result<TimedLoad, Failure> {
    // Without a turn in time the question is not sent, and fails by its time limit.
    let left = until.saturating_duration_since(Instant::now());
    let _turn = timeout(left, turns.acquire()).await;
    let (asked_at_ms, asked_at) = (now_ms(), Instant::now());
    let load = load::of_peer(fleet, node, until.saturating_duration_since(asked_at)).await?;
    let took_ms = u64::try_from(asked_at.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(TimedLoad { load, asked_at_ms, took_ms })
}

async fn store_status(fleet: &FleetNode) -> FleetStoreStatus {
    let Some(joined) = fleet.joined() else {
        let known = fleet.condition.store_error.lock().unwrap_or_else(PoisonError::into_inner);
        let error = known.clone().unwrap_or_else(|| "the node has not reached it yet".to_owned());
        let error = Some(without_passwords(&error, &fleet.config.servers));
        return FleetStoreStatus { reachable: false, answer_ms: None, error };
    };
    let asked_at = Instant::now();
    let error = match timeout(STORE_WAIT, joined.store.read_member(fleet.name())).await {
        Ok(Ok(_)) => {
            let answer_ms = u64::try_from(asked_at.elapsed().as_millis()).ok();
            return FleetStoreStatus { reachable: true, answer_ms, error: None };
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it did not answer within {} ms", STORE_WAIT.as_millis()),
    };
    let error = Some(without_passwords(&error, &fleet.config.servers));
    FleetStoreStatus { reachable: false, answer_ms: None, error }
}

/// The text without the passwords that are in the URLs of the store's servers.
fn without_passwords(text: &str, servers: &[String]) -> String {
    servers.iter().fold(text.to_owned(), |text, server| {
        let Some((scheme, rest)) = server.split_once("://") else { return text };
        let Some((_, host)) = rest.rsplit_once('@') else { return text };
        text.replace(server.as_str(), &format!("{scheme}://{host}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_store_shows_no_password() {
        let servers = ["nats://user:p@ss@store1:4222".to_owned(), "nats://store2:4222".to_owned()];
        let text = "no server answers at nats://user:p@ss@store1:4222, nats://store2:4222";
        assert_eq!(
            without_passwords(text, &servers),
            "no server answers at nats://store1:4222, nats://store2:4222"
        );
    }
}

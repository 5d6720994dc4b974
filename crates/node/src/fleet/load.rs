//! The load of this node, and whether it has room for another session. Measures, and refuses; placement itself is in
//! `lifecycle::fleet::placement`.

use std::path::Path;
use std::time::Duration;

use windlass_lifecycle::fleet::{LeaseStanding, PlacementRefusal};
use windlass_protocol::fleet_view::{
    MemoryCapacity, NODE_LOAD, NodeLoad, NodeStanding, ProcessorCapacity, SessionCapacity,
};
use windlass_protocol::{ErrorCode, NodeName};

use super::asking::{PeerQuestion, ask};
use super::{FleetNode, memory};
use crate::context::Context;
use crate::failure::Failure;

/// Where a node tells its load.
pub(crate) const LOAD: &str = "/v1/fleet/load";

/// Without `max_sessions` in the configuration, a node takes one session for this much memory, and at least some.
const SESSION_BYTES: u64 = 16 << 20;
const SESSIONS_MIN: u64 = 16;

/// The load of this node.
pub(crate) fn measure(context: &Context, fleet: &FleetNode) -> NodeLoad {
    let memory = fleet.condition.memory.measure();
    NodeLoad {
        version: NODE_LOAD,
        node: fleet.name().clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        at_ms: crate::clock::now_ms(),
        standing: standing(fleet),
        cordoned: fleet.condition.cordon.is_on(),
        labels: fleet.config.labels.clone(),
        sessions: SessionCapacity {
            live: context.sessions.count() as u64,
            max: fleet.config.max_sessions.unwrap_or_else(|| sessions_max(&memory)),
        },
        memory,
        processors: processors(),
        ready: context.host.provision.ready_workers(),
    }
}

/// The load of another node.
pub(crate) async fn of_peer(
    fleet: &FleetNode,
    node: &NodeName,
    wait: Duration,
) -> Result<NodeLoad, Failure> {
    let load: NodeLoad = ask(fleet, node, PeerQuestion::get(LOAD, wait)).await?;
    if load.version == NODE_LOAD && load.node == *node {
        return Ok(load);
    }
    let message = format!(
        "the load that node {node} tells has version {} and is of node {}: this release reads version {NODE_LOAD}",
        load.version, load.node
    );
    Err(Failure::new(ErrorCode::VersionMismatch, message))
}

/// The standing of this node, as clients and other nodes are told.
pub(crate) fn standing(fleet: &FleetNode) -> NodeStanding {
    match fleet.standing() {
        LeaseStanding::Joining => NodeStanding::Joining,
        LeaseStanding::Serving => NodeStanding::Serving,
        LeaseStanding::Closed => NodeStanding::Closed,
        LeaseStanding::Fenced => NodeStanding::Fenced,
    }
}

/// Why this node refuses a session that could be made on another node too.
pub(crate) fn refuse_placed(context: &Context, fleet: &FleetNode) -> Option<Failure> {
    let refusal = PlacementRefusal::of(&measure(context, fleet))?;
    let code = match refusal {
        PlacementRefusal::Cordoned => ErrorCode::Cordoned,
        PlacementRefusal::NotServing(NodeStanding::Fenced) => ErrorCode::Fenced,
        PlacementRefusal::NotServing(_) => ErrorCode::FleetUnavailable,
        _ => ErrorCode::Overloaded,
    };
    Some(Failure::of_node(code, format!("node {} {refusal}", fleet.name())))
}

/// Why this node refuses a session that can only be made here.
pub(crate) fn refuse_local(fleet: &FleetNode) -> Option<Failure> {
    fleet.condition.cordon.is_on().then(|| {
        let message = format!(
            "node {} is cordoned and takes no new sessions, and this one names something of its machine",
            fleet.name()
        );
        Failure::new(ErrorCode::Cordoned, message)
    })
}

fn sessions_max(memory: &MemoryCapacity) -> u64 {
    (memory.total_bytes / SESSION_BYTES).max(SESSIONS_MIN)
}

fn processors() -> ProcessorCapacity {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let text = memory::read(Path::new("/proc/loadavg"));
    ProcessorCapacity { count, load_hundredths: load_hundredths(&text).unwrap_or(0) }
}

/// The first number of `/proc/loadavg`, such as `0.52`.
fn load_hundredths(text: &str) -> Option<u64> {
    let (whole, parts) = text.split_ascii_whitespace().next()?.split_once('.')?;
    let hundredths = parts.get(..2)?.parse::<u64>().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_average_is_read_in_hundredths() {
        for (text, expected) in [
            ("0.52 0.58 0.59 1/467 12345\n", Some(52)),
            ("12.07 1.00 1.00 1/1 1\n", Some(1_207)),
            ("", None),
            ("1", None),
            ("1.5", None),
            ("-1.00", None),
        ] {
            assert_eq!(load_hundredths(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_node_takes_sessions_for_its_memory() {
        let memory = |total_bytes| MemoryCapacity { total_bytes, ..MemoryCapacity::default() };
        assert_eq!(sessions_max(&memory(16 << 30)), 1_024);
        assert_eq!(sessions_max(&memory(0)), SESSIONS_MIN);
    }
}

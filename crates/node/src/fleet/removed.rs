//! The nodes that were removed from the fleet. `windlass fleet remove` writes a removal into the files of the authority. The
//! authority's node copies it into the store, where all nodes look from time to time. The store forgets a removal when the
//! last certificate of the node has expired.
//!
//! A node whose removal is known is refused, whatever its certificate says, and gets no requests. While the store does not
//! answer, what was known before holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use windlass_fleet::credentials::{CredentialsError, FleetAuthority};
use windlass_protocol::fleet::{FLEET_RECORDS, RemovalRecord};
use windlass_protocol::{ErrorCode, NodeName};

use super::{FleetNode, JoinedFleet};
use crate::clock::now_ms;
use crate::context::Context;
use crate::failure::Failure;

/// How often the node looks for removals.
const LOOK: Duration = Duration::from_secs(10);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct RemovedNodes(RwLock<BTreeSet<NodeName>>);

/// Names of removed nodes, and until when their last certificates may be valid, in milliseconds since 1970.
type Removals = BTreeMap<NodeName, u64>;

impl RemovedNodes {
    pub fn has(&self, node: &NodeName) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(node)
    }

    /// Refuses a request of a removed node.
    pub fn check(&self, node: &NodeName) -> Result<(), Failure> {
        if !self.has(node) {
            return Ok(());
        }
        let message = format!("node {node} was removed from the fleet");
        Err(Failure::new(ErrorCode::NodeRemoved, message))
    }

    /// `stored` is what the store has, or `None` if it did not answer. Removals of this machine's authority count at once.
    fn learn(&self, stored: Option<BTreeSet<NodeName>>, own: &Removals) {
        let mut removed = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = stored {
            *removed = stored;
        }
        removed.extend(own.keys().cloned());
    }
}

/// Looks for removals as long as the node stays joined.
pub(super) async fn keep_known(context: Arc<Context>, joined: Arc<JoinedFleet>) {
    let Some(fleet) = context.fleet() else { return };
    loop {
        look(fleet, &joined).await;
        tokio::time::sleep(LOOK).await;
    }
}

async fn look(fleet: &FleetNode, joined: &JoinedFleet) {
    let own = own_removals(fleet.config.credentials.clone()).await;
    let stored = match joined.store.removed_nodes().await {
        Ok(nodes) => Some(BTreeSet::from_iter(nodes)),
        Err(error) => {
            tracing::debug!(%error, "the removed nodes of the fleet cannot be read");
            None
        }
    };
    if let Some(stored) = &stored {
        for (record, ttl) in missing(&own, stored, now_ms()) {
            // Without an answer, the next look finds it missing again.
            joined.store.write_removal(&record, ttl).await;
        }
    }
    fleet.removed().learn(stored, &own);
}

/// The removals of the authority, if this machine has it.
async fn own_removals(credentials: PathBuf) -> Removals {
    let read = move || -> Result<Removals, CredentialsError> {
        match FleetAuthority::open(&credentials)? {
            Some(authority) => authority.removed(now_ms()),
            None => Ok(Removals::new()),
        }
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(removals)) => removals,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the nodes that were removed from the fleet cannot be read");
            Removals::new()
        }
        // The node stops.
        Err(_) => Removals::new(),
    }
}

/// The records that the store does not have yet, and how long it keeps each.
fn missing(
    own: &Removals,
    stored: &BTreeSet<NodeName>,
    now_ms: u64,
) -> Vec<(RemovalRecord, Duration)> {
    let missing = own.iter().filter(|(node, _)| !stored.contains(*node));
    let records = missing.filter_map(|(node, until_ms)| {
        // The store counts in whole seconds.
        let left_s = until_ms.saturating_sub(now_ms).div_ceil(1_000);
        let (node, until_ms) = (node.clone(), *until_ms);
        let record = RemovalRecord { version: FLEET_RECORDS, node, until_ms };
        (left_s > 0).then_some((record, Duration::from_secs(left_s)))
    });
    records.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn a_removed_node_is_refused_until_the_store_has_forgotten_it() {
        let removed = RemovedNodes::default();
        let (own, none) = (Removals::from([(name("n2"), 9_000)]), Removals::new());
        let stored = |names: &[&str]| Some(names.iter().map(|text| name(text)).collect());
        for (what, stored, own, expected) in [
            ("nothing is known", stored(&[]), &none, [false, false]),
            ("the authority is here, the store does not answer", None, &own, [true, false]),
            ("the store does not answer", None, &none, [true, false]),
            ("the store has both", stored(&["n2", "n3"]), &none, [true, true]),
            ("the store does not answer any more", None, &none, [true, true]),
            ("the certificate of n3 has expired", stored(&["n2"]), &none, [true, false]),
        ] {
            removed.learn(stored, own);
            let found = ["n2", "n3"].map(|text| removed.has(&name(text)));
            assert_eq!(found, expected, "{what}");
        }
        assert_eq!(removed.check(&name("n2")).unwrap_err().code, ErrorCode::NodeRemoved);
        assert!(removed.check(&name("n3")).is_ok());
    }

    #[test]
    fn the_store_keeps_a_removal_until_the_certificate_has_expired() {
        let own = Removals::from([(name("a"), 5_000), (name("b"), 6_001), (name("c"), 3_000)]);
        let found = missing(&own, &BTreeSet::from([name("a")]), 3_000);
        let found: Vec<_> = found.iter().map(|(one, ttl)| (one.node.as_str(), *ttl)).collect();
        assert_eq!(found, [("b", Duration::from_secs(4))]);
    }
}

//! Judges the other nodes: watches give hints, and the leader of the store decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use windlass_lifecycle::fleet::{PeerRequest, PeerStatus, PeerWatch};
use windlass_protocol::NodeName;
use windlass_protocol::fleet::MemberRecord;

use super::{Peer, Shared};
use crate::store::{FleetStoreError, RecordWatch, WatchedRecord};

/// A watch begins anew after this time, in case its server has died without a word, and to look at all nodes.
const WATCH_TIME: Duration = Duration::from_secs(60);

/// Number of nodes that follow the lease of a node.
const JUDGES: usize = 8;

/// How long a watch that failed, or that a new node ended, waits before it begins anew.
const WATCH_RETRY: Duration = Duration::from_millis(500);

/// How much later the next judge declares a node lost.
const RANK_MS: u64 = 1_000;

/// How long a node that was declared lost is told of. Its member record stays for ever, because its sessions stay lost.
const LOST_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Looks at all leases, then follows some of them: they say who may be gone. If each node followed all leases, the store
/// would send each renewal to all nodes.
pub(super) async fn watch_leases(shared: Arc<Shared>) {
    loop {
        let new_peer = shared.new_peer.notified();
        let followed = async {
            look_at_leases(&shared).await?;
            follow_leases(&shared, &judged_first(&shared)).await
        };
        tokio::select! {
            followed = timeout(WATCH_TIME, followed) => {
                let Ok(Err(error)) = followed else { continue };
                tracing::debug!(%error, "the watch of leases failed");
            }
            () = new_peer => {}
        }
        // Nodes that join within this pause cause one look at the leases, not one each.
        tokio::time::sleep(WATCH_RETRY).await;
    }
}

async fn look_at_leases(shared: &Shared) -> Result<(), FleetStoreError> {
    let mut watch = shared.store.watch_leases(None).await?;
    let mut present = BTreeSet::new();
    loop {
        match watch.next().await? {
            WatchedRecord::There { record, .. } => {
                let mut peers = shared.peers();
                peer(shared, &mut peers, &record.node).address = Some(record.address);
                present.insert(record.node);
            }
            // A marker does not stay for ever: nodes without one and without a lease are gone, too.
            WatchedRecord::Gone { .. } => {}
            WatchedRecord::Complete => {
                for (node, peer) in shared.peers().iter_mut() {
                    peer.watch.hinted(present.contains(node));
                }
                shared.hinted.notify_one();
                return Ok(());
            }
        }
    }
}

/// The nodes that this one judges before most others do.
fn judged_first(shared: &Shared) -> Vec<NodeName> {
    let names: Vec<NodeName> = shared.peers().keys().cloned().collect();
    let is_mine = |node: &&NodeName| {
        let own = rank(node, &shared.node);
        names.iter().filter(|judge| rank(node, judge) < own).count() < JUDGES
    };
    names.iter().filter(is_mine).cloned().collect()
}

async fn follow_leases(shared: &Shared, nodes: &[NodeName]) -> Result<(), FleetStoreError> {
    if nodes.is_empty() {
        return std::future::pending().await;
    }
    let mut watch = shared.store.watch_leases(Some(nodes)).await?;
    loop {
        match watch.next().await? {
            WatchedRecord::There { record, .. } => {
                let mut peers = shared.peers();
                let peer = peer(shared, &mut peers, &record.node);
                peer.watch.hinted(true);
                peer.address = Some(record.address);
                shared.hinted.notify_one();
            }
            WatchedRecord::Gone { name } => {
                if let Ok(node) = NodeName::parse(name) {
                    peer(shared, &mut shared.peers(), &node).watch.hinted(false);
                    shared.hinted.notify_one();
                }
            }
            WatchedRecord::Complete => {}
        }
    }
}

/// Follows the member records: they say who has joined, and who was declared lost.
pub(super) async fn watch_members(shared: Arc<Shared>) {
    loop {
        let followed = match shared.store.watch_members().await {
            Ok(watch) => timeout(WATCH_TIME, follow_members(&shared, watch)).await,
            Err(error) => Ok(Err(error)),
        };
        if let Ok(Err(error)) = followed {
            tracing::debug!(%error, "the watch of members failed");
            tokio::time::sleep(WATCH_RETRY).await;
        }
    }
}

async fn follow_members(
    shared: &Shared,
    mut watch: RecordWatch<MemberRecord>,
) -> Result<(), FleetStoreError> {
    loop {
        let WatchedRecord::There { record, .. } = watch.next().await? else { continue };
        if record.node == shared.node {
            shared.lease().member_seen(&record);
            shared.tell_state();
        }
        let mut peers = shared.peers();
        if forgets(&mut peers, &record, watch.age()) {
            continue;
        }
        let peer = peer(shared, &mut peers, &record.node);
        peer.watch.member_seen(&record);
        // A watch that begins anew can tell an older record than the one that is known.
        let newer = peer
            .member
            .as_ref()
            .is_none_or(|known| (record.generation, record.lost) >= (known.generation, known.lost));
        if newer {
            peer.member = Some(record);
        }
    }
}

/// Forgets a node that was declared lost long ago, unless it is back. The watch begins anew each minute, so a record that
/// grows old is seen again.
fn forgets(peers: &mut BTreeMap<NodeName, Peer>, record: &MemberRecord, age: Duration) -> bool {
    if !record.lost || age < LOST_KEPT {
        return false;
    }
    let known = peers.get(&record.node).map(|peer| peer.watch.status());
    let is_gone = known.is_none_or(|status| matches!(status, PeerStatus::Lost(_)));
    if is_gone {
        peers.remove(&record.node);
    }
    is_gone
}

/// Asks the leader about nodes whose lease seems to be gone, and declares those lost that do not come back.
pub(super) async fn judge(shared: Arc<Shared>) {
    loop {
        let (due, wake_at) = {
            let (now, stamp) = (shared.clock.now(), shared.stamp());
            let mut peers = shared.peers();
            let due = peers.iter_mut().find_map(|(node, peer)| {
                peer.watch.next_request(now, stamp).map(|request| (node.clone(), request))
            });
            (due, peers.values().filter_map(|peer| peer.watch.wake_at()).min())
        };
        match (due, wake_at) {
            (Some((node, request)), _) => ask(&shared, &node, request).await,
            (None, Some(at)) => tokio::select! {
                () = shared.sleep_until(at) => {}
                () = shared.hinted.notified() => {}
            },
            (None, None) => shared.hinted.notified().await,
        }
    }
}

async fn ask(shared: &Shared, node: &NodeName, request: PeerRequest) {
    let store = &shared.store;
    let unanswered = |error: FleetStoreError| {
        tracing::debug!(%node, %error, "a node could not be judged");
        shared.with_peer(node, |watch, now| watch.unanswered(now));
    };
    match request {
        PeerRequest::ReadMember => match store.read_member(node).await {
            Ok(current) => shared.with_peer(node, |watch, now| watch.member_read(now, current)),
            Err(error) => unanswered(error),
        },
        PeerRequest::ReadLease => match store.read_lease(node).await {
            Ok(current) => shared.with_peer(node, |watch, now| watch.lease_read(now, &current)),
            Err(error) => unanswered(error),
        },
        PeerRequest::WriteMember { record, expected } => {
            let answer = store.write_member(&record, expected).await;
            shared.with_peer(node, |watch, now| watch.written(now, answer));
        }
    }
}

impl Shared {
    fn with_peer(
        &self,
        node: &NodeName,
        act: impl FnOnce(&mut PeerWatch, windlass_lifecycle::fleet::ClockMs),
    ) {
        let now = self.clock.now();
        if let Some(peer) = self.peers().get_mut(node) {
            act(&mut peer.watch, now);
        }
    }
}

/// The peer of this name. A node that is seen for the first time is judged from then on.
fn peer<'p>(
    shared: &Shared,
    peers: &'p mut BTreeMap<NodeName, Peer>,
    node: &NodeName,
) -> &'p mut Peer {
    let others = peers.len().max(1) as u64;
    peers.entry(node.clone()).or_insert_with(|| {
        shared.new_peer.notify_waiters();
        let delay_ms = rank(node, &shared.node) % others * RANK_MS;
        let watch = PeerWatch::new(shared.timing, node.clone(), delay_ms);
        Peer { watch, address: None, member: None }
    })
}

/// This judge's place for a node: each node has other first judges.
fn rank(node: &NodeName, judge: &NodeName) -> u64 {
    let bytes = node.as_str().bytes().chain([0]).chain(judge.as_str().bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The last bytes of a name change the high bits too little.
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use windlass_lifecycle::fleet::{ClockMs, Current, LeaseTiming};
    use windlass_protocol::fleet::{BootNonce, FLEET_RECORDS, InstallationId, WriteStamp};
    use windlass_protocol::{Generation, Revision};

    use super::*;

    const STAMP: WriteStamp = WriteStamp { boot: BootNonce(1), write: 1 };

    fn record(node: &NodeName, lost: bool) -> MemberRecord {
        MemberRecord {
            version: FLEET_RECORDS,
            node: node.clone(),
            installation: InstallationId(1),
            stamp: STAMP,
            generation: Generation(3),
            lost,
        }
    }

    fn alive(node: &NodeName) -> Peer {
        let watch = PeerWatch::new(LeaseTiming::default(), node.clone(), 0);
        Peer { watch, address: None, member: None }
    }

    fn lost(node: &NodeName) -> Peer {
        let mut peer = alive(node);
        peer.watch.hinted(false);
        assert_eq!(peer.watch.next_request(ClockMs(1), STAMP), Some(PeerRequest::ReadMember));
        let current = Current { record: Some(record(node, true)), revision: Revision(9) };
        peer.watch.member_read(ClockMs(2), current);
        assert_eq!(peer.watch.status(), PeerStatus::Lost(Generation(3)));
        peer
    }

    #[test]
    fn the_table_forgets_a_node_that_is_lost_for_a_day() {
        let node = NodeName::parse("n1").expect("a name");
        let (early, late) = (LOST_KEPT - Duration::from_secs(1), LOST_KEPT);
        for (what, known, is_lost, age, expected) in [
            ("lost for less than a day", Some(lost(&node)), true, early, (false, true)),
            ("lost for a day", Some(lost(&node)), true, late, (true, false)),
            ("not in the table", None, true, late, (true, false)),
            ("back, and the record is old", Some(alive(&node)), true, late, (false, true)),
            ("a node that serves", Some(alive(&node)), false, late, (false, true)),
        ] {
            let mut peers: BTreeMap<_, _> =
                known.map(|peer| (node.clone(), peer)).into_iter().collect();
            let forgotten = forgets(&mut peers, &record(&node, is_lost), age);
            assert_eq!((forgotten, peers.contains_key(&node)), expected, "{what}");
        }
    }
}

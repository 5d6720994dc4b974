//! Keeps this node's lease, and judges the other nodes. Two tasks ask the store; what this node may do is read from the
//! clock at any moment, without a task.

mod judge;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use windlass_lifecycle::fleet::{
    ClockMs, FenceCause, LeaseHolder, LeaseKeeper, LeaseRequest, LeaseStanding, LeaseTiming,
    PeerStatus, PeerWatch,
};
use windlass_protocol::fleet::{BootNonce, MemberRecord, WriteStamp};
use windlass_protocol::{Generation, NodeName};

use crate::clock::FleetClock;
use crate::store::FleetStore;

/// Who this node is, and what it has of an earlier start.
#[derive(Debug, Clone)]
pub struct MembershipSettings {
    pub timing: LeaseTiming,
    pub holder: LeaseHolder,
    /// The generation whose sessions still live, and when its lease was last renewed.
    pub resumed: Option<(Generation, ClockMs)>,
}

/// What changes with each renewal. The node keeps `generation` and `renewed_at` for its next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MembershipState {
    pub standing: LeaseStanding,
    pub generation: Option<Generation>,
    pub renewed_at: Option<ClockMs>,
    pub fence_cause: Option<FenceCause>,
}

/// Another node, as this node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerReport {
    pub node: NodeName,
    pub status: PeerStatus,
    /// Where the node was last reached.
    pub address: Option<String>,
    pub member: Option<MemberRecord>,
}

/// A node that this one judges.
#[derive(Debug)]
struct Peer {
    watch: PeerWatch,
    address: Option<String>,
    member: Option<MemberRecord>,
}

#[derive(Debug)]
struct Shared {
    clock: FleetClock,
    store: FleetStore,
    timing: LeaseTiming,
    node: NodeName,
    boot: BootNonce,
    lease: Mutex<LeaseKeeper>,
    peers: Mutex<BTreeMap<NodeName, Peer>>,
    state: watch::Sender<MembershipState>,
    /// A watch has told the judge something.
    hinted: Notify,
    /// A node was seen for the first time.
    new_peer: Notify,
    /// Counts the writes that are not the lease keeper's own.
    writes: AtomicU64,
}

/// This node in its fleet. Dropping it ends its tasks; the lease then expires.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

/// The lease keeper numbers its writes from 1, everything else from here.
const OTHER_WRITES: u64 = 1 << 32;

impl Membership {
    pub fn start(store: FleetStore, settings: MembershipSettings) -> Self {
        let MembershipSettings { timing, holder, resumed } = settings;
        let (clock, node, boot) = (FleetClock, holder.node.clone(), holder.boot);
        let lease = LeaseKeeper::new(timing, holder, resumed);
        let (state, _) = watch::channel(state_of(&lease, clock.now()));
        let shared = Arc::new(Shared {
            clock,
            store,
            timing,
            node,
            boot,
            lease: Mutex::new(lease),
            peers: Mutex::default(),
            state,
            hinted: Notify::new(),
            new_peer: Notify::new(),
            writes: AtomicU64::new(OTHER_WRITES),
        });
        let tasks = vec![
            tokio::spawn(keep_lease(shared.clone())),
            tokio::spawn(judge::watch_leases(shared.clone())),
            tokio::spawn(judge::watch_members(shared.clone())),
            tokio::spawn(judge::judge(shared.clone())),
        ];
        Self { shared, tasks }
    }

    /// What this node may do at this moment.
    pub fn standing(&self) -> LeaseStanding {
        self.shared.lease().standing(self.shared.clock.now())
    }

    pub fn generation(&self) -> Option<Generation> {
        self.shared.lease().generation()
    }

    pub fn node(&self) -> &NodeName {
        &self.shared.node
    }

    /// Follows the state. It changes with each renewal.
    pub fn states(&self) -> watch::Receiver<MembershipState> {
        self.shared.state.subscribe()
    }

    /// A stamp for a write of this node.
    pub fn stamp(&self) -> WriteStamp {
        self.shared.stamp()
    }

    /// Another node, if this node knows it.
    pub fn peer(&self, node: &NodeName) -> Option<PeerReport> {
        let peers = self.shared.peers();
        peers.get(node).map(|peer| report(node, peer))
    }

    /// All nodes, as far as this node knows. A node that was declared lost is told of for a day.
    pub fn peers(&self) -> Vec<PeerReport> {
        self.shared.peers().iter().map(|(node, peer)| report(node, peer)).collect()
    }
}

fn report(node: &NodeName, peer: &Peer) -> PeerReport {
    PeerReport {
        node: node.clone(),
        status: peer.watch.status(),
        address: peer.address.clone(),
        member: peer.member.clone(),
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Shared {
    fn lease(&self) -> MutexGuard<'_, LeaseKeeper> {
        self.lease.lock().expect("no holder of this lock can panic")
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeName, Peer>> {
        self.peers.lock().expect("no holder of this lock can panic")
    }

    fn stamp(&self) -> WriteStamp {
        WriteStamp { boot: self.boot, write: self.writes.fetch_add(1, Ordering::Relaxed) }
    }

    fn tell_state(&self) {
        let state = state_of(&self.lease(), self.clock.now());
        self.state.send_if_modified(|before| std::mem::replace(before, state) != state);
    }

    /// Waits until the clock shows this time.
    async fn sleep_until(&self, at: ClockMs) {
        tokio::time::sleep(Duration::from_millis(at.since(self.clock.now()))).await;
    }
}

fn state_of(lease: &LeaseKeeper, now: ClockMs) -> MembershipState {
    MembershipState {
        standing: lease.standing(now),
        generation: lease.generation(),
        renewed_at: lease.renewed_at(),
        fence_cause: lease.fence_cause(),
    }
}

/// Renews the lease until the node is fenced.
async fn keep_lease(shared: Arc<Shared>) {
    loop {
        let (request, wake_at) = {
            let mut lease = shared.lease();
            (lease.next_request(shared.clock.now()), lease.wake_at())
        };
        match (request, wake_at) {
            (Some(request), _) => ask(&shared, request).await,
            (None, Some(at)) => shared.sleep_until(at).await,
            (None, None) => {
                shared.tell_state();
                return;
            }
        }
        shared.tell_state();
    }
}

async fn ask(shared: &Shared, request: LeaseRequest) {
    let store = &shared.store;
    let ttl = Duration::from_millis(shared.timing.ttl_ms);
    match request {
        LeaseRequest::ReadLease => {
            let answer = store.read_lease(&shared.node).await;
            shared.told(answer, LeaseKeeper::lease_read);
        }
        LeaseRequest::ReadMember => {
            let answer = store.read_member(&shared.node).await;
            shared.told(answer, LeaseKeeper::member_read);
        }
        LeaseRequest::WriteLease { record, expected } => {
            let answer = store.write_lease(&record, expected, ttl).await;
            shared.lease().written(shared.clock.now(), answer);
        }
        LeaseRequest::WriteMember { record, expected } => {
            let answer = store.write_member(&record, expected).await;
            shared.lease().written(shared.clock.now(), answer);
        }
    }
}

impl Shared {
    /// Tells the lease keeper what was read.
    fn told<R>(
        &self,
        answer: Result<R, crate::store::FleetStoreError>,
        read: impl FnOnce(&mut LeaseKeeper, ClockMs, R),
    ) {
        let now = self.clock.now();
        match answer {
            Ok(current) => read(&mut self.lease(), now, current),
            Err(error) => {
                tracing::debug!(%error, "the lease could not be read");
                self.lease().unanswered(now);
            }
        }
    }
}

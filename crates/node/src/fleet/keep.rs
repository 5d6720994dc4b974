//! Joins the fleet and keeps the lease. When the lease is lost, ends all sessions and joins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use windlass_fleet::directory::{FleetDirectory, NameClaimError};
use windlass_fleet::membership::{MembershipSettings, MembershipState};
use windlass_fleet::store::{Credentials, StoreSettings};
use windlass_fleet::{FleetClock, FleetStore, Membership};
use windlass_lifecycle::fleet::{LeaseHolder, LeaseKeeper, LeaseStanding, LocalSession};
use windlass_protocol::SessionId;
use windlass_protocol::fleet::BootNonce;

use super::standing_file::{Resumed, random};
use super::{FleetNode, JoinedFleet, certificates, copying, removed};
use crate::context::Context;
use crate::session::Request;

/// How often the node compares its sessions with the directory.
const COMPARE: Duration = Duration::from_secs(60);

/// The first and the longest pause between two tries to reach the store.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);
const CONNECT_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Keeps this node in its fleet until the node stops.
pub(crate) async fn keep(context: Arc<Context>, fleet: Arc<FleetNode>) {
    tokio::join!(keep_lease(&context, &fleet), certificates::keep_valid(&fleet));
}

async fn keep_lease(context: &Arc<Context>, fleet: &FleetNode) {
    fleet.resume_entries(live(context));
    let mut store = None;
    // Sessions of a time before the node had a fleet have no entries yet.
    let to_adopt = Arc::new(AtomicBool::new(fleet.waiting().generation().is_none()));
    loop {
        let known = match store.take() {
            Some(store) => Some(store),
            None => tokio::select! {
                store = connect(fleet) => Some(store),
                () = until_fenced(fleet) => None,
            },
        };
        if let Some(connected) = known {
            let joined = join(fleet, &connected);
            fleet.set_joined(Some(joined.clone()));
            let to_adopt = to_adopt.clone();
            JoinedNode { context, fleet, joined, to_adopt }.until_fenced().await;
            store = Some(connected);
        }
        to_adopt.store(false, Ordering::Relaxed);
        end_all(context).await;
        // Only now: until all sessions have ended, a restart of the node must find the lost generation.
        save(fleet, None);
        *fleet.waiting() = LeaseKeeper::new(fleet.config.timing, fleet.holder.clone(), None);
        fleet.set_joined(None);
    }
}

/// Connects to the store, however long that takes.
async fn connect(fleet: &FleetNode) -> FleetStore {
    let settings = StoreSettings {
        servers: fleet.config.servers.clone(),
        credentials: Credentials::None,
        ca: fleet.config.store_ca.clone(),
        replicas: fleet.config.replicas,
        copies_kept: copying::COPIES_KEPT,
    };
    let mut pause = CONNECT_PAUSE;
    let mut said = false;
    loop {
        let error = match FleetStore::connect(&settings).await {
            Ok(store) => {
                fleet.note_store_error(None);
                return store;
            }
            Err(error) => error,
        };
        if said {
            tracing::debug!(%error, "the fleet's store cannot be used");
        } else {
            tracing::warn!(%error, "the fleet's store cannot be used; the node goes on trying");
            said = true;
        }
        fleet.note_store_error(Some(error.to_string()));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(CONNECT_PAUSE_MAX);
    }
}

fn join(fleet: &FleetNode, store: &FleetStore) -> Arc<JoinedFleet> {
    let settings = {
        let waiting = fleet.waiting();
        MembershipSettings {
            timing: fleet.config.timing,
            // Each membership counts its writes from the start. With the stamps of the one before, a record that was
            // written before the fence could pass for a write that was lost.
            holder: LeaseHolder { boot: BootNonce(random()), ..fleet.holder.clone() },
            resumed: waiting.generation().zip(waiting.renewed_at()),
        }
    };
    let membership = Arc::new(Membership::start(store.clone(), settings));
    let directory = FleetDirectory::new(store.clone(), membership.clone());
    Arc::new(JoinedFleet { store: store.clone(), membership, directory })
}

/// Returns when the node is fenced by its clock, without the store.
async fn until_fenced(fleet: &FleetNode) {
    let renewed_at = fleet.waiting().renewed_at();
    let Some(renewed_at) = renewed_at else { return std::future::pending().await };
    let at = renewed_at.after(fleet.config.timing.fence_ms());
    while fleet.standing() != LeaseStanding::Fenced {
        tokio::time::sleep(Duration::from_millis(at.since(FleetClock.now()).max(1))).await;
    }
}

/// The node while it has a connection to the store.
struct JoinedNode<'a> {
    context: &'a Arc<Context>,
    fleet: &'a FleetNode,
    joined: Arc<JoinedFleet>,
    /// Live sessions may have no entries yet.
    to_adopt: Arc<AtomicBool>,
}

impl JoinedNode<'_> {
    async fn until_fenced(self) {
        let mut states = self.joined.membership.states();
        let mut comparison = Comparison::default();
        // Dropping the set ends its tasks.
        let mut tasks = JoinSet::new();
        tasks.spawn(removed::keep_known(self.context.clone(), self.joined.clone()));
        let mut ended_copies = None;
        let mut before = None;
        loop {
            let state = *states.borrow_and_update();
            if before != Some(state.standing) {
                tracing::info!(standing = ?state.standing, cause = ?state.fence_cause, "the node in its fleet");
                before = Some(state.standing);
            }
            if state.standing == LeaseStanding::Fenced {
                return;
            }
            save(self.fleet, resumed(&state));
            if state.standing == LeaseStanding::Serving {
                ended_copies.get_or_insert_with(|| {
                    tasks.spawn(copying::copy_ended(self.context.clone(), self.joined.clone()))
                });
            }
            if state.standing == LeaseStanding::Serving && comparison.is_due() {
                let (context, joined) = (self.context.clone(), self.joined.clone());
                let to_adopt = self.to_adopt.clone();
                comparison.begin(async move { compare(&context, &joined, &to_adopt).await });
            }
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return },
                () = until_clock_fences(self.fleet, &state) => return,
                () = comparison.due_again() => {}
            }
        }
    }
}

fn resumed(state: &MembershipState) -> Option<Resumed> {
    state.generation.zip(state.renewed_at)
}

/// The lease's task tells its state after each answer of the store. This does not depend on any answer.
async fn until_clock_fences(fleet: &FleetNode, state: &MembershipState) {
    let Some(renewed_at) = state.renewed_at else { return std::future::pending().await };
    let at = renewed_at.after(fleet.config.timing.fence_ms());
    loop {
        let left = at.since(FleetClock.now());
        if left == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(left)).await;
    }
}

/// The comparison that runs, and when the last one began.
#[derive(Default)]
struct Comparison {
    task: Option<JoinHandle<()>>,
    at: Option<Instant>,
}

impl Comparison {
    fn is_due(&self) -> bool {
        let runs = self.task.as_ref().is_some_and(|task| !task.is_finished());
        !runs && self.at.is_none_or(|at| at.elapsed() >= COMPARE)
    }

    fn begin(&mut self, comparison: impl Future<Output = ()> + Send + 'static) {
        self.at = Some(Instant::now());
        self.task = Some(tokio::spawn(comparison));
    }

    async fn due_again(&self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at + COMPARE).await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Compares this node's sessions with the directory, and ends those whose names are not this node's any more.
async fn compare(context: &Arc<Context>, joined: &JoinedFleet, to_adopt: &AtomicBool) {
    if to_adopt.load(Ordering::Relaxed) {
        if let Err(error) = adopt(context, joined).await {
            // A comparison would end the sessions that have no entry.
            tracing::warn!(%error, "the entries of earlier sessions are not all in the fleet's directory");
            return;
        }
        to_adopt.store(false, Ordering::Relaxed);
    }
    let known: Vec<SessionId> = live(context);
    let before: BTreeSet<SessionId> = known.iter().cloned().collect();
    let local = || {
        let state = |(id, live): (SessionId, bool)| {
            let state =
                if live && before.contains(&id) { LocalSession::Live } else { LocalSession::New };
            (id, state)
        };
        context.sessions.ids().into_iter().map(state).collect::<BTreeMap<_, _>>()
    };
    match joined.directory.compare(local, &known).await {
        Ok(to_end) => {
            for id in to_end {
                tracing::warn!(session = %id, "the directory says that another node has this session: it is ended");
                end(context, &id).await;
            }
        }
        Err(error) => tracing::debug!(%error, "the sessions were not compared with the directory"),
    }
}

/// Writes the entries of sessions that were created before the node had a fleet. A session whose name another node has
/// gets none, so the comparison ends it.
async fn adopt(context: &Arc<Context>, joined: &JoinedFleet) -> Result<(), NameClaimError> {
    for id in live(context) {
        let own = joined.directory.find(&id).await?;
        if own.is_some_and(|found| found.entry.owner == *joined.membership.node()) {
            continue;
        }
        match joined.directory.claim(&id).await {
            Ok(_) | Err(NameClaimError::Taken { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn live(context: &Context) -> Vec<SessionId> {
    context.sessions.handles().into_iter().map(|handle| handle.id).collect()
}

/// Ends all sessions, and waits until they are gone.
async fn end_all(context: &Arc<Context>) {
    let sessions = live(context);
    tracing::warn!(
        sessions = sessions.len(),
        "the node has lost its lease in the fleet: its sessions end"
    );
    join_all(sessions.iter().map(|id| end(context, id))).await;
}

async fn end(context: &Context, id: &SessionId) {
    let Some(handle) = context.sessions.find(id) else { return };
    // An error means that the session has ended already.
    let _ = handle.ask(|reply| Request::Fence { reply }).await;
}

/// Keeps the state of the lease for the next start.
fn save(fleet: &FleetNode, resumed: Option<Resumed>) {
    // The file is small and is not synced: this takes some microseconds.
    if let Err(error) = fleet.file.save(resumed) {
        tracing::warn!(%error, "cannot keep the state of the lease for the next start");
    }
}

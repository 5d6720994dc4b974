//! This node's part in a fleet: its lease, the entries of its sessions in the directory, and the way to the sessions of
//! other nodes. A node without `[fleet]` in its configuration has none of it.
//!
//! - [`certificates`]: renews the node's certificate, and signs those of others;
//! - [`keep`]: joins the fleet, keeps the lease, ends all sessions when it is lost;
//! - [`routes`]: finds the node that has a session;
//! - [`forward`]: passes a request on to that node;
//! - [`peers`]: the connections to other nodes, [`asking`] requests of this node itself;
//! - [`liveness`]: whether another node still answers, [`peer_body`] ends an answer when it does not;
//! - [`load`]: what this node has left for new sessions, measured by [`memory`];
//! - [`cordon`]: whether a user wants no new sessions here;
//! - [`removed`]: the nodes that were removed from the fleet;
//! - [`placing`]: finds a node for a new session;
//! - [`listing`]: the sessions of other nodes, in pages;
//! - [`view`]: what clients are told about all nodes;
//! - [`copying`]: copies the events of this node's sessions, and [`trim`] leaves bulk output out;
//! - [`ended_here`]: whether this node answers from its journal about a session that has ended;
//! - [`lost`]: answers from the copy of a session that was lost;
//! - [`standing_file`]: what the node needs of its lease after a restart.

pub(crate) mod asking;
pub(crate) mod certificates;
mod copying;
mod cordon;
mod ended_here;
pub(crate) mod forward;
pub(crate) mod keep;
pub(crate) mod listing;
mod liveness;
pub(crate) mod load;
mod lost;
mod memory;
mod peer_body;
mod peers;
pub(crate) mod placing;
mod removed;
mod routes;
mod standing_file;
mod trim;
pub(crate) mod view;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use windlass_fleet::credentials::NodeTls;
use windlass_fleet::directory::{ClaimedName, FleetDirectory, NameClaimError};
use windlass_fleet::{FleetClock, FleetStore, Membership};
use windlass_lifecycle::fleet::{LeaseHolder, LeaseKeeper, LeaseStanding};
use windlass_protocol::fleet::BootNonce;
use windlass_protocol::{ErrorCode, NodeName, Revision, SessionId};

use crate::config::{Config, FleetConfig};
use crate::failure::Failure;
use copying::SessionCopies;
use cordon::CordonFile;
use liveness::PeerLiveness;
use memory::MemoryGauge;
use peers::PeerConnections;
use placing::KnownNodes;
use removed::RemovedNodes;
use routes::RouteCache;
use standing_file::StandingFile;

pub(crate) use lost::CopiedLog;
pub(crate) use routes::SessionRoute;
pub(crate) use standing_file::StandingFileError;

/// How long a client waits for the store before a new session is refused. An entry that is written later is removed
/// by the next comparison.
const CLAIM_WAIT: Duration = Duration::from_millis(1_500);

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct FleetNode {
    config: FleetConfig,
    tls: NodeTls,
    holder: LeaseHolder,
    file: StandingFile,
    /// What the node may do until it has reached the store.
    waiting: Mutex<LeaseKeeper>,
    joined: watch::Sender<Option<Arc<JoinedFleet>>>,
    routes: RouteCache,
    peers: PeerLiveness,
    /// The sessions with entries of this node, and the revision of the entry if this start of the node wrote it.
    entries: Mutex<HashMap<SessionId, Option<Revision>>>,
    copies: SessionCopies,
    removed: RemovedNodes,
    condition: NodeCondition,
}

/// What decides whether this node takes new sessions, and what its user is told.
#[derive(Debug)]
struct NodeCondition {
    cordon: CordonFile,
    memory: MemoryGauge,
    /// What other nodes told when a session was placed.
    known: Mutex<KnownNodes>,
    /// Why the store could not be used at the last try.
    store_error: Mutex<Option<String>>,
}

/// The claim of a new session's name. It holds until this node is fenced.
#[derive(Debug)]
pub(crate) struct FleetClaim {
    joined: Arc<JoinedFleet>,
    name: ClaimedName,
}

/// The parts that need the store.
#[derive(Debug)]
struct JoinedFleet {
    store: FleetStore,
    membership: Arc<Membership>,
    directory: FleetDirectory,
}

impl FleetNode {
    /// Reads what an earlier start has left. `None` if the configuration names no fleet. Blocks.
    pub fn open(config: &Config, tls: Option<NodeTls>) -> Result<Option<Self>, StandingFileError> {
        let (Some(fleet), Some(tls)) = (config.fleet.clone(), tls) else {
            // A node without a fleet starts with any file.
            if let Err(error) = StandingFile::end_generation(&config.state_dir) {
                tracing::warn!(%error, "the lease of an earlier fleet is not forgotten");
            }
            return Ok(None);
        };
        let (file, resumed) = StandingFile::load(&config.state_dir)?;
        let condition = NodeCondition {
            cordon: CordonFile::load(&config.state_dir),
            memory: MemoryGauge::default(),
            known: Mutex::default(),
            store_error: Mutex::default(),
        };
        let config = fleet;
        let holder = LeaseHolder {
            node: config.node.clone(),
            installation: file.installation(),
            boot: BootNonce(standing_file::random()),
            address: config.address.clone(),
        };
        let waiting = LeaseKeeper::new(config.timing, holder.clone(), resumed);
        let joined = watch::Sender::new(None);
        let connections = PeerConnections::new(tls.clone());
        Ok(Some(Self {
            peers: PeerLiveness::new(connections, joined.subscribe()),
            tls,
            config,
            holder,
            file,
            waiting: Mutex::new(waiting),
            joined,
            routes: RouteCache::default(),
            entries: Mutex::default(),
            copies: SessionCopies::default(),
            removed: RemovedNodes::default(),
            condition,
        }))
    }

    pub fn name(&self) -> &NodeName {
        &self.config.node
    }

    /// What this node may do at this moment.
    pub fn standing(&self) -> LeaseStanding {
        match self.joined() {
            Some(joined) => joined.membership.standing(),
            None => self.waiting().standing(FleetClock.now()),
        }
    }

    /// Whether the node may accept a turn now.
    pub fn may_accept(&self) -> Result<(), Failure> {
        match self.standing() {
            LeaseStanding::Serving | LeaseStanding::Closed => Ok(()),
            LeaseStanding::Joining => Err(self.not_joined()),
            LeaseStanding::Fenced => Err(self.fenced()),
        }
    }

    /// Writes into the directory that this node has a session of that name.
    pub async fn claim(&self, session: &SessionId) -> Result<FleetClaim, Failure> {
        let joined = self.joined().ok_or_else(|| self.not_joined())?;
        let claimed = tokio::time::timeout(CLAIM_WAIT, joined.directory.claim(session)).await;
        let error = match claimed {
            Ok(Ok(name)) => {
                self.entries().insert(session.clone(), Some(name.incarnation));
                return Ok(FleetClaim { joined, name });
            }
            Ok(Err(error)) => error,
            Err(_) => NameClaimError::Unanswered,
        };
        let code = match &error {
            NameClaimError::Taken { .. } => ErrorCode::SessionExists,
            NameClaimError::NotServing | NameClaimError::Unanswered | NameClaimError::Store(_) => {
                ErrorCode::FleetUnavailable
            }
        };
        Err(Failure::new(code, error.to_string()))
    }

    /// An error if this node was fenced after it claimed a name: others may have given the name away since.
    pub fn confirm(&self, claim: &FleetClaim) -> Result<(), Failure> {
        let is_same = self.joined().is_some_and(|now| Arc::ptr_eq(&now, &claim.joined));
        match claim.joined.membership.standing() {
            LeaseStanding::Fenced => Err(self.fenced()),
            _ if is_same => Ok(()),
            _ => Err(self.fenced()),
        }
    }

    /// Writes into the directory that the session of a claimed name was not made. Waits a moment if another session had the
    /// name before: its client finds it again then.
    pub async fn give_back(&self, session: &SessionId, claim: FleetClaim) {
        let FleetClaim { joined, name } = claim;
        self.entries().remove(session);
        let replaces = name.former.is_some();
        let session = session.clone();
        let giving = tokio::spawn(async move {
            if let Err(error) = joined.directory.give_back(&session, name).await {
                tracing::debug!(%session, %error, "the name is not free in the directory yet");
            }
        });
        if replaces {
            // The task goes on if the store is slow.
            let _ = tokio::time::timeout(CLAIM_WAIT, giving).await;
        }
    }

    /// Writes into the directory that a session of this node has ended. In the background; if it fails, the next
    /// comparison does it.
    pub fn note_end(&self, session: &SessionId) {
        let Some(entry) = self.entries().remove(session) else { return };
        let Some(joined) = self.joined() else { return };
        let session = session.clone();
        tokio::spawn(async move {
            let ended = match entry {
                Some(incarnation) => joined.directory.end(&session, incarnation).await,
                None => joined.directory.end_own(&session).await,
            };
            if let Err(error) = ended {
                tracing::debug!(%session, %error, "the end of the session is not in the directory yet");
            }
        });
    }

    /// Sessions of an earlier start of this node: their entries are there already.
    fn resume_entries(&self, sessions: Vec<SessionId>) {
        self.entries().extend(sessions.into_iter().map(|session| (session, None)));
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<SessionId, Option<Revision>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fenced(&self) -> Failure {
        let message = format!(
            "node {} had no contact with its fleet for too long: it accepts no turns, and ends its sessions",
            self.name()
        );
        Failure::new(ErrorCode::Fenced, message)
    }

    fn not_joined(&self) -> Failure {
        let message = format!("node {} has not reached its fleet yet", self.name());
        Failure::new(ErrorCode::FleetUnavailable, message)
    }

    /// Sets or lifts the cordon of this node. Blocks.
    pub fn set_cordon(&self, is_on: bool) -> Result<(), Failure> {
        let set = self.condition.cordon.set(is_on);
        set.map_err(|error| Failure::while_making("the cordon cannot be written", &error))
    }

    fn note_store_error(&self, error: Option<String>) {
        *self.condition.store_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub fn removed(&self) -> &RemovedNodes {
        &self.removed
    }

    pub fn is_cordoned(&self) -> bool {
        self.condition.cordon.is_on()
    }

    fn joined(&self) -> Option<Arc<JoinedFleet>> {
        self.joined.borrow().clone()
    }

    fn set_joined(&self, joined: Option<Arc<JoinedFleet>>) {
        self.joined.send_replace(joined);
    }

    fn waiting(&self) -> MutexGuard<'_, LeaseKeeper> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

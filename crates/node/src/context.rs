//! The shared state of a running node, grouped by purpose.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use windlass_client::timers::TimerPool;
use windlass_journal::{EventLog, IndexLocation, Journal};
use windlass_procs::cgroup::CgroupSupport;
use windlass_protocol::api::{NodeStatus, StopSessions};
use windlass_protocol::storage::{IndexStorage, StateStorage};
use windlass_protocol::{Epoch, SessionId};

use crate::agents::Agents;
use crate::bounds::Bounds;
use crate::cgroups::SessionCgroups;
use crate::config::Config;
use crate::directory::SessionDirectory;
use crate::disk::{DiskState, SessionClaims};
use crate::doors::AgentDoor;
use crate::keepers::Keepers;
use crate::log;
use crate::metrics::Metrics;
use crate::packages::PackageEnvironments;
use crate::pieces::RecentPieces;
use crate::placeholders::Placeholders;
use crate::provision::{Provision, ProvisionParts};
use crate::secrets::Secrets;
use crate::session::SessionHandle;
use crate::trust::Trust;
use crate::workers::Workers;
use windlass_files::Files;
use windlass_tools::Hub;
use windlass_tools::within::OpenWithin;

/// The node's shared state.
pub(crate) struct Context {
    pub config: Arc<Config>,
    pub journal: Journal,
    pub identity: NodeIdentity,
    pub metrics: Metrics,
    pub serving: Serving,
    pub host: HostSide,
    /// The attached tool hosts.
    pub tools: Hub,
    /// The nesting of open tool calls.
    pub within: OpenWithin,
    /// Limits and locks of file operations.
    pub files: Files,
    /// State that housekeeping of the disk keeps between rounds.
    pub disk: DiskState,
    pub sessions: SessionDirectory,
    /// Set once, when the node is to stop.
    pub stop: watch::Sender<Option<StopSessions>>,
}

/// Which node this is.
#[derive(Debug)]
pub(crate) struct NodeIdentity {
    pub epoch: Epoch,
    pub started_at_ms: u64,
    /// The address that the TCP door listens at.
    pub tcp: Option<SocketAddr>,
}

/// What clients share.
#[derive(Debug)]
pub(crate) struct Serving {
    /// Where the HTTP door reads sessions.
    pub log: Arc<dyn EventLog>,
    /// What all sessions and clients together may hold.
    pub bounds: Bounds,
    /// A cache of event stream pieces for followers.
    pub pieces: RecentPieces,
    /// For replies that wait.
    pub patience: TimerPool,
    /// The MCP door of sessions' agents.
    pub agents: AgentDoor,
}

/// The processes, cgroups and directories that the node manages for its sessions.
#[derive(Debug)]
pub(crate) struct HostSide {
    pub workers: Arc<Workers>,
    pub keepers: Arc<Keepers>,
    pub cgroups: Arc<SessionCgroups>,
    /// Placeholders at protected names that do not exist.
    pub placeholders: Arc<Placeholders>,
    pub secrets: Arc<Secrets>,
    /// The conversations that agents hold.
    pub agents: Agents,
    pub packages: Arc<PackageEnvironments>,
    /// Provides workers for sessions.
    pub provision: Arc<Provision>,
}

/// Parts of the node that are opened before it serves.
#[derive(Debug)]
pub(crate) struct NodeParts {
    pub workers: Workers,
    pub trust: Arc<Trust>,
    pub secrets: Secrets,
    pub agent_door: AgentDoor,
}

impl HostSide {
    fn new(config: &Arc<Config>, epoch: Epoch, parts: NodeParts) -> Self {
        let NodeParts { workers, trust, secrets, .. } = parts;
        let secrets = Arc::new(secrets);
        let workers = Arc::new(workers);
        let cgroups = Arc::new(SessionCgroups::new(CgroupSupport::detect(), &config.runtime_dir));
        let keepers = Arc::new(Keepers::new(config.clone()));
        let (records, stock) = (config.placeholders_dir(), config.placeholders_stock());
        let placeholders = Arc::new(Placeholders::new(records, stock));
        let packages = Arc::new(PackageEnvironments::load(config.clone(), trust.clone()));
        let provision = Arc::new(Provision::new(ProvisionParts {
            config: config.clone(),
            epoch,
            trust,
            workers: workers.clone(),
            placeholders: placeholders.clone(),
            keepers: keepers.clone(),
            cgroups: cgroups.clone(),
            secrets: secrets.clone(),
        }));
        let agents = Agents::default();
        Self { workers, keepers, cgroups, placeholders, secrets, agents, packages, provision }
    }
}

impl Context {
    pub fn new(
        config: Config,
        tcp: Option<SocketAddr>,
        journal: Journal,
        epoch: Epoch,
        parts: NodeParts,
    ) -> Self {
        let config = Arc::new(config);
        let agents = parts.agent_door.clone();
        let host = HostSide::new(&config, epoch, parts);
        let started_at_ms = crate::clock::now_ms();
        let serving = Serving {
            log: Arc::new(journal.clone()),
            bounds: Bounds::default(),
            pieces: RecentPieces::default(),
            patience: TimerPool::default(),
            agents,
        };
        Self {
            config,
            journal,
            identity: NodeIdentity { epoch, started_at_ms, tcp },
            metrics: Metrics::new(),
            serving,
            host,
            tools: Hub::default(),
            within: OpenWithin::default(),
            files: Files::default(),
            disk: DiskState::default(),
            sessions: SessionDirectory::default(),
            stop: watch::Sender::new(None),
        }
    }

    pub fn admit(&self, handle: SessionHandle) {
        self.metrics.sessions(self.sessions.admit(handle));
    }

    pub fn forget(&self, id: &SessionId) {
        self.host.keepers.processes.forget(id);
        self.tools.forget(id);
        self.metrics.sessions(self.sessions.remove(id));
    }

    /// Forgets a session that was released to the next node.
    pub fn leave(&self, id: &SessionId) {
        self.sessions.note_released();
        self.forget(id);
    }

    /// Whether the node has begun to release its sessions to the next node. From then on it cannot
    /// distinguish a released session from an ended one, so it reports neither.
    pub fn let_go(&self) -> bool {
        *self.stop.borrow() == Some(StopSessions::Keep)
    }

    pub fn status(&self) -> NodeStatus {
        let NodeIdentity { epoch, started_at_ms, tcp } = &self.identity;
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api: windlass_protocol::api::API.to_string(),
            pid: std::process::id(),
            epoch: epoch.0,
            started_at_ms: *started_at_ms,
            sessions: self.sessions.count(),
            runtime_dir: self.config.runtime_dir.display().to_string(),
            state_dir: self.config.state_dir.display().to_string(),
            socket: Some(self.config.socket().display().to_string()),
            listen: tcp.map(|address| address.to_string()),
            storage: Some(self.storage()),
        }
    }

    fn storage(&self) -> StateStorage {
        let space = rustix::fs::statvfs(&self.config.state_dir).ok();
        StateStorage {
            free_bytes: space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
            index: match self.journal.index_location() {
                IndexLocation::File => IndexStorage::File,
                IndexLocation::Memory => IndexStorage::Memory,
            },
            log_lines_dropped: log::dropped_lines(),
        }
    }
}

impl SessionClaims for Context {
    fn has_all(&self) -> bool {
        !self.let_go() && !self.sessions.has_released()
    }

    fn rooms(&self) -> Vec<std::path::PathBuf> {
        self.sessions.rooms()
    }

    fn has_family(&self, first: &SessionId) -> bool {
        self.sessions.handles().iter().any(|handle| handle.family == *first)
    }

    fn knows(&self, id: &SessionId) -> bool {
        self.sessions.knows(id)
    }

    fn claim(&self, id: &SessionId) -> bool {
        self.sessions.claim(id)
    }

    fn release(&self, id: &SessionId) {
        self.sessions.unclaim(id);
    }

    fn are_all_new(&self) -> bool {
        let started_at_ms = self.identity.started_at_ms;
        let is_new = |handle: &SessionHandle| handle.info().created_at_ms >= started_at_ms;
        self.sessions.handles().iter().all(is_new)
    }
}

//! The shared state of a running node, grouped by purpose.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use windlass_audit::AuditLog;
use windlass_client::timers::TimerPool;
use windlass_journal::{EventLog, IndexLocation, Journal};
use windlass_procs::cgroup::CgroupSupport;
use windlass_protocol::api::{NodeStatus, StopSessions};
use windlass_protocol::event::Usage;
use windlass_protocol::policy::Limits;
use windlass_protocol::storage::{IndexStorage, StateStorage};
use windlass_protocol::{Epoch, Outcome, SessionId};

use crate::agents::Agents;
use crate::audit::NodeAudit;
use crate::bounds::NodeBounds;
use crate::cgroups::SessionCgroups;
use crate::config::Config;
use crate::console::ConsoleAccess;
use crate::directory::SessionDirectory;
use crate::disk::{DiskState, SessionClaims};
use crate::doors::AgentDoor;
use crate::failure::Failure;
use crate::fleet::{FleetClaim, FleetNode};
use crate::http::DoorTokens;
use crate::keepers::Keepers;
use crate::log;
use crate::metrics::Metrics;
use crate::packages::PackageEnvironments;
use crate::pieces::RecentPieces;
use crate::placeholders::Placeholders;
use crate::provision::{Provision, ProvisionParts};
use crate::quotas::TenantLedger;
use crate::scrape_turns::ScrapeTurns;
use crate::secrets::Secrets;
use crate::session::{Request, SessionHandle};
use crate::session_figures::SessionFigures;
use crate::tenant_usage::TenantMeter;
use crate::trust::Trust;
use crate::user_ids::UserIds;
use crate::workers::Workers;
use windlass_files::Files;
use windlass_telemetry::Telemetry;
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
    /// Its part in a fleet, if it has one.
    pub fleet: Option<Arc<FleetNode>>,
}

/// What clients share.
#[derive(Debug)]
pub(crate) struct Serving {
    /// Where the HTTP door reads sessions.
    pub log: Arc<dyn EventLog>,
    /// What all sessions and clients together may hold.
    pub bounds: NodeBounds,
    /// A cache of event stream pieces for followers.
    pub pieces: RecentPieces,
    /// For replies that wait.
    pub patience: TimerPool,
    /// The MCP door of sessions' agents.
    pub agents: AgentDoor,
    /// What the sessions of tenants hold.
    pub tenants: TenantLedger,
    /// What the turns of tenants have used.
    pub usage: TenantMeter,
    /// What the processes of live sessions use, for clients that ask.
    pub figures: SessionFigures,
    /// The order of scrapes of the metrics.
    pub scrapes: ScrapeTurns,
    /// The logins of the web console.
    pub console: Arc<ConsoleAccess>,
    /// Who did what.
    pub audit: NodeAudit,
    /// Makes spans of what sessions do, if the node is configured to.
    pub telemetry: Option<Arc<Telemetry>>,
}

/// The processes, cgroups and directories that the node manages for its sessions.
#[derive(Debug)]
pub(crate) struct HostSide {
    pub workers: Arc<Workers>,
    pub keepers: Arc<Keepers>,
    pub cgroups: Arc<SessionCgroups>,
    /// Placeholders at protected names that do not exist.
    pub placeholders: Arc<Placeholders>,
    /// The user ids of sessions.
    pub user_ids: Arc<UserIds>,
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
    pub fleet: Option<Arc<FleetNode>>,
    pub audit: AuditLog,
    pub telemetry: Option<Arc<Telemetry>>,
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
        let user_ids = Arc::new(UserIds::new(config.clone()));
        let packages = Arc::new(PackageEnvironments::load(config.clone(), trust.clone()));
        let provision = Arc::new(Provision::new(ProvisionParts {
            config: config.clone(),
            epoch,
            trust,
            workers: workers.clone(),
            placeholders: placeholders.clone(),
            user_ids: user_ids.clone(),
            keepers: keepers.clone(),
            cgroups: cgroups.clone(),
            secrets: secrets.clone(),
        }));
        let agents = Agents::default();
        Self {
            workers,
            keepers,
            cgroups,
            placeholders,
            user_ids,
            secrets,
            agents,
            packages,
            provision,
        }
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
        let (fleet, telemetry) = (parts.fleet.clone(), parts.telemetry.clone());
        let audit = NodeAudit::new(parts.audit.clone());
        let host = HostSide::new(&config, epoch, parts);
        let started_at_ms = crate::clock::now_ms();
        let tokens = DoorTokens::new(config.token_file(), config.named_tokens_file());
        let console = ConsoleAccess::open(config.console_file(), tokens);
        let serving = Serving {
            log: Arc::new(journal.clone()),
            bounds: NodeBounds::default(),
            pieces: RecentPieces::default(),
            patience: TimerPool::default(),
            agents,
            tenants: TenantLedger::default(),
            usage: TenantMeter::default(),
            figures: SessionFigures::default(),
            scrapes: ScrapeTurns::default(),
            console: Arc::new(console),
            audit,
            telemetry,
        };
        Self {
            config,
            journal,
            identity: NodeIdentity { epoch, started_at_ms, tcp, fleet },
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
        if let Some(fleet) = self.fleet() {
            fleet.copy_events(&handle, &self.journal);
        }
        if handle.id.tenant().is_some() {
            let limits = handle.info().policy.map(|policy| policy.limits);
            self.serving.tenants.note(&handle.id, limits.unwrap_or_default());
        }
        self.metrics.sessions(self.sessions.admit(handle));
    }

    /// Forgets a session that was not made.
    pub async fn forget_unmade(&self, id: &SessionId, claim: Option<FleetClaim>) {
        if let (Some(fleet), Some(claim)) = (self.fleet(), claim) {
            fleet.give_back(id, claim).await;
        }
        self.drop_session(id);
    }

    /// Forgets a session that has ended.
    pub fn forget(&self, id: &SessionId) {
        self.drop_session(id);
        if let Some(fleet) = self.fleet() {
            fleet.note_end(id);
        }
    }

    fn drop_session(&self, id: &SessionId) {
        self.host.keepers.processes.forget(id);
        self.tools.forget(id);
        self.serving.tenants.release(id);
        self.metrics.sessions(self.sessions.remove(id));
    }

    pub fn fleet(&self) -> Option<&Arc<FleetNode>> {
        self.identity.fleet.as_ref()
    }

    /// Claims the name of a session in the fleet. A node on its own has all names.
    pub async fn claim_name(&self, id: &SessionId) -> Result<Option<FleetClaim>, Failure> {
        match self.fleet() {
            Some(fleet) => fleet.claim(id).await.map(Some),
            None => Ok(None),
        }
    }

    /// An error if this node was fenced while it made a session.
    pub fn confirm_claim(&self, claim: Option<&FleetClaim>) -> Result<(), Failure> {
        match (self.fleet(), claim) {
            (Some(fleet), Some(claim)) => fleet.confirm(claim),
            _ => Ok(()),
        }
    }

    /// Ends a session that was made meanwhile, if this node was fenced: the fence has ended only the sessions that were
    /// there.
    pub async fn end_if_fenced(
        &self,
        claim: Option<&FleetClaim>,
        made: &SessionHandle,
    ) -> Result<(), Failure> {
        let confirmed = self.confirm_claim(claim);
        if confirmed.is_err() {
            // An error means that the session has ended already.
            let _ = made.ask(|reply| Request::Fence { reply }).await;
        }
        confirmed
    }

    /// Claims the limits of a new session of a tenant within the tenant's quota. `named` is what the client has named.
    pub fn claim_limits(
        &self,
        id: &SessionId,
        named: &Limits,
        limits: Limits,
    ) -> Result<Limits, Failure> {
        self.serving.tenants.claim(&self.config.tenants, id, named, limits)
    }

    /// Counts an ended turn on a worker of this kind.
    pub fn count_turn(&self, session: &SessionId, kind: &str, outcome: Outcome, usage: &Usage) {
        self.metrics.turn_ended(kind, outcome, usage);
        if let Some(tenant) = self.serving.usage.count(session, usage) {
            self.metrics.tenant_turn(tenant, usage);
        }
    }

    /// Whether this node may accept turns now.
    pub fn may_accept(&self) -> Result<(), Failure> {
        self.fleet().map_or(Ok(()), |fleet| fleet.may_accept())
    }

    /// Forgets a session that was released to the next node.
    pub fn leave(&self, id: &SessionId) {
        self.sessions.note_released();
        self.drop_session(id);
    }

    /// Whether the node has begun to release its sessions to the next node. From then on it cannot
    /// distinguish a released session from an ended one, so it reports neither.
    pub fn let_go(&self) -> bool {
        *self.stop.borrow() == Some(StopSessions::Keep)
    }

    pub fn status(&self) -> NodeStatus {
        let NodeIdentity { epoch, started_at_ms, tcp, fleet: _ } = &self.identity;
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
            listen_tls: self.config.listen.as_ref().is_some_and(|listen| listen.tls.is_some()),
            storage: Some(self.storage()),
            tenant: None,
        }
    }

    /// Free space of the file system of the state directory.
    pub fn free_disk_bytes(&self) -> Option<u64> {
        let space = rustix::fs::statvfs(&self.config.state_dir).ok();
        space.map(|space| space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn storage(&self) -> StateStorage {
        StateStorage {
            free_bytes: self.free_disk_bytes(),
            index: match self.journal.index_location() {
                IndexLocation::File => IndexStorage::File,
                IndexLocation::Memory => IndexStorage::Memory,
            },
            log_lines_dropped: log::dropped_lines(),
            audit_records_dropped: self.serving.audit.log.standing().dropped,
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

    fn environments(&self) -> HashSet<String> {
        let handles = self.sessions.handles();
        handles.iter().filter_map(|handle| handle.info().environment).collect()
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

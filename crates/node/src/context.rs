//! What every part of a running node shares: its settings, its journal, its sessions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use windlass_client::patience::Patience;
use windlass_journal::{IndexHome, Journal};
use windlass_protocol::api::{NodeStatus, StopSessions};
use windlass_protocol::storage::{IndexStorage, StateStorage};
use windlass_protocol::{Epoch, SessionId};
use windlass_sandbox::cgroup::CgroupSupport;

use crate::bounds::Bounds;
use crate::cgroups::SessionCgroups;
use crate::config::Config;
use crate::disk::{DiskState, SessionClaims};
use crate::files::Files;
use crate::keepers::Keepers;
use crate::log;
use crate::metrics::Metrics;
use crate::pieces::RecentPieces;
use crate::placeholders::Placeholders;
use crate::provision::{Parts, Provision};
use crate::session::Handle;
use crate::tools::Hub;
use crate::tools::within::OpenWithin;
use crate::trust::Trust;
use crate::workers::Workers;

/// The node's shared state.
pub(crate) struct Context {
    pub config: Arc<Config>,
    pub journal: Journal,
    pub epoch: Epoch,
    pub started_at_ms: u64,
    /// Where the TCP door really is.
    pub tcp: Option<SocketAddr>,
    pub metrics: Metrics,
    /// What all sessions and clients together may hold.
    pub bounds: Bounds,
    /// What followers of sessions were sent last.
    pub pieces: RecentPieces,
    pub workers: Arc<Workers>,
    pub keepers: Arc<Keepers>,
    pub cgroups: Arc<SessionCgroups>,
    /// Gets workers for sessions.
    pub provision: Arc<Provision>,
    /// Who offers which tools.
    pub tools: Hub,
    /// Which tool calls are open, and made within which others.
    pub within: OpenWithin,
    /// Who reads, writes and watches files.
    pub files: Files,
    /// What is known of the disk between looks at it.
    pub disk: DiskState,
    /// What stands at protected names that are missing.
    pub placeholders: Arc<Placeholders>,
    /// For replies that wait.
    pub patience: Patience,
    sessions: Mutex<HashMap<SessionId, Slot>>,
    /// Told when a session that was being made is there, or is not to be.
    made: Notify,
    /// Told when the last session goes, or anything is asked.
    pub idle: Notify,
    last_use_ms: AtomicU64,
    /// A session was left to its keeper, for another node.
    released: AtomicBool,
    born: Instant,
    /// Set once, when the node is to stop.
    pub stop: watch::Sender<Option<StopSessions>>,
}

/// A session's place in the node.
enum Slot {
    /// Being made: the id is taken and nobody else learns it yet.
    Reserved,
    Live(Handle),
    /// Over, and what it left on the disk is being removed: nobody makes one of that id meanwhile.
    Clearing,
}

impl Context {
    pub fn new(
        config: Config,
        tcp: Option<SocketAddr>,
        journal: Journal,
        epoch: Epoch,
        workers: Workers,
        trust: Arc<Trust>,
    ) -> Self {
        let (config, workers) = (Arc::new(config), Arc::new(workers));
        let cgroups = Arc::new(SessionCgroups::new(CgroupSupport::detect(), &config.runtime_dir));
        let keepers = Arc::new(Keepers::new(config.clone()));
        let (records, stock) = (config.placeholders_dir(), config.placeholders_stock());
        let placeholders = Arc::new(Placeholders::new(records, stock));
        let provision = Arc::new(Provision::new(Parts {
            config: config.clone(),
            epoch,
            trust,
            workers: workers.clone(),
            placeholders: placeholders.clone(),
            keepers: keepers.clone(),
            cgroups: cgroups.clone(),
        }));
        Self {
            config,
            journal,
            epoch,
            started_at_ms: crate::clock::now_ms(),
            tcp,
            metrics: Metrics::new(),
            bounds: Bounds::default(),
            pieces: RecentPieces::default(),
            workers,
            cgroups,
            keepers,
            provision,
            tools: Hub::default(),
            within: OpenWithin::default(),
            files: Files::default(),
            disk: DiskState::default(),
            placeholders,
            patience: Patience::default(),
            sessions: Mutex::default(),
            made: Notify::new(),
            idle: Notify::new(),
            last_use_ms: AtomicU64::new(0),
            released: AtomicBool::new(false),
            born: Instant::now(),
            stop: watch::Sender::new(None),
        }
    }

    /// Takes an id, if it is free. One that is being made is waited for: of a session that exists,
    /// whoever asks next learns where it is.
    pub async fn reserve(&self, id: &SessionId) -> bool {
        loop {
            let made = self.made.notified();
            match self.lock().entry(id.clone()) {
                Entry::Vacant(free) => {
                    free.insert(Slot::Reserved);
                    return true;
                }
                Entry::Occupied(taken) if matches!(taken.get(), Slot::Live(_)) => return false,
                Entry::Occupied(_) => {}
            }
            made.await;
        }
    }

    pub fn admit(&self, handle: Handle) {
        let mut sessions = self.lock();
        sessions.insert(handle.id.clone(), Slot::Live(handle));
        self.metrics.sessions(sessions.len());
        self.made.notify_waiters();
    }

    pub fn forget(&self, id: &SessionId) {
        self.keepers.starting.forget(id);
        self.tools.forget(id);
        let mut sessions = self.lock();
        sessions.remove(id);
        self.made.notify_waiters();
        self.metrics.sessions(sessions.len());
        if sessions.is_empty() {
            self.used();
            self.idle.notify_one();
        }
    }

    /// A session that lives on without this node is forgotten.
    pub fn leave(&self, id: &SessionId) {
        self.released.store(true, Ordering::Relaxed);
        self.forget(id);
    }

    /// Takes an id that nobody has; whoever asks for it waits. See [`SessionClaims::claim`].
    fn claim_id(&self, id: &SessionId) -> bool {
        match self.lock().entry(id.clone()) {
            Entry::Vacant(free) => {
                free.insert(Slot::Clearing);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    pub fn find(&self, id: &SessionId) -> Option<Handle> {
        match self.lock().get(id) {
            Some(Slot::Live(handle)) => Some(handle.clone()),
            Some(Slot::Reserved | Slot::Clearing) | None => None,
        }
    }

    /// Whether the session lives or is being made. The journal knows it before it lives: what is
    /// there and not known here has ended.
    pub fn knows(&self, id: &SessionId) -> bool {
        matches!(self.lock().get(id), Some(Slot::Reserved | Slot::Live(_)))
    }

    pub fn handles(&self) -> Vec<Handle> {
        self.lock()
            .values()
            .filter_map(|slot| match slot {
                Slot::Live(handle) => Some(handle.clone()),
                Slot::Reserved | Slot::Clearing => None,
            })
            .collect()
    }

    pub fn session_count(&self) -> usize {
        self.lock().values().filter(|slot| !matches!(slot, Slot::Clearing)).count()
    }

    /// Whether the node leaves its sessions to the next one. From then on it cannot tell a session
    /// that it let go of from one that has ended, and says neither.
    pub fn let_go(&self) -> bool {
        *self.stop.borrow() == Some(StopSessions::Keep)
    }

    /// Somebody used the node just now.
    pub fn used(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_use_ms.store(now, Ordering::Relaxed);
    }

    /// Milliseconds since somebody used the node.
    pub fn unused_ms(&self) -> u64 {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        now.saturating_sub(self.last_use_ms.load(Ordering::Relaxed))
    }

    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api: windlass_protocol::api::API.to_string(),
            pid: std::process::id(),
            epoch: self.epoch.0,
            started_at_ms: self.started_at_ms,
            sessions: self.session_count(),
            runtime_dir: self.config.runtime_dir.display().to_string(),
            state_dir: self.config.state_dir.display().to_string(),
            listen: self.tcp.map(|address| address.to_string()),
            storage: Some(self.storage()),
        }
    }

    fn storage(&self) -> StateStorage {
        let space = rustix::fs::statvfs(&self.config.state_dir).ok();
        StateStorage {
            free_bytes: space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
            index: match self.journal.index_home() {
                IndexHome::File => IndexStorage::File,
                IndexHome::Memory => IndexStorage::Memory,
            },
            log_lines_dropped: log::dropped_lines(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.sessions.lock().expect("no holder of this lock can panic")
    }
}

impl SessionClaims for Context {
    fn has_all(&self) -> bool {
        !self.let_go() && !self.released.load(Ordering::Relaxed)
    }

    fn rooms(&self) -> Vec<PathBuf> {
        self.handles().into_iter().filter_map(|handle| handle.room).collect()
    }

    fn has_family(&self, first: &SessionId) -> bool {
        self.handles().iter().any(|handle| handle.family == *first)
    }

    fn knows(&self, id: &SessionId) -> bool {
        Context::knows(self, id)
    }

    fn claim(&self, id: &SessionId) -> bool {
        self.claim_id(id)
    }

    fn release(&self, id: &SessionId) {
        self.lock().remove(id);
        self.made.notify_waiters();
        self.idle.notify_one();
    }

    fn are_all_new(&self) -> bool {
        let is_new = |handle: &Handle| handle.info().created_at_ms >= self.started_at_ms;
        self.handles().iter().all(is_new)
    }
}

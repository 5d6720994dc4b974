//! Gets workers for sessions, by one call: [`Provision::acquire`]. The call makes the session's
//! directories, plans its confinement, and gets a keeper and a worker by the fastest strategy that is
//! possible:
//!
//! - *pool*: a pooled worker becomes the session's;
//! - *zygote*: a zygote forks a worker for the session;
//! - *exec*: the keeper runs the worker's program. This is always possible.
//!
//! [`Provision::release`] removes everything again if the session is not made.

mod environment;
mod environments;
mod file_stamps;
mod launch_size;
mod lease;
mod planner;
mod pool;
mod pool_base;
mod pooled;
mod session_dir;
mod tending;
mod zygote;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::api::CreateSession;
use windlass_protocol::environments::EnvironmentList;
use windlass_protocol::fleet_view::ReadyWorkers;
use windlass_protocol::policy::{Network, Policy};
use windlass_protocol::{Epoch, SessionId};

use self::environments::Environments;
use self::planner::{Planner, SessionPlan};
use self::pool_base::PlannedSession;
use self::pooled::{ClaimedWorker, Makers};
use self::session_dir::SessionDir;
use self::zygote::Zygote;
use crate::cgroups::SessionCgroups;
use crate::config::Config;
use crate::failure::Failure;
use crate::keepers::Keepers;
use crate::placeholders::Placeholders;
use crate::secrets::Secrets;
use crate::trust::Trust;
use crate::user_ids::UserIds;
use crate::workers::{Recipe, Workers};

pub(crate) use self::lease::{KeeperEndpoint, Lease, SessionResources, WorkerParts, WorkerStart};
pub(crate) use self::tending::tend;

/// Gets workers for sessions. See the module documentation.
#[derive(Debug)]
pub(crate) struct Provision {
    config: Arc<Config>,
    epoch: Epoch,
    trust: Arc<Trust>,
    workers: Arc<Workers>,
    placeholders: Arc<Placeholders>,
    user_ids: Arc<UserIds>,
    makers: Makers,
    planner: Planner,
    environments: Environments,
}

/// The parts of the node that provision uses.
#[derive(Debug)]
pub(crate) struct ProvisionParts {
    pub config: Arc<Config>,
    pub epoch: Epoch,
    pub trust: Arc<Trust>,
    pub workers: Arc<Workers>,
    pub placeholders: Arc<Placeholders>,
    pub user_ids: Arc<UserIds>,
    pub keepers: Arc<Keepers>,
    pub cgroups: Arc<SessionCgroups>,
    pub secrets: Arc<Secrets>,
}

/// The session that a worker is for.
#[derive(Debug)]
pub(crate) struct SessionSpec<'a> {
    pub id: &'a SessionId,
    pub wanted: &'a CreateSession,
    pub policy: &'a Policy,
    /// Whether the node made the workspace, for this session or for its parent.
    pub in_new_workspace: bool,
    /// The virtual environment of its package environment.
    pub environment: Option<&'a Path>,
}

impl Provision {
    pub fn new(parts: ProvisionParts) -> Self {
        let ProvisionParts { config, epoch, trust, workers, placeholders, keepers, .. } = parts;
        let (cgroups, user_ids) = (parts.cgroups, parts.user_ids);
        let planner = Planner::new(config.clone(), cgroups.support().clone(), parts.secrets);
        let environments = Environments::new(&config, trust.clone());
        let makers = Makers { keepers, cgroups };
        Self {
            config,
            epoch,
            trust,
            workers,
            placeholders,
            user_ids,
            makers,
            planner,
            environments,
        }
    }

    /// Gets a worker for a session, with all its resources. Blocks: it writes to the disk and starts
    /// processes, so the thread that serves turns must not call it.
    pub fn acquire(&self, spec: &SessionSpec<'_>) -> Result<Lease, Failure> {
        let dir = SessionDir::make(&self.config, &self.trust, spec)?;
        let (session, cgroups) = (spec.id.clone(), Vec::new());
        let mut resources = SessionResources { session, dir, cgroups, socket: None };
        match self.start(spec, &mut resources) {
            Ok((keeper, worker)) => Ok(Lease { keeper, worker, resources }),
            Err(failure) => {
                self.release(&resources);
                Err(failure)
            }
        }
    }

    /// Resolves the workspace that a client named.
    pub fn client_workspace(&self, named: &str) -> Result<PathBuf, Failure> {
        session_dir::client_workspace(&self.config, named, &self.trust)
    }

    /// Removes the resources of a session that is not made, and ends its keeper. May block for a moment
    /// until the keeper's process is gone.
    pub fn release(&self, resources: &SessionResources) {
        if let Some(socket) = &resources.socket {
            self.makers.keepers.end_unanswered(&resources.session, socket);
        }
        self.makers.cgroups.remove(&resources.cgroups);
        resources.dir.remove(&self.config);
        self.placeholders.release(&resources.session);
        self.user_ids.release(&resources.session);
    }

    /// A connection to the zygote of this interpreter, for another worker of a session whose first worker was
    /// forked from this zygote.
    pub fn zygote_connection(&self, program: &Path) -> Option<OwnedFd> {
        self.environments.connect(program)
    }

    /// The state of all environments.
    pub fn environments(&self) -> EnvironmentList {
        self.environments.list()
    }

    /// The environments with pooled workers that are ready.
    pub fn ready_workers(&self) -> Vec<ReadyWorkers> {
        self.environments.ready_workers()
    }

    /// Waits until no zygote and no pooled worker is being started.
    pub async fn settled(&self) {
        self.environments.settled().await;
    }

    /// Ends all zygotes and pooled workers, because the node stops.
    pub async fn shut_down(self: Arc<Self>) {
        // The join fails only when the runtime stops.
        let _ = tokio::task::spawn_blocking(move || {
            for worker in self.environments.shut_down() {
                worker.end(&self.makers);
            }
        })
        .await;
    }

    fn start(
        &self,
        spec: &SessionSpec<'_>,
        resources: &mut SessionResources,
    ) -> Result<(KeeperEndpoint, WorkerParts), Failure> {
        let SessionSpec { id, wanted, policy, .. } = spec;
        let dir = &mut resources.dir;
        let mut recipe = self.workers.recipe(wanted, &dir.workspace)?;
        if let Some(home) = &dir.agent_home {
            recipe.env.insert("HOME".to_owned(), home.display().to_string());
        }
        let own_uid = self.user_ids.acquire(id)?;
        let planned =
            self.planner.plan((*id, own_uid), policy, dir, &mut recipe, &self.placeholders)?;
        self.remember_writable(id, &planned)?;
        let zygote = self.zygote_for(policy, &dir.workspace, &recipe);
        planner::name_caches(policy, planned.plan.isolation, &mut recipe.env);
        launch_size::check(&recipe.env, &planned.text)?;
        let keeper = self.start_keeper(spec, resources, &planned, zygote.as_deref())?;
        let egress =
            matches!(policy.network, Network::Hosts(_)).then(|| self.config.egress_socket());
        let zygote_of = zygote.map(|_| recipe.interpreter.clone());
        Ok((keeper, WorkerParts { recipe, plan: planned.text, egress, zygote_of }))
    }

    /// Records the directories that the session can write. This must happen before the session runs
    /// anything, and before a zygote is chosen.
    fn remember_writable(&self, id: &SessionId, planned: &SessionPlan) -> Result<(), Failure> {
        let is_new = self.trust.remember(&planned.writable).map_err(|error| {
            Failure::while_making(
                format_args!("cannot record the directories that session {id} can write"),
                &error,
            )
        })?;
        if is_new {
            self.environments.end_untrusted();
        }
        Ok(())
    }

    /// The zygote that the session's workers can be forked from, if there is one. There is none if the
    /// session can write the interpreter: a zygote runs nothing that a session can write.
    fn zygote_for(
        &self,
        policy: &Policy,
        workspace: &Path,
        recipe: &Recipe,
    ) -> Option<Arc<Zygote>> {
        let program = &recipe.interpreter;
        let roots = policy.writable.iter().map(PathBuf::from).chain([workspace.to_owned()]);
        let within = |root: PathBuf| program.starts_with(&root) && root != Path::new("/");
        if roots.into_iter().any(within) {
            return None;
        }
        self.environments.zygote_for(recipe)
    }

    /// Starts the keeper, by the fastest strategy that is possible.
    fn start_keeper(
        &self,
        spec: &SessionSpec<'_>,
        resources: &mut SessionResources,
        planned: &SessionPlan,
        zygote: Option<&Zygote>,
    ) -> Result<KeeperEndpoint, Failure> {
        if let Some(ClaimedWorker { socket, cgroups, line }) =
            zygote.and_then(|zygote| self.claim_pooled(spec, resources, planned, zygote))
        {
            resources.cgroups = cgroups;
            resources.socket = Some(socket.clone());
            return Ok(KeeperEndpoint { socket, start: WorkerStart::Pool(line) });
        }
        let id = spec.id;
        let failed = |what: &str, error: &(dyn std::error::Error + 'static)| {
            Failure::while_making(format_args!("cannot make the {what} of session {id}"), error)
        };
        let cgroups = self.makers.cgroups.make(id, &spec.policy.limits);
        resources.cgroups = cgroups.map_err(|error| failed("cgroups", &error))?;
        let socket = self.makers.keepers.start(id).map_err(|error| failed("keeper", &error))?;
        resources.socket = Some(socket.clone());
        let connection = zygote.and_then(|zygote| zygote.connect().ok());
        let start = connection.map_or(WorkerStart::Exec, WorkerStart::Zygote);
        Ok(KeeperEndpoint { socket, start })
    }

    fn claim_pooled(
        &self,
        spec: &SessionSpec<'_>,
        resources: &SessionResources,
        planned: &SessionPlan,
        zygote: &Zygote,
    ) -> Option<ClaimedWorker> {
        let dir = &resources.dir;
        let mut own = vec![&*dir.workspace, &*dir.family_dir];
        own.extend(dir.tmp.as_deref());
        let session = PlannedSession { plan: &planned.plan, around: &planned.around, own: &own };
        let worker = self.environments.claim(zygote.number(), &session)?;
        match worker.become_session(&self.makers, spec.id, &spec.policy.limits) {
            Ok(claimed) => Some(claimed),
            Err(error) => {
                tracing::warn!(session = %spec.id, %error, "a pooled worker could not become the session's; starting another way");
                None
            }
        }
    }
}

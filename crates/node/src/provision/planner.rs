//! Plans the confinement of a new session: from the client's policy to the plan that the keeper gets. What
//! the machine can enforce is found once; the files around a session are surveyed for each session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use windlass_confine::plan::{depth, holds_names};
use windlass_confine::survey::homes;
use windlass_confine::{
    Depth, FileSurvey, MachineSupport, Plan, SharedSurvey, SurveyCache, SurveyInput, Unreadable,
    names_at, plan, survey_with,
};
use windlass_procs::cgroup::CgroupSupport;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::{Network, Policy, PolicyRequest, WorkspaceAccess, expand_home};
use windlass_protocol::{ErrorCode, SessionId};

use super::pool_base::{PlannedSession, PoolBase};
use super::session_dir::{self, SessionDir};
use crate::config::Config;
use crate::failure::Failure;
use crate::placeholders::Placeholders;
use crate::secrets::Secrets;
use crate::workers::Recipe;
use windlass_egress::proxy_environment;

/// The private `/tmp` of a session with its own mount view.
const PRIVATE_TMP: &str = "/tmp";

/// The variable that tells the worker where to make the environment for packages that the session's code installs, and
/// the environment's name in the session's temporary directory.
const SCRATCH_VARIABLE: &str = "WINDLASS_SCRATCH";
const SCRATCH_ENVIRONMENT: &str = "packages";

/// Variables of a session without a network: package managers fail at once instead of trying for seconds. No zygote
/// reads them at its start, so they keep no session from the pool.
const WITHOUT_NETWORK: [(&str, &str); 5] = [
    ("PIP_RETRIES", "0"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("UV_OFFLINE", "1"),
    ("NPM_CONFIG_FETCH_RETRIES", "0"),
    ("CARGO_NET_RETRY", "0"),
];

/// Names the directory for temporary files.
const TMP_VARIABLE: &str = "TMPDIR";

/// The directory in which programs usually keep caches.
const USUAL_CACHES: &str = "~/.cache";

/// Where programs keep their caches in a session that cannot use the usual directory, below its temporary directory.
/// Without these variables matplotlib, fontconfig and pip print warnings in each session. A zygote that has loaded
/// matplotlib needs no directory any more.
const CACHES: [(&str, &str); 2] =
    [("XDG_CACHE_HOME", ".cache"), ("MPLCONFIGDIR", ".cache/matplotlib")];

/// Plans the confinement of sessions.
#[derive(Debug)]
pub(crate) struct Planner {
    config: Arc<Config>,
    cgroups: CgroupSupport,
    secrets: Arc<Secrets>,
    machine: OnceLock<MachineSupport>,
    /// The cached survey of the files around sessions.
    surroundings: SurveyCache,
    /// The home directories of the machine's users, and the directories on PATH.
    homes: Vec<PathBuf>,
    programs: Vec<PathBuf>,
}

/// A session's plan, and what it was made from.
#[derive(Debug)]
pub(super) struct SessionPlan {
    pub plan: Plan,
    /// The plan as JSON, for the keeper.
    pub text: String,
    pub around: Arc<SharedSurvey>,
    /// The directories that the session can write.
    pub writable: Vec<PathBuf>,
}

impl Planner {
    pub fn new(config: Arc<Config>, cgroups: CgroupSupport, secrets: Arc<Secrets>) -> Self {
        Self {
            config,
            cgroups,
            secrets,
            machine: OnceLock::new(),
            surroundings: SurveyCache::default(),
            homes: homes::homes(),
            programs: homes::programs(),
        }
    }

    /// What this machine can enforce. The first call finds it out by trying.
    pub fn machine(&self) -> &MachineSupport {
        self.machine.get_or_init(|| MachineSupport::with_cgroups(self.cgroups.clone()))
    }

    /// Plans a session's confinement, and adds its environment variables to the recipe. Makes the session's
    /// temporary directory and placeholders, if the plan needs them. `own_uid` is the user id that the session gets
    /// outside of its user namespace instead of the node's.
    pub(super) fn plan(
        &self,
        (id, own_uid): (&SessionId, Option<u32>),
        policy: &Policy,
        dir: &mut SessionDir,
        recipe: &mut Recipe,
        placeholders: &Placeholders,
    ) -> Result<SessionPlan, Failure> {
        let machine = self.machine();
        if depth(policy, machine) == Depth::Rules || dir.installs_packages {
            dir.make_tmp(&self.config, self.config.tmp_of(id))?;
        }
        let mut site = self.site(recipe, dir);
        site.node_files.extend(self.secrets.trusted_dir(policy).map(Path::to_owned));
        let is_own = dir.made_by_node && policy.writable.is_empty();
        if !is_own && holds_names(policy, machine) {
            site.names = Some(placeholders.acquire(id, || names_at(policy, &site)));
        }
        let (place, around) =
            survey_with(&self.surroundings, policy, &site, depth(policy, machine));
        // A path that does not exist yet is refused too: what may be named does not depend on what the node has made.
        let home = std::env::home_dir();
        let named = policy.writable.iter().filter_map(|path| expand_home(path, home.as_deref()));
        let named = named.map(|path| session_dir::real_beginning(&path));
        for path in named.chain(place.writable.iter().chain([&place.workspace]).cloned()) {
            session_dir::check_outside(&self.config, &path)?;
        }
        let plan = plan(policy, machine, &place)
            .and_then(|plan| match own_uid {
                Some(uid) => plan.with_own_user(uid),
                None => Ok(plan),
            })
            .map_err(|error| Failure::new(ErrorCode::NotEnforceable, error.to_string()))?;
        let text = serde_json::to_string(&plan).map_err(|error| {
            Failure::internal(&format!("cannot encode a plan as JSON: {error}"))
        })?;
        if plan.isolation != Isolation::None {
            check_interpreter(&place, recipe)?;
        }
        environment(policy, &plan, dir.tmp.as_deref(), recipe);
        if let Some(scratch) = dir.scratch() {
            let environment = scratch.join(SCRATCH_ENVIRONMENT).display().to_string();
            recipe.env.insert(SCRATCH_VARIABLE.to_owned(), environment);
        }
        // Placeholders come last: no variable of the same name brings a real value into the session.
        recipe.env.extend(self.secrets.environment(policy));
        Ok(SessionPlan { plan, text, around, writable: writable(policy, place) })
    }

    /// The base of sessions with the default policy, before there is such a session.
    pub(super) fn default_base(&self, recipe: &Recipe) -> Option<PoolBase> {
        let dir = SessionDir {
            workspace: self.config.workspaces_dir(),
            workspace_is_new: true,
            made_by_node: true,
            family_dir: self.config.families_dir(),
            tmp: None,
            installs_packages: false,
            agent_home: None,
            environment: None,
        };
        for own in [&dir.workspace, &dir.family_dir] {
            session_dir::make(&self.config, own, 0o700).ok()?;
        }
        let policy = PolicyRequest::default().resolve().ok()?;
        let machine = self.machine();
        let site = self.site(recipe, &dir);
        let (place, around) =
            survey_with(&self.surroundings, &policy, &site, depth(&policy, machine));
        let plan = plan(&policy, machine, &place).ok()?;
        let own = [&*place.workspace, place.family.as_deref()?];
        Some(PoolBase::of(&PlannedSession { plan: &plan, around: &around, own: &own }))
    }

    /// The input of the survey for a session.
    fn site(&self, recipe: &Recipe, dir: &SessionDir) -> SurveyInput {
        SurveyInput {
            workspace: dir.workspace.clone(),
            workspace_is_new: dir.workspace_is_new,
            node_files: recipe.program.iter().chain(&dir.environment).cloned().collect(),
            needed: recipe.needed.clone(),
            tmp: dir.tmp.clone(),
            agent_home: dir.agent_home.clone(),
            family: Some(dir.family_dir.clone()),
            hidden: vec![self.config.state_dir.clone(), self.config.runtime_dir.clone()],
            home: std::env::home_dir(),
            homes: self.homes.clone(),
            programs: self.programs.clone(),
            ..SurveyInput::default()
        }
    }
}

/// The directories that a session can write, as the survey found them.
fn writable(policy: &Policy, place: FileSurvey) -> Vec<PathBuf> {
    let workspace = (policy.workspace == WorkspaceAccess::Write).then_some(place.workspace);
    place.writable.into_iter().chain(workspace).collect()
}

/// Checks that the session can read its interpreter. Otherwise the worker would fail to start without a
/// reason.
fn check_interpreter(place: &FileSurvey, recipe: &Recipe) -> Result<(), Failure> {
    let Err(why) = place.check_readable(&recipe.real) else { return Ok(()) };
    let (interpreter, real) = (recipe.interpreter.display(), recipe.real.display());
    let why = match why {
        Unreadable::Hidden(hidden) => format!(
            "the policy hides {0}; show it (`--show {0}`), or use an interpreter elsewhere",
            hidden.display()
        ),
        Unreadable::Private(private) => {
            format!("the session has a private {}; use an interpreter elsewhere", private.display())
        }
        Unreadable::NotListed => "no readable path of the policy holds it; add one, or name the \
             interpreter in environments.json"
            .to_owned(),
    };
    let message =
        format!("cannot run the interpreter {interpreter}: its real path is {real}, and {why}");
    // A client of a tenant names no interpreter, and learns no path of the node's own one.
    Err(Failure::of_node(ErrorCode::WorkerFailed, message))
}

/// Names directories for caches in the session's environment. Called after a zygote was chosen by the environment.
pub(super) fn name_caches(
    policy: &Policy,
    isolation: Isolation,
    env: &mut BTreeMap<String, String>,
) {
    let hides_caches = policy.hidden.iter().any(|entry| entry == USUAL_CACHES);
    let Some(tmp) = env.get(TMP_VARIABLE).filter(|_| hides_caches).cloned() else { return };
    if isolation == Isolation::None {
        return;
    }
    for (name, below) in CACHES {
        env.entry(name.to_owned()).or_insert_with(|| format!("{tmp}/{below}"));
    }
}

/// Adds the environment variables of the policy: allowed ones of the node, `TMPDIR`, the proxy, and those of a session
/// without a network.
fn environment(policy: &Policy, plan: &Plan, tmp: Option<&Path>, recipe: &mut Recipe) {
    for name in &policy.environment {
        if let Ok(value) = std::env::var(name) {
            recipe.env.entry(name.clone()).or_insert(value);
        }
    }
    let tmp = match (plan.isolation, tmp) {
        (Isolation::Full, _) => Some(PRIVATE_TMP.to_owned()),
        (_, Some(tmp)) => Some(tmp.display().to_string()),
        (_, None) => None,
    };
    recipe.env.extend(tmp.map(|tmp| (TMP_VARIABLE.to_owned(), tmp)));
    if let Network::Hosts(rules) = &policy.network {
        for (name, value) in proxy_environment(&rules.0) {
            recipe.env.entry(name.to_owned()).or_insert(value);
        }
    }
    if policy.network == Network::None && plan.isolation != Isolation::None {
        for (name, value) in WITHOUT_NETWORK {
            recipe.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
}

//! How a new session is confined: from what its client asks for to the plan that its keeper gets.
//! The machine is asked once what it can do; each session only what lies around it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::api::CreateSession;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::{Limits, Network, Policy, PolicyRequest};
use windlass_protocol::{ErrorCode, SessionId};
use windlass_sandbox::plan::{depth, holds_names};
use windlass_sandbox::{
    Around, Depth, Machine, Place, Plan, PlanError, Site, Unreadable, names_at, plan, survey_with,
};

use super::fork::rooms;
use super::roots;
use super::start::internal;
use crate::context::Context;
use crate::egress::proxy_environment;
use crate::environments::Outline;
use crate::failure::Failure;
use crate::workers::Recipe;

/// The private `/tmp` of a session with a view of its own.
const PRIVATE_TMP: &str = "/tmp";

/// A plan, and what it was made from.
#[derive(Debug)]
pub(crate) struct Planned {
    policy: Policy,
    place: Place,
    pub plan: Plan,
    /// As keepers get it.
    pub text: String,
}

impl Planned {
    fn new(policy: &Policy, machine: &Machine, place: Place) -> Result<Self, Failure> {
        let plan = plan(policy, machine, &place).map_err(|error| refused(&error))?;
        let text = serde_json::to_string(&plan)
            .map_err(|error| internal(&format!("a plan has no JSON: {error}")))?;
        Ok(Self { policy: policy.clone(), place, plan, text })
    }
}

/// A session's confinement, ready for its keeper.
#[derive(Debug)]
pub(super) struct Confined {
    pub planned: Arc<Planned>,
    /// What it was made from, as far as it is the same for others.
    pub around: Arc<Around>,
    /// The node's socket for connections out of the sandbox, where the policy has any.
    pub egress: Option<PathBuf>,
    /// A directory made for the session, to be removed with it.
    pub tmp: Option<PathBuf>,
    /// Where the places of its twins are made.
    pub room: PathBuf,
}

/// Where a session is to be, and the plan that it most likely has there.
#[derive(Debug)]
pub(super) struct Spot {
    pub workspace: PathBuf,
    /// The workspace was made for this session.
    pub is_new: bool,
    pub room: PathBuf,
    pub expected: Option<Arc<Planned>>,
}

/// Plans the confinement, and gives the recipe the environment that belongs to it.
pub(super) fn confine(
    context: &Context,
    id: &SessionId,
    policy: &Policy,
    Spot { workspace, is_new, room, expected }: &Spot,
    recipe: &mut Recipe,
) -> Result<Confined, Failure> {
    let machine = context.machine();
    let mut site = Site {
        family: Some(room.clone()),
        workspace_is_new: *is_new,
        ..site(context, machine, id, policy, workspace, recipe)
    };
    let is_own = *is_new && policy.writable.is_empty();
    if !is_own && holds_names(policy, machine) {
        site.names = Some(context.placeholders.acquire(id, || names_at(policy, &site)));
    }
    if let Some(tmp) = &site.tmp {
        make_own(context, tmp).map_err(|error| {
            Failure::while_making("cannot create the session's temporary directory", &error)
        })?;
    }
    let (place, around) = survey_with(&context.surroundings, policy, &site, depth(policy, machine));
    let planned = match expected {
        // From the same there is the same to be made.
        Some(known) if known.place == place && known.policy == *policy => known.clone(),
        _ => Arc::new(Planned::new(policy, machine, place)?),
    };
    if planned.plan.isolation != Isolation::None {
        check_interpreter(&planned.place, recipe)?;
    }
    // Before anything of the session runs, and before a zygote is looked for.
    let remembered = context.trust.remember(roots::of_place(policy, &planned.place));
    let is_new = remembered.map_err(|error| {
        Failure::while_making(format_args!("cannot record what session {id} can write"), &error)
    })?;
    if is_new {
        context.environments.put_away_untrusted();
    }
    environment(policy, &planned.plan, site.tmp.as_deref(), recipe);
    let egress =
        matches!(policy.network, Network::Hosts(_)).then(|| context.config.egress_socket());
    Ok(Confined { planned, around, egress, tmp: site.tmp, room: room.clone() })
}

/// Makes one of the node's own directories, where it is missing.
fn make_own(context: &Context, path: &Path) -> std::io::Result<()> {
    let state = rooms::state(&context.config)?;
    state.make_directory(rooms::inside(&context.config, path)?, 0o700).map(drop)
}

/// Whether the session can read its interpreter. It would not start otherwise, without saying why.
fn check_interpreter(place: &Place, recipe: &Recipe) -> Result<(), Failure> {
    let Err(why) = place.check_readable(&recipe.real) else { return Ok(()) };
    let (interpreter, real) = (recipe.interpreter.display(), recipe.real.display());
    let why = match why {
        Unreadable::Hidden(hidden) => format!(
            "the policy hides {0}; show it (`--show {0}`), or use an interpreter elsewhere",
            hidden.display()
        ),
        Unreadable::Private(private) => format!(
            "the session has a private {} of its own; use an interpreter elsewhere",
            private.display()
        ),
        Unreadable::NotListed => "no readable path of the policy holds it; add one, or name the \
             interpreter in environments.json"
            .to_owned(),
    };
    let message = format!("cannot run the interpreter {interpreter}: it is {real}, and {why}");
    Err(Failure::new(ErrorCode::WorkerFailed, message))
}

/// The session's room for twins.
pub(super) fn room(context: &Context, id: &SessionId) -> Result<PathBuf, Failure> {
    rooms::make(&context.config, id).map_err(|error| {
        Failure::while_making("cannot create the session's room for twins", &error)
    })
}

/// A session that is not there.
#[derive(Debug)]
pub(crate) struct Usual {
    pub planned: Arc<Planned>,
    pub around: Arc<Around>,
    /// Directories that would be its own: if not known, those in which such directories are made.
    pub own: [PathBuf; 2],
    pub env: Vec<(String, String)>,
    pub limits: Limits,
}

impl Usual {
    pub fn outline<'a>(&'a self, own: &'a [&'a Path]) -> Outline<'a> {
        Outline { plan: &self.planned.plan, around: &self.around, own }
    }

    pub fn own(&self) -> [&Path; 2] {
        self.own.each_ref().map(PathBuf::as_path)
    }
}

/// A session of this interpreter whose client asks for nothing special.
pub(crate) fn usual(context: &Context, program: &Path) -> Option<Usual> {
    let own = [context.config.workspaces_dir(), context.config.rooms_dir()];
    for directory in &own {
        make_own(context, directory).ok()?;
    }
    usual_in(context, program, own)
}

/// The same, in these directories.
pub(crate) fn usual_in(context: &Context, program: &Path, own: [PathBuf; 2]) -> Option<Usual> {
    let policy = PolicyRequest::default().resolve().ok()?;
    let interpreter = Some(program.to_str()?.to_owned());
    let wanted = CreateSession { interpreter, ..CreateSession::default() };
    let [workspace, room] = own;
    let mut recipe = context.workers.recipe(&wanted, &workspace).ok()?;
    let machine = context.machine();
    let (program, needed) = (Some(recipe.program.clone()), recipe.needed.clone());
    let family = Some(room);
    let site = Site {
        workspace,
        workspace_is_new: true,
        program,
        needed,
        tmp: None,
        family,
        ..site_of_node(context)
    };
    let (place, around) =
        survey_with(&context.surroundings, &policy, &site, depth(&policy, machine));
    let own = [place.workspace.clone(), place.family.clone()?];
    let planned = Arc::new(Planned::new(&policy, machine, place).ok()?);
    environment(&policy, &planned.plan, None, &mut recipe);
    let env = recipe.env.into_iter().collect();
    Some(Usual { planned, around, own, env, limits: policy.limits })
}

/// What is the same for all sessions.
fn site_of_node(context: &Context) -> Site {
    let config = &context.config;
    Site {
        hidden: vec![config.state_dir.clone(), config.runtime_dir.clone()],
        home: std::env::home_dir(),
        homes: context.homes.clone(),
        programs: context.programs.clone(),
        ..Site::default()
    }
}

fn site(
    context: &Context,
    machine: &Machine,
    id: &SessionId,
    policy: &Policy,
    workspace: &Path,
    recipe: &Recipe,
) -> Site {
    let config = &context.config;
    Site {
        workspace: workspace.to_owned(),
        program: Some(recipe.program.clone()),
        needed: recipe.needed.clone(),
        tmp: (depth(policy, machine) == Depth::Rules).then(|| config.tmp_of(id)),
        ..site_of_node(context)
    }
}

/// What the session's programs are told of where they are.
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
    recipe.env.extend(tmp.map(|tmp| ("TMPDIR".to_owned(), tmp)));
    if let Network::Hosts(rules) = &policy.network {
        for (name, value) in proxy_environment(&rules.0) {
            recipe.env.entry(name.to_owned()).or_insert(value);
        }
    }
}

fn refused(error: &PlanError) -> Failure {
    Failure::new(ErrorCode::NotEnforceable, error.to_string())
}

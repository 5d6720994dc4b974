//! Decides where a new session works, how it is confined, and which worker it gets. A session whose
//! client asks for nothing special gets a pooled worker that is confined in advance, in the
//! directories made for that worker, if one fits. Every other session gets a directory of its own
//! or its client's, and a pooled worker whose view fits, or none yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::SessionId;
use windlass_protocol::api::CreateSession;
use windlass_protocol::policy::Policy;

use super::confine::{Confined, Spot, confine, room};
use super::launch_size;
use crate::context::Context;
use crate::environments::{Asking, Claimed, Offer, Outline, Zygote};
use crate::failure::Failure;
use crate::keepers;
use crate::workers::{self, Recipe};

/// What is known of a session before it is written down.
#[derive(Debug)]
pub(super) struct Sited {
    pub workspace: PathBuf,
    pub recipe: Recipe,
    pub confined: Confined,
    /// A zygote that has what the session's worker would load.
    pub zygote: Option<Arc<Zygote>>,
    /// The worker that waited, where one did.
    pub claimed: Option<Claimed>,
}

pub(super) fn site(
    context: &Context,
    id: &SessionId,
    wanted: &CreateSession,
    policy: &Policy,
) -> Result<Sited, Failure> {
    if let Some(sited) = at_place(context, id, wanted, policy) {
        return Ok(sited);
    }
    let workspace = workers::workspace(wanted, &context.config, id, &context.trust)?;
    let recipe = context.workers.recipe(wanted, &workspace)?;
    let room = room(context, id)?;
    let spot = Spot { workspace, is_new: wanted.workspace.is_none(), room, expected: None };
    let mut sited = confined(context, id, policy, recipe, spot)?;
    sited.claimed = claim(context, id, &sited, policy);
    Ok(sited)
}

/// Takes a pooled worker that is confined in advance. Skipped when the request sets workspace,
/// policy or environment.
fn at_place(
    context: &Context,
    id: &SessionId,
    wanted: &CreateSession,
    policy: &Policy,
) -> Option<Sited> {
    let special = wanted.workspace.is_some() || wanted.policy.is_some() || !wanted.env.is_empty();
    if special || !context.environments.have_workers_wait() {
        return None;
    }
    // Nothing lies in a workspace that is to be made.
    let recipe = context.workers.recipe(wanted, &context.config.workspaces_dir()).ok()?;
    let program = recipe.interpreter.clone();
    let offer = context.environments.offer(&program)?;
    let spot = Spot {
        workspace: offer.workspace.clone(),
        is_new: true,
        room: offer.room.clone(),
        expected: Some(offer.planned.clone()),
    };
    let sited = confined(context, id, policy, recipe, spot).ok()?;
    if !is_offered(context, &offer, &sited) {
        return None;
    }
    let claimed = context.environments.accept(&program, &offer)?;
    let claimed = named(context, id, claimed, policy)?;
    Some(Sited { claimed: Some(claimed), ..sited })
}

/// Whether a session is as the worker was told that it would be, and its files are as they were then.
fn is_offered(context: &Context, offer: &Offer, sited: &Sited) -> bool {
    let Some(zygote) = &sited.zygote else { return false };
    offer.planned.text == sited.confined.planned.text
        && offer.env.iter().map(|(name, value)| (name, value)).eq(&sited.recipe.env)
        && context.environments.suits(zygote.number(), &sited.outline(&sited.own()))
}

impl Sited {
    fn own(&self) -> [&Path; 2] {
        [&self.workspace, &self.confined.room]
    }

    fn outline<'a>(&'a self, own: &'a [&'a Path]) -> Outline<'a> {
        let Confined { planned, around, .. } = &self.confined;
        Outline { plan: &planned.plan, around, own }
    }
}

/// A session in its two directories.
fn confined(
    context: &Context,
    id: &SessionId,
    policy: &Policy,
    mut recipe: Recipe,
    spot: Spot,
) -> Result<Sited, Failure> {
    let confined = confine(context, id, policy, &spot, &mut recipe)?;
    launch_size::check(&recipe.env, &confined.planned.text)?;
    let Spot { workspace, .. } = spot;
    let zygote = zygote_for(context, policy, &workspace, &recipe);
    Ok(Sited { workspace, recipe, confined, zygote, claimed: None })
}

fn zygote_for(
    context: &Context,
    policy: &Policy,
    workspace: &Path,
    recipe: &Recipe,
) -> Option<Arc<Zygote>> {
    let roots = policy.writable.iter().map(PathBuf::from);
    let writable: Vec<PathBuf> = roots.chain([workspace.to_owned()]).collect();
    context.environments.zygote_for(&Asking { recipe, writable: &writable })
}

/// A worker that waits for any session like this.
fn claim(context: &Context, id: &SessionId, sited: &Sited, policy: &Policy) -> Option<Claimed> {
    let zygote = sited.zygote.as_ref()?.number();
    let claimed = context.environments.claim(zygote, &sited.outline(&sited.own()))?;
    named(context, id, claimed, policy)
}

/// A worker that waited, made this session's: its keeper is found under the session's name, its cgroups
/// have the session's limits, and its place, if it has one, is known as the session's.
fn named(
    context: &Context,
    id: &SessionId,
    mut claimed: Claimed,
    policy: &Policy,
) -> Option<Claimed> {
    let settle = |claimed: &Claimed| match &claimed.meant {
        // Its cgroups have the limits of such a session.
        Some(meant) => meant.place.link(&context.config, id),
        None => context.cgroups.limit(&claimed.cgroups, &policy.limits),
    };
    let named = claimed
        .rename(id, &keepers::socket_path(&context.config, id))
        .and_then(|()| settle(&claimed));
    match named {
        Ok(()) => Some(claimed),
        Err(error) => {
            tracing::warn!(session = %id, %error, "a worker that waited is not used");
            None
        }
    }
}

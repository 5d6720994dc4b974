//! Children: sessions that belong to another session, their parent. A child has its parent's policy, workspace and owner,
//! follows its rules for secrets, may call the tools that are offered to it, and ends with it. The code that an agent runs
//! runs in children of the agent's session.

use std::path::Path;

use futures_util::future::join_all;
use windlass_protocol::api::CreateSession;
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::policy::Policy;
use windlass_protocol::{ErrorCode, SessionId};

use super::{Request, SessionHandle};
use crate::context::Context;
use crate::directory::ReserveError;
use crate::failure::Failure;

/// How long the worker of a child has to finish when its parent has ended.
const CLOSE_GRACE_MS: u64 = 500;

/// What a child has from its parent, besides its workspace and owner.
#[derive(Debug, Clone)]
pub(super) struct Inheritance {
    pub parent: SessionId,
    /// The first session of the parent's family.
    pub family: SessionId,
    pub policy: Policy,
    /// The workspace is one that the node made for the parent.
    pub in_new_workspace: bool,
}

impl Inheritance {
    /// Completes the request for a child. `None` if the request names no parent.
    pub fn of(context: &Context, wanted: &mut CreateSession) -> Result<Option<Self>, Failure> {
        let Some(parent) = wanted.parent.clone() else { return Ok(None) };
        let refused = |message: String| Err(Failure::new(ErrorCode::BadRequest, message));
        let chooses_directory = wanted.workspace.is_some() || wanted.copy_workspace.is_some();
        if wanted.policy.is_some() || chooses_directory || wanted.owner.is_some() {
            return refused(format!(
                "a child of session {parent} has its parent's policy, workspace and owner; name none of them"
            ));
        }
        if wanted.worker.as_deref().is_some_and(is_agent) {
            return refused("an agent cannot be the child of a session".to_owned());
        }
        let Some(handle) = context.sessions.find(&parent) else {
            return match context.let_go() {
                true => Err(Failure::new(ErrorCode::ShuttingDown, "the node is about to stop")),
                false => Err(gone(&parent)),
            };
        };
        if handle.parent.is_some() {
            return refused(format!("session {parent} is a child, and a child has no children"));
        }
        let info = handle.info();
        let Some(policy) = info.policy else {
            return refused(format!("session {parent} was made by a release without policies"));
        };
        let own = context.config.workspace_of(&parent);
        let in_new_workspace = info.copied_from.is_none() && own == Path::new(&info.workspace);
        wanted.workspace = Some(info.workspace);
        wanted.owner = info.owner;
        Ok(Some(Self { parent, family: handle.family, policy: *policy, in_new_workspace }))
    }
}

/// The answer to a request for a child that cannot be made. `None` if only its id is taken.
pub(super) fn refusal(refused: &ReserveError, parent: Option<&SessionId>) -> Option<Failure> {
    match refused {
        ReserveError::IdTaken => None,
        ReserveError::ParentGone => parent.map(gone),
        ReserveError::TooManyChildren(most) => parent.map(|parent| {
            let message = format!(
                "session {parent} has {most} children, the most that a session may have; end one of them first"
            );
            Failure::new(ErrorCode::Overloaded, message)
        }),
    }
}

/// Ends the children of a session that has ended, and waits until they are gone.
pub(super) async fn end_with(context: &Context, parent: &SessionId) {
    let ends = context.sessions.children_of(parent).into_iter().map(end);
    join_all(ends).await;
}

/// Ends a new child whose parent has ended meanwhile.
pub(super) fn end_if_orphan(context: &Context, child: &SessionHandle) {
    // A node that stops has released the parent, and leaves the child to the next node too.
    let Some(parent) = child.parent.as_ref().filter(|_| !context.let_go()) else { return };
    if context.sessions.find(parent).is_none_or(|parent| parent.has_ended()) {
        tokio::spawn(end(child.clone()));
    }
}

/// Ends the children whose parents ended while no node ran.
pub(crate) fn end_orphans(context: &Context) {
    for child in context.sessions.handles() {
        end_if_orphan(context, &child);
    }
}

async fn end(child: SessionHandle) {
    // An error means that the child has ended already.
    let _ = child.ask(|reply| Request::Close { grace_ms: CLOSE_GRACE_MS, reply }).await;
}

fn gone(parent: &SessionId) -> Failure {
    Failure::new(ErrorCode::SessionNotFound, format!("there is no live session {parent}"))
}

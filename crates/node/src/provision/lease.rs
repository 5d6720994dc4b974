//! What a session gets from [`super::Provision::acquire`]: a keeper, how its worker starts, and the session's
//! resources.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use windlass_protocol::SessionId;

use super::session_dir::SessionDir;
use crate::workers::Recipe;

/// A session's keeper, worker and resources. If the session is not made, the resources must be given to
/// [`super::Provision::release`].
#[derive(Debug)]
#[must_use = "the resources of an unused lease must be released"]
pub(crate) struct Lease {
    pub keeper: KeeperEndpoint,
    pub worker: WorkerParts,
    pub resources: SessionResources,
}

/// What the keeper needs to know about its worker.
#[derive(Debug)]
pub(crate) struct WorkerParts {
    pub recipe: Recipe,
    /// The plan by which the worker is confined, as JSON text.
    pub plan: String,
    /// The node's egress socket, if the policy is a list of hosts.
    pub egress: Option<PathBuf>,
    /// The interpreter whose zygote the session's workers are forked from.
    pub zygote_of: Option<PathBuf>,
}

/// How the node reaches a new keeper.
#[derive(Debug)]
pub(crate) struct KeeperEndpoint {
    pub socket: PathBuf,
    pub start: WorkerStart,
}

/// How the session's first worker starts.
#[derive(Debug)]
pub(crate) enum WorkerStart {
    /// The keeper runs the worker's program.
    Exec,
    /// A zygote forks it. The keeper asks for the fork over this connection.
    Zygote(OwnedFd),
    /// It is a pooled worker. The node attaches on this connection, which the keeper has waited on.
    Pool(OwnedFd),
}

/// What the node has made for a session, so that it can be removed again.
#[derive(Debug)]
pub(crate) struct SessionResources {
    pub session: SessionId,
    pub dir: SessionDir,
    pub cgroups: Vec<PathBuf>,
    pub socket: Option<PathBuf>,
}

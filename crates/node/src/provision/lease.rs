//! What a session gets from [`super::Provision::acquire`]: a keeper, a worker or the way to start one, and
//! all that was made for the session.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use windlass_protocol::SessionId;

use super::session_dir::SessionDir;
use crate::workers::Recipe;

/// A session's keeper, and everything that was made for the session. A lease that is not kept must be
/// given to [`super::Provision::release`].
#[derive(Debug)]
#[must_use = "a lease that is not kept must be released"]
pub(crate) struct Lease {
    pub keeper: KeeperEndpoint,
    pub worker: WorkerParts,
    pub made: SessionResources,
}

/// What the keeper is told of its worker.
#[derive(Debug)]
pub(crate) struct WorkerParts {
    pub recipe: Recipe,
    /// The plan by which the worker is confined, as JSON text.
    pub plan: String,
    /// The node's socket for connections out of the sandbox, where the policy has any.
    pub egress: Option<PathBuf>,
    /// The interpreter whose zygote the session's workers are forked from.
    pub zygote_of: Option<PathBuf>,
}

/// How a keeper is reached for the first time.
#[derive(Debug)]
pub(crate) struct KeeperEndpoint {
    pub socket: PathBuf,
    pub start: WorkerStart,
}

/// How the session's first worker starts.
#[derive(Debug)]
pub(crate) enum WorkerStart {
    /// The keeper runs its program.
    Exec,
    /// A zygote forks it, over this connection.
    Zygote(OwnedFd),
    /// It is in the pool. The node attaches on the connection that the keeper has been waiting on.
    Pool(OwnedFd),
}

/// What was made for a session until now.
#[derive(Debug)]
pub(crate) struct SessionResources {
    pub session: SessionId,
    pub dir: SessionDir,
    pub cgroups: Vec<PathBuf>,
    pub socket: Option<PathBuf>,
}

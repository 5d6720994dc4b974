//! File operations on a session's workspace for clients: read, list, put, delete, write back, watch.
//! All functions block; the node calls them from the blocking pool. The crate knows nothing of HTTP.
//!
//! The kernel resolves every path beneath a descriptor of the workspace ([`workspace`]), whatever the
//! session's code does with its directories meanwhile. Files that the policy hides are not opened. New
//! content is staged next to its target and renamed onto it ([`staging`], [`commit`]).

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod commit;
mod error;
mod hidden;
mod list;
mod path;
mod precondition;
mod put;
mod remove;
mod staging;
#[cfg(test)]
mod tests;
mod watch;
mod workspace;
mod write_back;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::Semaphore;

pub use error::FileError;
pub use list::list;
pub use path::FilePath;
pub use precondition::Precondition;
pub use put::Put;
pub use remove::remove;
pub use staging::is_staged;
pub use watch::{WatchUpdate, WorkspaceWatch};
pub use workspace::{FileIdentity, OpenFile, Workspace};
pub use write_back::WriteBack;

/// Maximum number of concurrent uploads in one node. Further uploads wait.
const UPLOADS_MAX: usize = 64;

/// Maximum number of concurrent watches in one node. One more is refused as `overloaded`, because the
/// kernel limits the inotify instances of a user.
const WATCHES_MAX: usize = 64;

/// Limits and locks that file operations of all sessions share.
#[derive(Debug)]
pub struct Files {
    pub uploads: Arc<Semaphore>,
    pub watches: Arc<Semaphore>,
    /// One lock per workspace directory, because two sessions may use the same directory.
    commit_locks: Mutex<HashMap<FileIdentity, Weak<CommitLock>>>,
}

/// Held while changes are committed in a workspace, so that precondition checks and renames of two
/// clients do not interleave.
pub type CommitLock = Mutex<()>;

impl Default for Files {
    fn default() -> Self {
        Self {
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            commit_locks: Mutex::default(),
        }
    }
}

impl Files {
    fn commit_lock(&self, workspace: FileIdentity) -> Arc<CommitLock> {
        let mut commit_locks = self.commit_locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = commit_locks.get(&workspace).and_then(Weak::upgrade) {
            return shared;
        }
        commit_locks.retain(|_, commit_lock| commit_lock.strong_count() > 0);
        let fresh = Arc::new(CommitLock::default());
        commit_locks.insert(workspace, Arc::downgrade(&fresh));
        fresh
    }
}

/// Which files of a session a client may access: the workspace, and what the policy hides.
#[derive(Debug, Clone)]
pub struct FileScope {
    pub workspace: PathBuf,
    /// Hidden paths as policies write them: absolute, or `~/...`.
    pub hidden: Vec<String>,
    /// The node's state and runtime directories, which are hidden as well.
    pub node_dirs: Vec<PathBuf>,
    pub home: Option<PathBuf>,
    pub file_bytes_max: u64,
}

/// Receives a request's body piece by piece.
pub trait BodySink: Send + 'static {
    fn take(&mut self, piece: &[Bytes]) -> Result<(), FileError>;

    /// Removes staged files immediately. Dropping the sink removes them too, a little later.
    fn discard(self);
}

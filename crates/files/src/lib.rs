//! File operations on a session's workspace for clients: read, list, put, delete, write back, watch.
//! All functions block; the node calls them from the blocking pool. The crate knows nothing of HTTP.
//!
//! The kernel resolves every path beneath a descriptor of the workspace ([`workspace`]), whatever the
//! session's code does with its directories meanwhile. Files that the policy hides are not opened. New
//! content is staged next to its target and renamed onto it ([`staging`], [`commit`]).

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod closed;
mod commit;
mod directories;
mod error;
mod list;
mod owner;
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
use windlass_protocol::policy::WorkspaceAccess;

pub use error::FileError;
pub use list::list;
pub use owner::NewFileOwner;
pub use path::FilePath;
pub use precondition::Precondition;
pub use put::Put;
pub use remove::remove;
pub use staging::is_staged;
pub use watch::{WatchUpdate, WorkspaceWatch};
pub use workspace::{FileIdentity, OpenFile, Workspace};
pub use write_back::WriteBack;

/// Locks that file operations of all sessions share.
#[derive(Debug, Default)]
pub struct Files {
    /// One lock per workspace directory, because two sessions may use the same directory.
    commit_locks: Mutex<HashMap<FileIdentity, Weak<CommitLock>>>,
}

/// Held while changes are committed in a workspace, so that precondition checks and renames of two
/// clients do not interleave.
pub type CommitLock = Mutex<()>;

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

/// Which files of a session a client may access: the workspace, what the policy hides, and what it protects.
#[derive(Debug, Clone)]
pub struct FileScope {
    pub workspace: PathBuf,
    /// Hidden paths as policies write them: absolute, or `~/...`.
    pub hidden: Vec<String>,
    /// The node's state and runtime directories, which are hidden as well.
    pub node_dirs: Vec<PathBuf>,
    pub home: Option<PathBuf>,
    pub file_bytes_max: u64,
    pub writer: Writer,
    pub new_file_owner: NewFileOwner,
}

/// On whose behalf files are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writer {
    /// The client, which has the user's rights.
    Client,
    /// The session's code, which named the paths: only what the code itself may write.
    Code {
        workspace: WorkspaceAccess,
        /// Absolute paths that the code must not change.
        protected: Vec<PathBuf>,
    },
    /// The session's code, in a workspace where the node cannot find all protected names any more: it writes nothing.
    CodeOfLostNames,
}

/// Receives a request's body piece by piece.
pub trait BodySink: Send + 'static {
    fn take(&mut self, piece: &[Bytes]) -> Result<(), FileError>;

    /// Removes staged files immediately. Dropping the sink removes them too, a little later.
    fn discard(self);
}

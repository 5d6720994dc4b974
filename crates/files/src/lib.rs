//! Files of a session's workspace, for its clients: read, list, put, delete, write back many, watch.
//! Everything here blocks and is called from the pool, never on the node's thread; nothing here
//! knows HTTP.
//!
//! Whatever the session's code does with its directories meanwhile, every path is resolved by the
//! kernel beneath a descriptor of the workspace ([`workspace`]), and what the policy hides is not
//! opened. What is written is staged beside its place and renamed onto it ([`staging`], [`commit`]).

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod commit;
mod condition;
mod error;
mod hidden;
mod list;
mod path;
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

pub use condition::Condition;
pub use error::FileError;
pub use list::list;
pub use path::FilePath;
pub use put::Put;
pub use remove::remove;
pub use staging::is_staged;
pub use watch::{Heard, Watch};
pub use workspace::{Identity, OpenFile, Workspace};
pub use write_back::WriteBack;

/// Uploads at once in one node; the next wait for one of them to end.
const UPLOADS_MAX: usize = 64;

/// Watches at once in one node. One more is refused as `overloaded`: the kernel gives a user few.
const WATCHES_MAX: usize = 64;

/// What the files of all sessions share.
#[derive(Debug)]
pub struct Files {
    pub uploads: Arc<Semaphore>,
    pub watches: Arc<Semaphore>,
    /// By the workspace's directory: two sessions may work in one.
    turns: Mutex<HashMap<Identity, Weak<Turnstile>>>,
}

/// Whoever puts files in place or removes them in a workspace holds it: checks of conditions and
/// renames of two clients never mix.
pub type Turnstile = Mutex<()>;

impl Default for Files {
    fn default() -> Self {
        Self {
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            turns: Mutex::default(),
        }
    }
}

impl Files {
    fn turnstile(&self, workspace: Identity) -> Arc<Turnstile> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = turns.get(&workspace).and_then(Weak::upgrade) {
            return shared;
        }
        turns.retain(|_, turnstile| turnstile.strong_count() > 0);
        let fresh = Arc::new(Turnstile::default());
        turns.insert(workspace, Arc::downgrade(&fresh));
        fresh
    }
}

/// Where a session's files are, and what its policy says of them.
#[derive(Debug, Clone)]
pub struct Place {
    pub workspace: PathBuf,
    /// As policies name paths: absolute, or `~/...`.
    pub hidden: Vec<String>,
    /// The node's own directories.
    pub own: Vec<PathBuf>,
    pub home: Option<PathBuf>,
    pub file_bytes_max: u64,
}

/// What takes a request's body, piece by piece.
pub trait Intake: Send + 'static {
    fn take(&mut self, piece: &[Bytes]) -> Result<(), FileError>;

    /// Removes what was staged, here and now. Dropping it does so too, a little later.
    fn give_up(self);
}

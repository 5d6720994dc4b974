//! What the node may run with the user's rights, outside every sandbox: programs and modules from
//! directories in which no session, past or present, could write. Owns the record of the roots in which
//! sessions could write.
//!
//! A directory is not trusted because it is old or belongs to the user. It is trusted because every
//! directory on the path to it, also through symlinks, is outside all recorded roots. When the record cannot
//! be read, only directories that root alone can write are trusted.

mod record;
pub(crate) mod way;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::record::RootsRecord;
use self::way::{ResolveError, ResolvedPath};

pub(crate) use self::record::FILE;

/// Maximum time that a session with a new writable root waits for a program that is being started from there.
const IN_USE_WAIT: Duration = Duration::from_secs(10);

/// Mode bits of a directory: every user can write; the group can write; users cannot replace each other's
/// files.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;

#[derive(Debug)]
pub(crate) struct Trust {
    /// The node's directories in which sessions can write, such as workspaces. They are not in the record.
    node_dirs: Vec<PathBuf>,
    is_root: bool,
    state: Mutex<TrustState>,
    /// Notified when an entry of `in_use` is removed.
    released: Condvar,
}

#[derive(Debug)]
struct TrustState {
    record: RootsRecord,
    /// Increases with each new root.
    generation: u64,
    /// Directories from which the node is starting a program now.
    in_use: Vec<(u64, CodeDirs)>,
    last_use: u64,
}

/// The directories that decide which code a program runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CodeDirs {
    /// Directories in which a part of the program's path is looked up.
    pub directories: BTreeSet<PathBuf>,
    /// Directories from which the program may load any file, at any depth.
    pub trees: BTreeSet<PathBuf>,
}

/// Why the node does not run something itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Distrust {
    #[error("{directory} can be written by sessions that work in {root}")]
    Written { directory: PathBuf, root: PathBuf },
    #[error("every user of this machine can write to {0}")]
    Shared(PathBuf),
    #[error(
        "{directory} can be written by other users than root, and the record {record} of what \
         sessions could write cannot be read: {why}"
    )]
    Unknown { directory: PathBuf, record: PathBuf, why: String },
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    #[error("{0} has too many entries to check")]
    TooMany(PathBuf),
    #[error("{0} has a second name (a hard link), by which a session could change it")]
    Linked(PathBuf),
    #[error("{path} cannot be read: {why}")]
    Unreadable { path: PathBuf, why: String },
}

/// While this value lives, no session gets write access to its directories.
#[derive(Debug)]
pub(crate) struct CodeDirsInUse<'a> {
    trust: &'a Trust,
    number: u64,
}

impl Trust {
    /// Reads the record in `state_dir`. If there is none, makes one with `earlier`: the roots of sessions
    /// that an earlier release made without a record.
    pub fn open(
        state_dir: &Path,
        node_dirs: impl IntoIterator<Item = PathBuf>,
        earlier: impl FnOnce() -> Result<Vec<PathBuf>, String>,
    ) -> Self {
        let real = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
        let state = real(state_dir.to_owned());
        let moved = |path: PathBuf| match path.strip_prefix(state_dir) {
            Ok(below) => state.join(below),
            Err(_) => path,
        };
        let node_dirs: Vec<PathBuf> = node_dirs.into_iter().map(moved).collect();
        let of_sessions = |path: &PathBuf| !node_dirs.iter().any(|dir| path.starts_with(dir));
        let earlier = || Ok(earlier()?.into_iter().filter(of_sessions).collect());
        let record = RootsRecord::open(&state.join(FILE), earlier);
        if let Err(why) = record.roots() {
            tracing::error!(
                file = %record.file().display(),
                why,
                "cannot read the record of writable roots: the user's programs are not trusted"
            );
        }
        let state = TrustState { record, generation: 0, in_use: Vec::new(), last_use: 0 };
        Self {
            node_dirs,
            is_root: rustix::process::geteuid().is_root(),
            state: Mutex::new(state),
            released: Condvar::new(),
        }
    }

    /// Records permanently that sessions can write in `roots`, which contain no symlinks. Called before the
    /// session starts; writes to the disk only for a new root. `/` is not recorded, because then nothing
    /// would be trusted any more. Returns whether a root is new.
    pub fn remember<'a>(&self, roots: impl IntoIterator<Item = &'a PathBuf>) -> io::Result<bool> {
        let mut state = self.lock();
        let is_new = |state: &TrustState, root: &Path| {
            root != Path::new("/")
                && !self.node_dirs.iter().any(|dir| root.starts_with(dir))
                && !state.record.has(root)
        };
        let new: Vec<&Path> =
            roots.into_iter().map(PathBuf::as_path).filter(|root| is_new(&state, root)).collect();
        if new.is_empty() {
            return Ok(false);
        }
        let until = Instant::now() + IN_USE_WAIT;
        while state.in_use.iter().any(|(_, dirs)| new.iter().any(|root| dirs.overlap(root))) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message =
                    "an interpreter is being started from this directory; try again in a moment";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
            }
            let waited = self.released.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.generation += 1;
        new.into_iter().try_for_each(|root| state.record.add(root)).map(|()| true)
    }

    /// Changes with each new root.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// All roots in which sessions could write; `None` if the record cannot be read.
    pub fn roots(&self) -> Option<Vec<PathBuf>> {
        let state = self.lock();
        let recorded = state.record.roots().ok()?;
        Some(recorded.iter().chain(&self.node_dirs).cloned().collect())
    }

    /// Resolves the path of a program, if no session could have changed a directory on the path.
    pub fn way(&self, path: &Path) -> Result<ResolvedPath, Distrust> {
        let way = way::resolve(path)?;
        self.check(&CodeDirs { directories: way.directories.clone(), trees: BTreeSet::new() })?;
        Ok(way)
    }

    /// Checks that no session could have written in these directories.
    pub fn check(&self, dirs: &CodeDirs) -> Result<(), Distrust> {
        self.check_in(&self.lock(), dirs)
    }

    /// Checks the same, and denies sessions write access to these directories until the result is dropped.
    pub fn hold(&self, dirs: &CodeDirs) -> Result<CodeDirsInUse<'_>, Distrust> {
        let mut state = self.lock();
        self.check_in(&state, dirs)?;
        state.last_use += 1;
        let number = state.last_use;
        state.in_use.push((number, dirs.clone()));
        Ok(CodeDirsInUse { trust: self, number })
    }

    fn check_in(&self, state: &TrustState, dirs: &CodeDirs) -> Result<(), Distrust> {
        match state.record.roots() {
            Ok(roots) => {
                let written = |(directory, root): (&Path, &Path)| Distrust::Written {
                    directory: directory.to_owned(),
                    root: root.to_owned(),
                };
                let in_node_dir = self.node_dirs.iter().find_map(|root| dirs.overlap_with(root));
                let overlap =
                    in_node_dir.or_else(|| roots.iter().find_map(|root| dirs.overlap_with(root)));
                overlap.map_or(Ok(()), |overlap| Err(written(overlap)))?;
                let shared = |mode| mode & OTHERS_WRITE != 0 && mode & STICKY == 0;
                let found = dirs.with_parents().into_iter().find(|path| has_mode(path, shared));
                found.map_or(Ok(()), |path| Err(Distrust::Shared(path.to_owned())))
            }
            Err(why) => {
                let others = |path: &&Path| self.is_root || !only_root_writes(path);
                let unknown = |directory: &Path| Distrust::Unknown {
                    directory: directory.to_owned(),
                    record: state.record.file().to_owned(),
                    why: why.to_owned(),
                };
                let found = dirs.with_parents().into_iter().find(others);
                found.map_or(Ok(()), |directory| Err(unknown(directory)))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, TrustState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CodeDirsInUse<'_> {
    fn drop(&mut self) {
        self.trust.lock().in_use.retain(|(number, _)| *number != self.number);
        self.trust.released.notify_all();
    }
}

impl CodeDirs {
    /// Adds all directories on the path to `path`. Returns the real path.
    pub fn add_way(&mut self, path: &Path) -> Result<PathBuf, ResolveError> {
        way::walk(path, &mut self.directories)
    }

    /// Adds a directory with its content. Returns its real path.
    pub fn add_tree(&mut self, path: &Path) -> Result<PathBuf, ResolveError> {
        let real = self.add_way(path)?;
        self.trees.insert(real.clone());
        Ok(real)
    }

    /// Adds a directory that may not exist. A missing directory is trusted only if no session could create
    /// it.
    pub fn add_named(&mut self, path: &Path) -> Result<(), ResolveError> {
        match self.add_tree(path) {
            Ok(_) | Err(ResolveError::Look { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether writing in `root` could change the code.
    fn overlap(&self, root: &Path) -> bool {
        self.overlap_with(root).is_some()
    }

    /// The directory that writing in `root` could change, with `root`.
    fn overlap_with<'a>(&'a self, root: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let on_the_path = self.directories.iter().find(|directory| directory.starts_with(root));
        let within =
            || self.trees.iter().find(|tree| tree.starts_with(root) || root.starts_with(tree));
        on_the_path.or_else(within).map(|directory| (directory.as_path(), root))
    }

    /// All directories and their parents.
    fn with_parents(&self) -> BTreeSet<&Path> {
        self.directories.iter().chain(&self.trees).flat_map(|path| path.ancestors()).collect()
    }
}

impl Distrust {
    /// What the user can do about the distrust.
    pub fn remedy(&self) -> String {
        match self {
            Self::Unknown { record, .. } => format!(
                "make sure that no interpreter on PATH or in environments.json is in a directory \
                 that sessions could write, then remove {} and restart the node",
                record.display()
            ),
            Self::Linked(_) => "install its packages with copies instead of hard links, as with \
                 UV_LINK_MODE=copy; until then, its code runs only inside the sandbox"
                .to_owned(),
            _ => "use an interpreter in a directory that no session can write, such as one of the \
                 system; the code of this one runs only inside the sandbox"
                .to_owned(),
        }
    }
}

/// The distrust with its remedy, as text.
pub(crate) struct Advice<'a>(pub &'a Distrust);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "the node does not run it outside the sandbox: {}; {}", self.0, self.0.remedy())
    }
}

fn has_mode(path: &Path, wanted: impl Fn(u32) -> bool) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && wanted(found.mode()))
}

/// Whether only root can write in a directory.
fn only_root_writes(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.uid() == 0 && found.mode() & (GROUP_WRITES | OTHERS_WRITE) == 0)
}

#[cfg(test)]
mod tests;

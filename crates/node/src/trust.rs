//! What the node may run with the user's rights, outside of every sandbox: programs and modules from
//! places that no session, past or present, could write. Owns the record of those places.
//!
//! A place is not trusted for being old or for being the user's. It is trusted because every directory
//! on the way to it, symbolic links included, is outside of all recorded roots. When the record cannot
//! be read, only what belongs to root and to nobody else is trusted.

mod record;
pub(crate) mod way;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::record::Record;
use self::way::{Way, WayError};

pub(crate) use self::record::FILE;

/// How long a session with a new writable root waits for a program that is being started from there.
const IN_USE_WAIT: Duration = Duration::from_secs(10);

/// Mode bits of a directory: every user may write; the group may write; users may not replace each
/// other's files.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// See the module's first lines.
#[derive(Debug)]
pub(crate) struct Trust {
    /// Directories in which the node makes workspaces. Sessions write them, and the record lacks
    /// them.
    own: Vec<PathBuf>,
    is_root: bool,
    state: Mutex<State>,
    /// Notified when an entry of `in_use` is removed.
    released: Condvar,
}

#[derive(Debug)]
struct State {
    record: Record,
    /// Goes up with each new root.
    generation: u64,
    /// Places from which the node is starting a program at this moment.
    in_use: Vec<(u64, Places)>,
    last_use: u64,
}

/// Directories that decide which code a program runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Directories in which a name on the program's path is looked up.
    pub directories: BTreeSet<PathBuf>,
    /// Directories from which the program may load any file, at any depth.
    pub trees: BTreeSet<PathBuf>,
}

/// Why the node does not run something itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Distrust {
    #[error("{place} can be written by sessions that work in {root}")]
    Written { place: PathBuf, root: PathBuf },
    #[error("every user of this machine can write to {0}")]
    Shared(PathBuf),
    #[error(
        "{place} does not belong to root alone, and {record} does not tell what sessions could \
         write: {why}"
    )]
    Unknown { place: PathBuf, record: PathBuf, why: String },
    #[error(transparent)]
    Way(#[from] WayError),
    #[error("{0} has too many entries to be checked")]
    TooMany(PathBuf),
    #[error("{0} has a second name (a hard link), by which a session could change it")]
    Linked(PathBuf),
    #[error("{path} cannot be read: {why}")]
    Unreadable { path: PathBuf, why: String },
}

/// While this is there, no session gets one of its places to write.
#[derive(Debug)]
pub(crate) struct InUse<'a> {
    trust: &'a Trust,
    number: u64,
}

impl Trust {
    /// Reads the record below `state_dir`. Without one it is begun with `earlier`, the roots of
    /// sessions that were made before there was a record.
    pub fn open(
        state_dir: &Path,
        own: impl IntoIterator<Item = PathBuf>,
        earlier: impl FnOnce() -> Result<Vec<PathBuf>, String>,
    ) -> Self {
        let real = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
        let state = real(state_dir.to_owned());
        let moved = |path: PathBuf| match path.strip_prefix(state_dir) {
            Ok(below) => state.join(below),
            Err(_) => path,
        };
        let own: Vec<PathBuf> = own.into_iter().map(moved).collect();
        let of_sessions = |path: &PathBuf| !own.iter().any(|own| path.starts_with(own));
        let earlier = || Ok(earlier()?.into_iter().filter(of_sessions).collect());
        let record = Record::open(&state.join(FILE), earlier);
        if let Err(why) = record.roots() {
            tracing::error!(file = %record.file().display(), why, "programs of the user are not trusted");
        }
        let state = State { record, generation: 0, in_use: Vec::new(), last_use: 0 };
        Self {
            own,
            is_root: rustix::process::geteuid().is_root(),
            state: Mutex::new(state),
            released: Condvar::new(),
        }
    }

    /// Remembers, for good, that sessions can write to `roots`, which are free of symbolic links.
    /// Called before the session starts; touches the disk only for a root that is new. The root
    /// directory is not remembered: nothing would be left to trust. Tells whether something is new.
    pub fn remember<'a>(&self, roots: impl IntoIterator<Item = &'a PathBuf>) -> io::Result<bool> {
        let mut state = self.lock();
        let is_new = |state: &State, root: &Path| {
            root != Path::new("/")
                && !self.own.iter().any(|own| root.starts_with(own))
                && !state.record.has(root)
        };
        let new: Vec<&Path> =
            roots.into_iter().map(PathBuf::as_path).filter(|root| is_new(&state, root)).collect();
        if new.is_empty() {
            return Ok(false);
        }
        let until = Instant::now() + IN_USE_WAIT;
        while state.in_use.iter().any(|(_, places)| new.iter().any(|root| places.meet(root))) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = "an interpreter is being started from there; try again in a moment";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
            }
            let waited = self.released.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.generation += 1;
        new.into_iter().try_for_each(|root| state.record.add(root)).map(|()| true)
    }

    /// Changes whenever there is a new root.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// All roots that sessions could write; none if that is not known.
    pub fn roots(&self) -> Option<Vec<PathBuf>> {
        let state = self.lock();
        let recorded = state.record.roots().ok()?;
        Some(recorded.iter().chain(&self.own).cloned().collect())
    }

    /// The way to a program, if no session could have changed it.
    pub fn way(&self, path: &Path) -> Result<Way, Distrust> {
        let way = way::resolve(path)?;
        self.check(&Places { directories: way.directories.clone(), trees: BTreeSet::new() })?;
        Ok(way)
    }

    /// Whether no session could have written to these places.
    pub fn check(&self, places: &Places) -> Result<(), Distrust> {
        self.check_in(&self.lock(), places)
    }

    /// Checks the same, and keeps sessions away from these places until the answer is dropped.
    pub fn hold(&self, places: &Places) -> Result<InUse<'_>, Distrust> {
        let mut state = self.lock();
        self.check_in(&state, places)?;
        state.last_use += 1;
        let number = state.last_use;
        state.in_use.push((number, places.clone()));
        Ok(InUse { trust: self, number })
    }

    fn check_in(&self, state: &State, places: &Places) -> Result<(), Distrust> {
        match state.record.roots() {
            Ok(roots) => {
                let written = |(place, root): (&Path, &Path)| Distrust::Written {
                    place: place.to_owned(),
                    root: root.to_owned(),
                };
                let own = self.own.iter().find_map(|root| places.met_by(root));
                let met = own.or_else(|| roots.iter().find_map(|root| places.met_by(root)));
                met.map_or(Ok(()), |met| Err(written(met)))?;
                let shared = |mode| mode & OTHERS_WRITE != 0 && mode & STICKY == 0;
                let found = places.above().into_iter().find(|path| has_mode(path, shared));
                found.map_or(Ok(()), |path| Err(Distrust::Shared(path.to_owned())))
            }
            Err(why) => {
                let others = |path: &&Path| self.is_root || !is_roots_alone(path);
                let unknown = |place: &Path| Distrust::Unknown {
                    place: place.to_owned(),
                    record: state.record.file().to_owned(),
                    why: why.to_owned(),
                };
                let found = places.above().into_iter().find(others);
                found.map_or(Ok(()), |place| Err(unknown(place)))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.trust.lock().in_use.retain(|(number, _)| *number != self.number);
        self.trust.released.notify_all();
    }
}

impl Places {
    /// Adds the way to `path`, and gives where it leads.
    pub fn add_way(&mut self, path: &Path) -> Result<PathBuf, WayError> {
        way::walk(path, &mut self.directories)
    }

    /// Adds a directory with all that is in it, and gives where it really is.
    pub fn add_tree(&mut self, path: &Path) -> Result<PathBuf, WayError> {
        let real = self.add_way(path)?;
        self.trees.insert(real.clone());
        Ok(real)
    }

    /// Adds a directory that may be missing. A missing one is trusted only if no session could make
    /// it.
    pub fn add_named(&mut self, path: &Path) -> Result<(), WayError> {
        match self.add_tree(path) {
            Ok(_) | Err(WayError::Look { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether writing to `root` could change something here.
    fn meet(&self, root: &Path) -> bool {
        self.met_by(root).is_some()
    }

    fn met_by<'a>(&'a self, root: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let on_the_way = self.directories.iter().find(|place| place.starts_with(root));
        let within =
            || self.trees.iter().find(|tree| tree.starts_with(root) || root.starts_with(tree));
        on_the_way.or_else(within).map(|place| (place.as_path(), root))
    }

    /// All directories, and those above them.
    fn above(&self) -> BTreeSet<&Path> {
        self.directories.iter().chain(&self.trees).flat_map(|path| path.ancestors()).collect()
    }
}

impl Distrust {
    /// What the user can do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Unknown { record, .. } => format!(
                "remove {} when no interpreter on PATH or in environments.json lies where sessions \
                 could write, and restart the node",
                record.display()
            ),
            Self::Linked(_) => "install its packages with copies instead of hard links, as with \
                 UV_LINK_MODE=copy; until then, code runs inside of the sandbox only"
                .to_owned(),
            _ => "use an interpreter in a place that no session can write, such as one of the \
                 system's; in this one, code runs inside of the sandbox only"
                .to_owned(),
        }
    }
}

/// The reason with its remedy, for people.
pub(crate) struct Advice<'a>(pub &'a Distrust);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "the node does not run it itself: {}; {}", self.0, self.0.remedy())
    }
}

fn has_mode(path: &Path, wanted: impl Fn(u32) -> bool) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && wanted(found.mode()))
}

/// Whether only root can write there.
fn is_roots_alone(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.uid() == 0 && found.mode() & (GROUP_WRITES | OTHERS_WRITE) == 0)
}

#[cfg(test)]
mod tests;

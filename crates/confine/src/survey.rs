//! What the files around one session are like: gathered before planning, so that planning itself
//! touches nothing. All paths come out absolute and free of symbolic links.

pub mod around;
pub mod homes;
pub mod names;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::policy::{Network, Policy, UnixSockets, expand_home};

use self::around::{Around, Kept};
use self::names::{Names, Protected};
use crate::plan::Kind;

/// Entries that are looked at beside one hidden path; a directory with more is not readable around
/// it (level `landlock` only).
const SIBLINGS_MAX: usize = 4096;

/// Entries of a home that are bound into a view one by one. In a home with more, hidden paths are
/// covered where they are.
const OPENED_MAX: usize = 512;

/// What a survey is asked about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    pub workspace: PathBuf,
    /// The worker's own program. The node lays it out below its state directory, which it hides; it
    /// is the only thing that can be read inside of what is hidden.
    pub program: Option<PathBuf>,
    /// What the worker needs to read besides: its interpreter, if that may be trusted. It can be
    /// read outside of the readable roots, and never where it is hidden.
    pub needed: Vec<PathBuf>,
    /// What the node hides of itself.
    pub hidden: Vec<PathBuf>,
    pub home: Option<PathBuf>,
    /// The session's temporary directory, for the level that has no private `/tmp`.
    pub tmp: Option<PathBuf>,
    /// Where the workspaces of its twins will be.
    pub family: Option<PathBuf>,
    /// The workspace was made for the session just now: nothing is in it, and no shell, agent or editor
    /// of anybody works there.
    pub workspace_is_new: bool,
    /// Home directories of the machine's users, as real paths.
    pub homes: Vec<PathBuf>,
    /// Directories of programs on PATH, as real paths.
    pub programs: Vec<PathBuf>,
    /// The protected names, where they were looked at already.
    pub names: Option<Names>,
}

/// What planning knows of the files around a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    pub workspace: PathBuf,
    pub tmp: Option<PathBuf>,
    pub family: Option<PathBuf>,
    pub program: Option<PathBuf>,
    /// As asked for; [`Place::needed`] leaves out what is hidden.
    pub needed: Vec<PathBuf>,
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// Hidden paths that exist.
    pub hidden: BTreeMap<PathBuf, Kind>,
    /// Sockets of others that the session could reach by a path, and directories full of them.
    pub sockets: Vec<PathBuf>,
    /// Sockets of others that are not among these, because there are too many.
    pub uncovered_sockets: usize,
    /// Protected paths, and what is there.
    pub protected: BTreeMap<PathBuf, Protected>,
    /// Why some protected names cannot be held.
    pub unheld: Option<String>,
    /// Fixed places of the system that exist.
    pub system: BTreeMap<PathBuf, Kind>,
    /// For each directory above a hidden path: what else is in it.
    pub siblings: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// For each directory of the user's home that may come to hold a hidden path: what is in it.
    pub opened: BTreeMap<PathBuf, BTreeMap<PathBuf, Entry>>,
    /// Links at the root of the machine: `/bin` and its like.
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// Processes of this user at this moment.
    pub user_processes: u64,
}

/// Why a session cannot read a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// This hidden path is the path, or holds it.
    Hidden(PathBuf),
    /// The session has a private directory in its place.
    Private(PathBuf),
    /// No readable path holds it.
    NotListed,
}

impl Place {
    /// What the worker needs and may have: nothing that is hidden becomes readable by being needed.
    pub fn needed(&self) -> impl Iterator<Item = &PathBuf> {
        self.needed.iter().filter(|path| !path.ancestors().any(|at| self.hidden.contains_key(at)))
    }

    /// Whether the session can read `path`, which is absolute and free of symbolic links.
    pub fn check_readable(&self, path: &Path) -> Result<(), Unreadable> {
        let own = [Some(&self.workspace), self.family.as_ref(), self.program.as_ref()];
        let shown = self.readable.iter().chain(&self.writable).chain(own.into_iter().flatten());
        let shown: BTreeSet<&Path> = shown.chain(self.needed()).map(PathBuf::as_path).collect();
        // The deepest rule decides, as in a view.
        for at in path.ancestors() {
            if shown.contains(at) {
                return Ok(());
            }
            if self.hidden.contains_key(at) {
                return Err(Unreadable::Hidden(at.to_owned()));
            }
            if PRIVATE.iter().any(|private| Path::new(private) == at) {
                return Err(Unreadable::Private(at.to_owned()));
            }
        }
        Err(Unreadable::NotListed)
    }
}

/// Places of the system that a session has of its own.
const PRIVATE: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// What is in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Real(Kind),
    Link(PathBuf),
}

/// Places of the system that are treated specially where they exist.
pub(crate) const SYSTEM: [&str; 11] = [
    "/tmp",
    "/var/tmp",
    "/run",
    "/sys/firmware",
    "/sys/fs/cgroup",
    "/sys/fs/bpf",
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
    "/sys/kernel/security",
    "/sys/kernel/config",
    "/sys/power",
];

/// How much there is to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What a view of its own needs.
    View,
    /// What rules on the machine's own files need besides: what lies around hidden paths, and how
    /// many processes the user has.
    Rules,
}

/// Looks at the files that a policy speaks of.
pub fn survey(policy: &Policy, site: &Site, depth: Depth) -> Place {
    place(policy, site, depth, &Around::look(policy, site))
}

/// The same, where most of it may be known already; and what of it was the same for others.
pub fn survey_with(
    kept: &Kept,
    policy: &Policy,
    site: &Site,
    depth: Depth,
) -> (Place, Arc<Around>) {
    let around = kept.around(policy, site);
    (place(policy, site, depth, &around), around)
}

/// The protected names that a session with this policy would have at this site.
pub fn names_at(policy: &Policy, site: &Site) -> Names {
    let workspace = real(&site.workspace).unwrap_or_else(|| site.workspace.clone());
    let home = site.home.as_deref();
    let writable: Vec<PathBuf> = policy
        .writable
        .iter()
        .filter_map(|path| expand_home(path, home))
        .filter_map(|path| real(&path))
        .collect();
    names::look(policy, site, &workspace, &writable)
}

/// Directories that a policy names besides the root of the machine. Naming one allows the unix sockets
/// directly in it.
pub(crate) fn named_directories<'a>(
    readable: &'a [PathBuf],
    writable: &'a [PathBuf],
) -> impl Iterator<Item = &'a Path> {
    readable.iter().chain(writable).map(PathBuf::as_path).filter(|path| *path != Path::new("/"))
}

fn place(policy: &Policy, site: &Site, depth: Depth, around: &Around) -> Place {
    let workspace = real(&site.workspace).unwrap_or_else(|| site.workspace.clone());
    let hidden = around.hidden.clone();
    let family = site.family.as_deref().and_then(real);
    // Sockets that could reach another are refused altogether without a view, or where the policy
    // says so.
    let sockets = match (depth, policy.unix_sockets) {
        (Depth::View, UnixSockets::Local) => {
            let own = std::iter::once(&workspace).chain(&family);
            let shown = around.program.iter().chain(&around.needed).chain(&around.readable);
            let shown = shown.chain(&around.writable);
            let shown: Vec<&Path> = own.chain(shown).map(PathBuf::as_path).collect();
            let named: Vec<&Path> = named_directories(&around.readable, &around.writable).collect();
            let (opened, named) = (&around.opened, &named);
            sockets::reachable(&sockets::Sight { shown: &shown, named, opened, hidden: &hidden })
        }
        (Depth::Rules, _) | (_, UnixSockets::None) => sockets::Found::default(),
    };
    let look = || names::look(policy, site, &workspace, &around.writable);
    let Names { protected, unheld } = site.names.clone().unwrap_or_else(look);
    let (opened, siblings, user_processes) = match depth {
        Depth::View => (around.opened.clone(), BTreeMap::new(), 0),
        Depth::Rules => {
            let siblings = siblings(hidden.keys().chain(around.system.keys()));
            (BTreeMap::new(), siblings, user_processes())
        }
    };
    Place {
        workspace,
        tmp: site.tmp.as_deref().and_then(real),
        family,
        program: around.program.clone(),
        needed: around.needed.clone(),
        readable: around.readable.clone(),
        writable: around.writable.clone(),
        hidden,
        sockets: sockets.covered,
        uncovered_sockets: sockets.left,
        protected,
        unheld,
        system: around.system.clone(),
        siblings,
        opened,
        links: around.links.clone(),
        user_processes,
    }
}

/// What lies around the policy's hidden paths in the user's home, whether they exist or not: there
/// they come and go while a session lives, and each is replaced now and then.
fn opened(policy: &Policy, home: Option<&Path>) -> BTreeMap<PathBuf, BTreeMap<PathBuf, Entry>> {
    let Some(home) = home.and_then(real) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for hidden in policy.hidden.iter().filter_map(|path| expand_home(path, Some(&home))) {
        let above = hidden.ancestors().skip(1).take_while(|above| above.starts_with(&home));
        for directory in above {
            // A link is bound as what it stands for; only real directories are opened up.
            if !found.contains_key(directory) && real(directory).as_deref() == Some(directory) {
                found.insert(directory.to_owned(), entries_with_kinds(directory));
            }
        }
    }
    let all: usize = found.values().map(BTreeMap::len).sum();
    if all > OPENED_MAX { BTreeMap::new() } else { found }
}

/// What can be bound or linked to; sockets, pipes and devices of others cannot.
fn entries_with_kinds(directory: &Path) -> BTreeMap<PathBuf, Entry> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeMap::new() };
    let entry = |entry: std::fs::DirEntry| {
        let (path, kind) = (entry.path(), entry.file_type().ok()?);
        let entry = if kind.is_symlink() {
            Entry::Link(path.read_link().ok()?)
        } else if kind.is_dir() {
            Entry::Real(Kind::Directory)
        } else {
            kind.is_file().then_some(Entry::Real(Kind::File))?
        };
        Some((path, entry))
    };
    entries.flatten().take(OPENED_MAX + 1).filter_map(entry).collect()
}

/// What must be readable wherever it lies, by name: what the worker needs, and how names are found
/// where there is a network to find them on.
fn needed(policy: &Policy, site: &Site) -> Vec<PathBuf> {
    let resolver = (policy.network == Network::Open).then(|| PathBuf::from("/etc/resolv.conf"));
    site.needed.iter().cloned().chain(resolver).collect()
}

/// The links at the root, for a view that is not the whole machine's.
fn root_links(policy: &Policy) -> BTreeMap<PathBuf, PathBuf> {
    if policy.readable.iter().any(|path| path == "/") {
        return BTreeMap::new();
    }
    let entries = entries(Path::new("/"));
    entries.into_iter().filter_map(|path| Some((path.clone(), path.read_link().ok()?))).collect()
}

fn real(path: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(path).ok()
}

fn with_kind(path: &Path) -> Option<(PathBuf, Kind)> {
    // Most of what is asked for does not exist: one look tells, and following links takes many.
    path.symlink_metadata().ok()?;
    let real = real(path)?;
    let kind = if real.is_dir() { Kind::Directory } else { Kind::File };
    Some((real, kind))
}

/// Everything beside the hidden paths, in each directory from the root down to them.
fn siblings<'a>(hidden: impl Iterator<Item = &'a PathBuf>) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let mut found = BTreeMap::new();
    for path in hidden {
        for directory in path.ancestors().skip(1) {
            if !found.contains_key(directory) {
                found.insert(directory.to_owned(), entries(directory));
            }
        }
    }
    found
}

fn entries(directory: &Path) -> BTreeSet<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeSet::new() };
    let all: BTreeSet<PathBuf> =
        entries.flatten().take(SIBLINGS_MAX + 1).map(|entry| entry.path()).collect();
    if all.len() > SIBLINGS_MAX { BTreeSet::new() } else { all }
}

/// Processes with our user id: where the kernel counts all of a user's against one limit.
fn user_processes() -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let me = rustix::process::getuid().as_raw();
    let threads = |entry: &std::fs::DirEntry| -> Option<u64> {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        (entry.metadata().ok()?.uid() == me).then_some(())?;
        let tasks = std::fs::metadata(entry.path().join("task")).ok()?;
        // A directory's links: itself, its parent, and one for each thread.
        Some(tasks.nlink().saturating_sub(2).max(1))
    };
    entries.flatten().filter_map(|entry| threads(&entry)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_finds_what_exists_and_follows_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let home = root.join("home");
        std::fs::create_dir_all(home.join("keys")).unwrap();
        std::os::unix::fs::symlink("keys", home.join(".ssh")).unwrap();
        std::fs::create_dir_all(root.join("work/.git")).unwrap();
        std::fs::write(home.join(".netrc"), "x").unwrap();
        let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
        let site =
            Site { workspace: root.join("work"), home: Some(home.clone()), ..Site::default() };
        let place = survey(&policy, &site, Depth::Rules);
        assert_eq!(place.hidden.get(&home.join("keys")), Some(&Kind::Directory));
        assert_eq!(place.hidden.get(&home.join(".netrc")), Some(&Kind::File));
        assert!(!place.hidden.contains_key(&home.join(".aws")));
        let git = Protected::Real(Kind::Directory);
        assert_eq!(place.protected.get(&root.join("work/.git")), Some(&git));
        assert!(place.siblings[&home].contains(&home.join("keys")));
    }
}

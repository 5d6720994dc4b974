//! Reads the state of the files around one session, before planning, so that planning itself touches no file.
//! Every path in a survey is absolute and contains no symlink.

pub mod homes;
pub mod names;
pub mod shared;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::policy::{Network, Policy, UnixSockets, expand_home};

use self::names::ProtectedNames;
use self::shared::{SharedSurvey, SurveyCache};
pub use self::sockets::SocketCovers;
use self::sockets::VisibleFiles;
use crate::plan::PathKind;

/// Maximum number of entries that are read from one directory above a hidden path (level `landlock` only). A
/// directory with more entries is not readable around the hidden path.
const SIBLINGS_MAX: usize = 4096;

/// Maximum number of entries of a home that are bound into a view one by one. In a home with more entries,
/// the view covers the hidden paths instead.
const OPENED_MAX: usize = 512;

/// The input of a survey: the session's directories and what the node knows about the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SurveyInput {
    pub workspace: PathBuf,
    /// Directories of the node that the session reads: the worker's program files, and the certificates that a
    /// session with secrets trusts. They lie below the node's state directory, which is hidden; they are the only
    /// readable paths inside a hidden path.
    pub node_files: Vec<PathBuf>,
    /// Other paths that the worker must read: its interpreter, if the node trusts it. They are readable
    /// outside the readable roots, but never inside a hidden path.
    pub needed: Vec<PathBuf>,
    /// The node's own directories, which sessions must not see.
    pub hidden: Vec<PathBuf>,
    pub home: Option<PathBuf>,
    /// The session's temporary directory, which it can write: at level `landlock`, because it has no private `/tmp`, and at
    /// each level if its code installs packages.
    pub tmp: Option<PathBuf>,
    /// The home of the session's agent, which the session can write whatever its policy says of the workspace.
    pub agent_home: Option<PathBuf>,
    /// The directory that holds the workspaces of the session's twins.
    pub family: Option<PathBuf>,
    /// The node has just made the workspace for this session: it is empty, and no shell, agent or editor of
    /// a user works in it.
    pub workspace_is_new: bool,
    /// Home directories of the machine's users, as real paths.
    pub homes: Vec<PathBuf>,
    /// Directories of programs on PATH, as real paths.
    pub programs: Vec<PathBuf>,
    /// The protected names, if the caller has already looked them up.
    pub names: Option<ProtectedNames>,
}

/// The state of the files around a session: the input of planning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSurvey {
    pub workspace: PathBuf,
    pub tmp: Option<PathBuf>,
    pub family: Option<PathBuf>,
    pub node_files: Vec<PathBuf>,
    /// As in [`SurveyInput::needed`]; [`FileSurvey::needed`] leaves out hidden paths.
    pub needed: Vec<PathBuf>,
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// Hidden paths that exist.
    pub hidden: BTreeMap<PathBuf, PathKind>,
    pub sockets: SocketCovers,
    pub names: ProtectedNames,
    pub layout: MachineLayout,
    /// Number of threads that run with this user's id.
    pub user_processes: u64,
}

/// The parts of the machine's directory tree that planning needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineLayout {
    /// The paths of `SYSTEM` that exist.
    pub system: BTreeMap<PathBuf, PathKind>,
    /// For each directory above a hidden path: its entries. Only level `landlock` needs them.
    pub siblings: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// For each directory of the user's home in which a hidden path may appear: its entries. Only level
    /// `full` needs them.
    pub opened: BTreeMap<PathBuf, BTreeMap<PathBuf, DirectoryEntry>>,
    /// Symlinks in `/`, such as `/bin`, with their targets.
    pub links: BTreeMap<PathBuf, PathBuf>,
}

/// Why a session cannot read a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// The path is this hidden path or lies below it.
    Hidden(PathBuf),
    /// The session has a private directory at this path.
    Private(PathBuf),
    /// No readable path contains it.
    NotListed,
}

impl FileSurvey {
    /// The needed paths without the hidden ones: a hidden path does not become readable because the worker
    /// needs it.
    pub fn needed(&self) -> impl Iterator<Item = &PathBuf> {
        self.needed.iter().filter(|path| !path.ancestors().any(|at| self.hidden.contains_key(at)))
    }

    /// Whether the session can read `path`, which is absolute and contains no symlink.
    pub fn check_readable(&self, path: &Path) -> Result<(), Unreadable> {
        let own = std::iter::once(&self.workspace).chain(&self.family).chain(&self.node_files);
        let shown = self.readable.iter().chain(&self.writable).chain(own);
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

/// Directories of the machine that a session sees as private, empty ones.
const PRIVATE: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryEntry {
    Real(PathKind),
    /// A symlink with its target.
    Link(PathBuf),
}

/// Paths of the machine that every plan treats specially where they exist.
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

/// How much a survey reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What level `full` needs, where the session gets a view.
    View,
    /// What level `landlock` needs: also the entries around hidden paths, and the number of processes of this
    /// user.
    Rules,
}

/// Surveys the files that a policy names.
pub fn survey(policy: &Policy, input: &SurveyInput, depth: Depth) -> FileSurvey {
    complete(policy, input, depth, &SharedSurvey::read(policy, input))
}

/// The same as [`survey()`], with the shared part from the cache where it still holds. Also returns the
/// shared part.
pub fn survey_with(
    cache: &SurveyCache,
    policy: &Policy,
    input: &SurveyInput,
    depth: Depth,
) -> (FileSurvey, Arc<SharedSurvey>) {
    let shared = cache.survey(policy, input);
    (complete(policy, input, depth, &shared), shared)
}

/// The protected names of a session with this policy and input.
pub fn names_at(policy: &Policy, input: &SurveyInput) -> ProtectedNames {
    let workspace = real(&input.workspace).unwrap_or_else(|| input.workspace.clone());
    let home = input.home.as_deref();
    let writable: Vec<PathBuf> = policy
        .writable
        .iter()
        .filter_map(|path| expand_home(path, home))
        .filter_map(|path| real(&path))
        .collect();
    names::find(policy, input, &workspace, &writable)
}

/// Directories that a policy names, without `/`. Naming a directory allows the unix sockets directly in it.
pub(crate) fn named_directories<'a>(
    readable: &'a [PathBuf],
    writable: &'a [PathBuf],
) -> impl Iterator<Item = &'a Path> {
    readable.iter().chain(writable).map(PathBuf::as_path).filter(|path| *path != Path::new("/"))
}

/// Adds to a shared survey what depends on the session.
fn complete(
    policy: &Policy,
    input: &SurveyInput,
    depth: Depth,
    shared: &SharedSurvey,
) -> FileSurvey {
    let workspace = real(&input.workspace).unwrap_or_else(|| input.workspace.clone());
    let hidden = shared.hidden.clone();
    let family = input.family.as_deref().and_then(real);
    let agent_home = input.agent_home.as_deref().and_then(real);
    let writable: Vec<PathBuf> = shared.writable.iter().cloned().chain(agent_home).collect();
    // Without a view, or where the policy says so, seccomp refuses every unix socket that could reach another
    // process. Then no socket needs a cover.
    let sockets = match (depth, policy.unix_sockets) {
        (Depth::View, UnixSockets::Local) => {
            let own = std::iter::once(&workspace).chain(&family);
            let shown = shared.node_files.iter().chain(&shared.needed).chain(&shared.readable);
            let shown = shown.chain(&writable);
            let shown: Vec<&Path> = own.chain(shown).map(PathBuf::as_path).collect();
            let named: Vec<&Path> = named_directories(&shared.readable, &shared.writable).collect();
            let (opened, named) = (&shared.opened, &named);
            sockets::reachable(&VisibleFiles { shown: &shown, named, opened, hidden: &hidden })
        }
        (Depth::Rules, _) | (_, UnixSockets::None) => SocketCovers::default(),
    };
    let find = || names::find(policy, input, &workspace, &shared.writable);
    let names = input.names.clone().unwrap_or_else(find);
    let (opened, siblings, user_processes) = match depth {
        Depth::View => (shared.opened.clone(), BTreeMap::new(), 0),
        Depth::Rules => {
            let siblings = siblings(hidden.keys().chain(shared.system.keys()));
            (BTreeMap::new(), siblings, user_processes())
        }
    };
    FileSurvey {
        workspace,
        tmp: input.tmp.as_deref().and_then(real),
        family,
        node_files: shared.node_files.clone(),
        needed: shared.needed.clone(),
        readable: shared.readable.clone(),
        writable,
        hidden,
        sockets,
        names,
        layout: MachineLayout {
            system: shared.system.clone(),
            siblings,
            opened,
            links: shared.links.clone(),
        },
        user_processes,
    }
}

/// The entries of each directory of the user's home that may hold a hidden path, whether the hidden path
/// exists or not: hidden paths in a home appear, disappear and are replaced while a session lives.
fn opened(
    policy: &Policy,
    home: Option<&Path>,
) -> BTreeMap<PathBuf, BTreeMap<PathBuf, DirectoryEntry>> {
    let Some(home) = home.and_then(real) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for hidden in policy.hidden.iter().filter_map(|path| expand_home(path, Some(&home))) {
        let above = hidden.ancestors().skip(1).take_while(|above| above.starts_with(&home));
        for directory in above {
            // A view shows a symlink as a symlink. Only the entries of real directories are listed.
            if !found.contains_key(directory) && real(directory).as_deref() == Some(directory) {
                found.insert(directory.to_owned(), entries_with_kinds(directory));
            }
        }
    }
    let all: usize = found.values().map(BTreeMap::len).sum();
    if all > OPENED_MAX { BTreeMap::new() } else { found }
}

/// The entries of a directory that a view can show: directories, files and symlinks. Sockets, pipes and
/// devices are left out.
fn entries_with_kinds(directory: &Path) -> BTreeMap<PathBuf, DirectoryEntry> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeMap::new() };
    let entry = |entry: std::fs::DirEntry| {
        let (path, kind) = (entry.path(), entry.file_type().ok()?);
        let entry = if kind.is_symlink() {
            DirectoryEntry::Link(path.read_link().ok()?)
        } else if kind.is_dir() {
            DirectoryEntry::Real(PathKind::Directory)
        } else {
            kind.is_file().then_some(DirectoryEntry::Real(PathKind::File))?
        };
        Some((path, entry))
    };
    entries.flatten().take(OPENED_MAX + 1).filter_map(entry).collect()
}

/// Paths that must be readable wherever they lie: the needed paths, and the resolver's configuration where
/// the session has a network.
fn needed(policy: &Policy, input: &SurveyInput) -> Vec<PathBuf> {
    let resolver = (policy.network == Network::Open).then(|| PathBuf::from("/etc/resolv.conf"));
    input.needed.iter().cloned().chain(resolver).collect()
}

/// The symlinks in `/`, for a view that does not show the whole machine.
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

fn with_kind(path: &Path) -> Option<(PathBuf, PathKind)> {
    // Most of these paths do not exist. One system call finds that out; resolving a path takes many.
    path.symlink_metadata().ok()?;
    let real = real(path)?;
    let kind = if real.is_dir() { PathKind::Directory } else { PathKind::File };
    Some((real, kind))
}

/// The entries of every directory above a hidden path.
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

/// The number of threads with our user id: without a user namespace the kernel counts all of them against
/// `RLIMIT_NPROC`.
fn user_processes() -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let me = rustix::process::getuid().as_raw();
    let threads = |entry: &std::fs::DirEntry| -> Option<u64> {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        (entry.metadata().ok()?.uid() == me).then_some(())?;
        let tasks = std::fs::metadata(entry.path().join("task")).ok()?;
        // The link count of `task`: itself, its parent, and one for each thread.
        Some(tasks.nlink().saturating_sub(2).max(1))
    };
    entries.flatten().filter_map(|entry| threads(&entry)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::names::ProtectedEntry;

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
        let input = SurveyInput {
            workspace: root.join("work"),
            home: Some(home.clone()),
            ..SurveyInput::default()
        };
        let found = survey(&policy, &input, Depth::Rules);
        assert_eq!(found.hidden.get(&home.join("keys")), Some(&PathKind::Directory));
        assert_eq!(found.hidden.get(&home.join(".netrc")), Some(&PathKind::File));
        assert!(!found.hidden.contains_key(&home.join(".aws")));
        let git = ProtectedEntry::Real(PathKind::Directory);
        assert_eq!(found.names.protected.get(&root.join("work/.git")), Some(&git));
        assert!(found.layout.siblings[&home].contains(&home.join("keys")));
    }
}

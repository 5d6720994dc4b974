//! Plans the mounts of a view (level `full`): bound, private and hidden paths, in the order in which they are
//! mounted. Deeper paths are mounted later, and so they win.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use windlass_protocol::policy::{Limits, Policy, WorkspaceAccess};

use super::{Mount, MountAccess, PathKind};
use crate::survey::{DirectoryEntry, FileSurvey};

/// Maximum size of the private `/var/tmp` and `/run`.
const SMALL_BYTES: u64 = 64 << 20;

pub(super) fn build(policy: &Policy, survey: &FileSurvey) -> Vec<Mount> {
    let whole = survey.readable.iter().any(|path| path == Path::new("/"));
    let all_writable = survey.writable.iter().any(|path| path == Path::new("/"));
    let first = match (whole, all_writable) {
        (true, false) => Mount::Machine { access: MountAccess::Read },
        (true, true) => Mount::Machine { access: MountAccess::Write },
        (false, _) => Mount::Empty,
    };
    let mut view = ViewBuilder { mounts: BTreeMap::new(), whole };
    let exposed = exposed(policy, survey);
    for layer in layers(policy, survey, &exposed) {
        view.add(layer);
    }
    let mut mounts: Vec<Mount> = view.mounts.into_values().collect();
    mounts.sort_by_cached_key(depth);
    let shm_bytes = policy.limits.tmp_bytes;
    let links = links(survey, whole);
    std::iter::once(first)
        .chain(mounts)
        .chain(links)
        .chain([Mount::Processes, Mount::Devices { shm_bytes }])
        .collect()
}

struct ViewBuilder {
    /// The mounts by path. Keys are plain strings, which compare faster than paths: no path contains a
    /// symlink, `.` or `..`.
    mounts: BTreeMap<OsString, Mount>,
    /// The root of the view is the whole machine.
    whole: bool,
}

impl ViewBuilder {
    /// Adds a mount, unless the view looks the same without it.
    fn add(&mut self, mount: Mount) {
        let Some(path) = mount.path() else { return };
        let needed = match &mount {
            Mount::Hide { .. } | Mount::Cover { .. } | Mount::Shell { .. } => self.visible(path),
            Mount::Hold { .. } => self.writable(path),
            Mount::Bind { access: MountAccess::Read, .. } => {
                !self.visible(path) || self.writable(path)
            }
            _ => true,
        };
        if !needed {
            return;
        }
        let restricts = matches!(
            mount,
            Mount::Bind { access: MountAccess::Read, .. }
                | Mount::Hold { access: MountAccess::Read, .. }
                | Mount::Hide { .. }
                | Mount::Cover { .. }
                | Mount::Shell { .. }
        );
        if restricts && self.writable(path) {
            self.pin_above(path);
        }
        let key = path.as_os_str().to_owned();
        self.mounts.insert(key, mount);
    }

    /// Mounts each directory between a read-only or hidden path and its writable root on itself. Otherwise a
    /// session could rename such a directory and put another one there, and a later session would protect the
    /// wrong path.
    fn pin_above(&mut self, path: &Path) {
        for above in path.ancestors().skip(1) {
            if self.mounts.contains_key(above.as_os_str()) || above.parent().is_none() {
                return;
            }
            let pin = Mount::Hold { path: above.to_owned(), access: MountAccess::Write };
            self.mounts.insert(above.as_os_str().to_owned(), pin);
        }
    }

    /// The mount that applies to a path: the deepest one at or above it.
    fn mount_of(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|above| self.mounts.get(above.as_os_str()))
    }

    fn visible(&self, path: &Path) -> bool {
        match self.mount_of(path) {
            None => self.whole,
            Some(mount) => matches!(mount, Mount::Bind { .. } | Mount::Hold { .. }),
        }
    }

    fn writable(&self, path: &Path) -> bool {
        matches!(
            self.mount_of(path),
            Some(
                Mount::Bind { access: MountAccess::Write, .. }
                    | Mount::Hold { access: MountAccess::Write, .. }
            )
        )
    }
}

/// Directories of the user's home that the view rebuilds from their current entries, so that later entries do
/// not appear in the view. A directory that the session can write is not rebuilt.
fn rebuilt_directories(
    survey: &FileSurvey,
) -> impl Iterator<Item = (&PathBuf, &BTreeMap<PathBuf, DirectoryEntry>)> {
    let live = |directory: &Path| {
        let writable = survey.writable.iter().chain([&survey.workspace]);
        // A home below a private directory is not visible in the view.
        writable.chain(survey.layout.system.keys()).any(|root| directory.starts_with(root))
    };
    survey.layout.opened.iter().filter(move |(directory, _)| !live(directory))
}

fn links(survey: &FileSurvey, whole: bool) -> Vec<Mount> {
    let at_root = survey.layout.links.iter().filter(|_| !whole);
    let in_home =
        rebuilt_directories(survey).flat_map(|(_, entries)| entries).filter_map(|(path, entry)| {
            match entry {
                DirectoryEntry::Link(target) => Some((path, target)),
                DirectoryEntry::Real(_) => None,
            }
        });
    let link = |(path, target): (&PathBuf, &PathBuf)| Mount::Link {
        path: path.clone(),
        target: target.clone(),
    };
    at_root.chain(in_home.filter(|_| whole)).map(link).collect()
}

/// Paths that must be visible wherever they lie, with their access.
fn exposed(policy: &Policy, survey: &FileSurvey) -> Vec<(PathBuf, MountAccess)> {
    let workspace = match policy.workspace {
        WorkspaceAccess::Read => MountAccess::Read,
        WorkspaceAccess::Write => MountAccess::Write,
    };
    let reading = |path: &PathBuf| (path.clone(), MountAccess::Read);
    let root = Path::new("/");
    let readable = survey.readable.iter().filter(|path| *path != root).map(reading);
    let writable = survey.writable.iter().filter(|path| *path != root);
    readable
        .chain(survey.node_files.iter().map(reading))
        .chain(survey.needed().map(reading))
        .chain(writable.map(|path| (path.clone(), MountAccess::Write)))
        .chain([(survey.workspace.clone(), workspace)])
        .chain(survey.family.iter().map(|path| (path.clone(), workspace)))
        .chain(survey.tmp.iter().map(|path| (path.clone(), MountAccess::Write)))
        .collect()
}

/// All candidate mounts, parents before children. The last mount at a path wins.
fn layers(policy: &Policy, survey: &FileSurvey, exposed: &[(PathBuf, MountAccess)]) -> Vec<Mount> {
    let private = private(&policy.limits, survey);
    let system = survey.layout.system.iter().filter(|(path, _)| path.starts_with("/sys"));
    let hidden = survey.hidden.iter().chain(system).map(|(path, kind)| {
        let holds = exposed.iter().any(|(inner, _)| inner != path && inner.starts_with(path));
        match (kind, holds) {
            (PathKind::Directory, true) => Mount::Shell { path: path.clone() },
            _ => Mount::Hide { path: path.clone(), kind: *kind },
        }
    });
    let sockets = survey.sockets.covered.iter().map(|path| Mount::Cover { path: path.clone() });
    let bound = exposed.iter().map(|(path, access)| Mount::Bind {
        path: path.clone(),
        kind: PathKind::Directory,
        access: *access,
    });
    let protected = survey.names.protected.keys();
    let protected =
        protected.map(|path| Mount::Hold { path: path.clone(), access: MountAccess::Read });
    let whole = survey.readable.iter().any(|path| path == Path::new("/"));
    let opened = rebuilt_directories(survey).filter(|_| whole).flat_map(|(directory, entries)| {
        let shell = Mount::Shell { path: directory.clone() };
        let seen = entries.iter().filter_map(|(path, entry)| match entry {
            DirectoryEntry::Real(kind) if !survey.hidden.contains_key(path) => {
                Some(Mount::Bind { path: path.clone(), kind: *kind, access: MountAccess::Read })
            }
            DirectoryEntry::Real(_) | DirectoryEntry::Link(_) => None,
        });
        std::iter::once(shell).chain(seen).collect::<Vec<_>>()
    });
    let mut layers: Vec<Mount> =
        private.into_iter().chain(sockets).chain(hidden).chain(opened).chain(bound).collect();
    layers.extend(protected);
    // The sort is stable: mounts of the same depth keep their order.
    layers.sort_by_cached_key(depth);
    layers
}

fn depth(mount: &Mount) -> usize {
    mount.path().map_or(0, |path| path.components().count())
}

fn private(limits: &Limits, survey: &FileSurvey) -> Vec<Mount> {
    let small = Some(SMALL_BYTES.min(limits.tmp_bytes.unwrap_or(SMALL_BYTES)));
    [("/tmp", limits.tmp_bytes, 0o1777), ("/var/tmp", small, 0o1777), ("/run", small, 0o755)]
        .into_iter()
        .filter(|(path, ..)| survey.layout.system.contains_key(Path::new(path)) || *path == "/tmp")
        .map(|(path, bytes, mode)| Mount::Private { path: path.into(), bytes, mode })
        .collect()
}

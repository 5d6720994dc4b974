//! The view of the files at level `full`: what is bound, what is private, what is hidden, in the
//! order in which it must be mounted. What lies deeper is mounted later, and so wins.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use windlass_protocol::policy::{Limits, Policy, WorkspaceAccess};

use super::{Access, Kind, Mount};
use crate::survey::{Entry, Place};

/// What `/var/tmp` and `/run` may hold.
const SMALL_BYTES: u64 = 64 << 20;

pub(super) fn build(policy: &Policy, place: &Place) -> Vec<Mount> {
    let whole = place.readable.iter().any(|path| path == Path::new("/"));
    let all_writable = place.writable.iter().any(|path| path == Path::new("/"));
    let first = match (whole, all_writable) {
        (true, false) => Mount::Machine { access: Access::Read },
        (true, true) => Mount::Machine { access: Access::Write },
        (false, _) => Mount::Empty,
    };
    let mut view = View { mounts: BTreeMap::new(), whole };
    let exposed = exposed(policy, place);
    for layer in layers(policy, place, &exposed) {
        view.add(layer);
    }
    let mut mounts: Vec<Mount> = view.mounts.into_values().collect();
    mounts.sort_by_cached_key(depth);
    let shm_bytes = policy.limits.tmp_bytes;
    let links = links(place, whole);
    std::iter::once(first)
        .chain(mounts)
        .chain(links)
        .chain([Mount::Processes, Mount::Devices { shm_bytes }])
        .collect()
}

struct View {
    /// By path, as text: all of them are without links and detours, and text is sooner compared.
    mounts: BTreeMap<OsString, Mount>,
    whole: bool,
}

impl View {
    /// Takes a mount in, unless the view is so already without it.
    fn add(&mut self, mount: Mount) {
        let Some(path) = mount.path() else { return };
        let needed = match &mount {
            Mount::Hide { .. } | Mount::Cover { .. } | Mount::Shell { .. } => self.visible(path),
            Mount::Hold { .. } => self.writable(path),
            Mount::Bind { access: Access::Read, .. } => !self.visible(path) || self.writable(path),
            _ => true,
        };
        if !needed {
            return;
        }
        let takes_away = matches!(
            mount,
            Mount::Bind { access: Access::Read, .. }
                | Mount::Hold { access: Access::Read, .. }
                | Mount::Hide { .. }
                | Mount::Cover { .. }
                | Mount::Shell { .. }
        );
        if takes_away && self.writable(path) {
            self.pin_above(path);
        }
        let key = path.as_os_str().to_owned();
        self.mounts.insert(key, mount);
    }

    /// A directory above a path that is read-only or hidden could be renamed, and another one put in its
    /// place; a later session would look for the path there. So each directory up to the writable root is
    /// mounted on itself.
    fn pin_above(&mut self, path: &Path) {
        for above in path.ancestors().skip(1) {
            if self.mounts.contains_key(above.as_os_str()) || above.parent().is_none() {
                return;
            }
            let pin = Mount::Hold { path: above.to_owned(), access: Access::Write };
            self.mounts.insert(above.as_os_str().to_owned(), pin);
        }
    }

    /// The mount that decides about a path: the deepest at or above it.
    fn decides(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|above| self.mounts.get(above.as_os_str()))
    }

    fn visible(&self, path: &Path) -> bool {
        match self.decides(path) {
            None => self.whole,
            Some(mount) => matches!(mount, Mount::Bind { .. } | Mount::Hold { .. }),
        }
    }

    fn writable(&self, path: &Path) -> bool {
        matches!(
            self.decides(path),
            Some(
                Mount::Bind { access: Access::Write, .. }
                    | Mount::Hold { access: Access::Write, .. }
            )
        )
    }
}

/// Directories of the user's home that are not bound but put together from what is in them now, so
/// that what comes later is not seen: none that the session can write to.
fn put_together(place: &Place) -> impl Iterator<Item = (&PathBuf, &BTreeMap<PathBuf, Entry>)> {
    let live = |directory: &Path| {
        let writable = place.writable.iter().chain([&place.workspace]);
        // What is private is nobody's home inside.
        writable.chain(place.system.keys()).any(|root| directory.starts_with(root))
    };
    place.opened.iter().filter(move |(directory, _)| !live(directory))
}

fn links(place: &Place, whole: bool) -> Vec<Mount> {
    let at_root = place.links.iter().filter(|_| !whole);
    let in_home = put_together(place).flat_map(|(_, entries)| entries).filter_map(
        |(path, entry)| match entry {
            Entry::Link(target) => Some((path, target)),
            Entry::Real(_) => None,
        },
    );
    let link = |(path, target): (&PathBuf, &PathBuf)| Mount::Link {
        path: path.clone(),
        target: target.clone(),
    };
    at_root.chain(in_home.filter(|_| whole)).map(link).collect()
}

/// What must be seen wherever it lies, and how.
fn exposed(policy: &Policy, place: &Place) -> Vec<(PathBuf, Access)> {
    let workspace = match policy.workspace {
        WorkspaceAccess::Read => Access::Read,
        WorkspaceAccess::Write => Access::Write,
    };
    let reading = |path: &PathBuf| (path.clone(), Access::Read);
    let root = Path::new("/");
    let readable = place.readable.iter().filter(|path| *path != root).map(reading);
    let writable = place.writable.iter().filter(|path| *path != root);
    readable
        .chain(place.program.iter().map(reading))
        .chain(place.needed().map(reading))
        .chain(writable.map(|path| (path.clone(), Access::Write)))
        .chain([(place.workspace.clone(), workspace)])
        .chain(place.family.iter().map(|path| (path.clone(), workspace)))
        .collect()
}

/// Every mount that may be wanted, parents before what is in them; at one path the last wins.
fn layers(policy: &Policy, place: &Place, exposed: &[(PathBuf, Access)]) -> Vec<Mount> {
    let private = private(&policy.limits, place);
    let system = place.system.iter().filter(|(path, _)| path.starts_with("/sys"));
    let hidden = place.hidden.iter().chain(system).map(|(path, kind)| {
        let holds = exposed.iter().any(|(inner, _)| inner != path && inner.starts_with(path));
        match (kind, holds) {
            (Kind::Directory, true) => Mount::Shell { path: path.clone() },
            _ => Mount::Hide { path: path.clone(), kind: *kind },
        }
    });
    let sockets = place.sockets.iter().map(|path| Mount::Cover { path: path.clone() });
    let bound = exposed.iter().map(|(path, access)| Mount::Bind {
        path: path.clone(),
        kind: Kind::Directory,
        access: *access,
    });
    let protected = place.protected.keys();
    let protected = protected.map(|path| Mount::Hold { path: path.clone(), access: Access::Read });
    let whole = place.readable.iter().any(|path| path == Path::new("/"));
    let opened = put_together(place).filter(|_| whole).flat_map(|(directory, entries)| {
        let shell = Mount::Shell { path: directory.clone() };
        let seen = entries.iter().filter_map(|(path, entry)| match entry {
            Entry::Real(kind) if !place.hidden.contains_key(path) => {
                Some(Mount::Bind { path: path.clone(), kind: *kind, access: Access::Read })
            }
            Entry::Real(_) | Entry::Link(_) => None,
        });
        std::iter::once(shell).chain(seen).collect::<Vec<_>>()
    });
    let mut layers: Vec<Mount> =
        private.into_iter().chain(sockets).chain(hidden).chain(opened).chain(bound).collect();
    layers.extend(protected);
    // Stable: what comes later in the list stays later at its depth.
    layers.sort_by_cached_key(depth);
    layers
}

fn depth(mount: &Mount) -> usize {
    mount.path().map_or(0, |path| path.components().count())
}

fn private(limits: &Limits, place: &Place) -> Vec<Mount> {
    let small = Some(SMALL_BYTES.min(limits.tmp_bytes.unwrap_or(SMALL_BYTES)));
    [("/tmp", limits.tmp_bytes, 0o1777), ("/var/tmp", small, 0o1777), ("/run", small, 0o755)]
        .into_iter()
        .filter(|(path, ..)| place.system.contains_key(Path::new(path)) || *path == "/tmp")
        .map(|(path, bytes, mode)| Mount::Private { path: path.into(), bytes, mode })
        .collect()
}

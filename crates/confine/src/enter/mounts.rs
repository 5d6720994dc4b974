//! Builds a view: a copy of the machine's mounts, or an empty root, changed as the plan says and then
//! entered. Paths are opened from descriptors and without following symlinks, so a user who can write to a
//! directory on the way cannot redirect a mount.

mod calls;
mod devices;
mod processes;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

pub(super) use self::calls::source;
use self::calls::{MountFlags, attach, clone_tree, make_tmpfs, map_owner, set_flags, target};
use super::{ConfineStep, OwnUser, OwnerMaps, PrepareError, StepError, c_path, relative};
use crate::plan::{Mount, MountAccess, PathKind};

/// The mount point of the new root while it is built. It exists on every machine, and no path below it is
/// bound into a view.
const BUILD_AT: &CStr = c"/proc";

/// The mount point of the masks while the view is built. The private `/dev` then covers them.
const MASKS: &CStr = c"dev";

/// The steps of a view, prepared in memory.
#[derive(Debug)]
pub(super) struct PreparedMounts {
    steps: Vec<MountStep>,
    /// The session's own user id, which gets the private directories.
    own_uid: Option<u32>,
}

/// A [`Mount`] with its paths as C strings.
#[derive(Debug)]
enum MountStep {
    Machine { access: MountAccess },
    Empty,
    Bind(BindStep),
    Hold { at: CString, access: MountAccess },
    Private { at: ViewPath, size: CString, mode: CString },
    Hide { at: ViewPath },
    Cover { at: ViewPath },
    Shell { at: ViewPath },
    Link { at: CString, to: CString },
    Devices { shm_size: CString },
    Processes,
}

#[derive(Debug)]
struct BindStep {
    from: CString,
    to: ViewPath,
    kind: PathKind,
    access: MountAccess,
    /// The user namespace that maps the path's owner to the session's own user id.
    owner_map: Option<OwnedFd>,
}

/// A path in the view, and the directories above it, which may have to be created.
#[derive(Debug)]
struct ViewPath {
    path: CString,
    above: Vec<CString>,
}

impl ViewPath {
    fn new(path: &Path) -> Result<Self, std::ffi::NulError> {
        let mut above = path
            .ancestors()
            .skip(1)
            .filter(|above| *above != Path::new("/"))
            .map(relative)
            .collect::<Result<Vec<_>, _>>()?;
        above.reverse();
        Ok(Self { path: relative(path)?, above })
    }
}

/// The `size=` option of a tmpfs; 0 means no limit.
fn size(bytes: Option<u64>) -> CString {
    CString::new(bytes.unwrap_or(0).to_string()).expect("digits hold no NUL")
}

impl PreparedMounts {
    pub fn new(view: &[Mount], own_user: Option<&OwnUser>) -> Result<Self, PrepareError> {
        let mut owner_maps = own_user.map(OwnerMaps::new);
        let steps = view
            .iter()
            .map(|mount| {
                Ok(match mount {
                    Mount::Machine { access } => MountStep::Machine { access: *access },
                    Mount::Empty => MountStep::Empty,
                    Mount::Bind { path, kind, access } => MountStep::Bind(BindStep {
                        from: c_path(path)?,
                        to: ViewPath::new(path)?,
                        kind: *kind,
                        access: *access,
                        owner_map: match (&mut owner_maps, access) {
                            (Some(maps), MountAccess::Write) => Some(maps.of(path)?),
                            (Some(_), MountAccess::Read) | (None, _) => None,
                        },
                    }),
                    Mount::Hold { path, access } => {
                        MountStep::Hold { at: relative(path)?, access: *access }
                    }
                    Mount::Private { path, bytes, mode } => MountStep::Private {
                        at: ViewPath::new(path)?,
                        size: size(*bytes),
                        mode: CString::new(format!("{mode:o}"))?,
                    },
                    Mount::Hide { path, .. } => MountStep::Hide { at: ViewPath::new(path)? },
                    Mount::Cover { path } => MountStep::Cover { at: ViewPath::new(path)? },
                    Mount::Shell { path } => MountStep::Shell { at: ViewPath::new(path)? },
                    Mount::Link { path, target } => {
                        MountStep::Link { at: relative(path)?, to: c_path(target)? }
                    }
                    Mount::Devices { shm_bytes } => {
                        MountStep::Devices { shm_size: size(*shm_bytes) }
                    }
                    Mount::Processes => MountStep::Processes,
                })
            })
            .collect::<Result<_, PrepareError>>()?;
        Ok(Self { steps, own_uid: own_user.map(OwnUser::uid) })
    }

    /// Builds the view and enters it. The caller is in a new mount namespace.
    pub fn build(&self) -> Result<(), StepError> {
        let view = self.begin()?;
        self.finish(&view, &Self { steps: Vec::new(), own_uid: self.own_uid })
    }

    /// Builds the view without entering it.
    pub fn begin(&self) -> Result<UnenteredView, StepError> {
        calls::stop_propagation().map_err(StepError::at(ConfineStep::OwnMounts))?;
        let Some(first) = self.steps.first() else {
            return Err(StepError::at(ConfineStep::Root)(Errno::INVAL));
        };
        let failed = StepError::at(ConfineStep::Root);
        let root = make_root(first).map_err(&failed)?;
        let masks = self.root(root.as_fd()).make_masks().map_err(&failed)?;
        let view = UnenteredView { root, masks };
        for index in 1..self.steps.len() {
            self.perform(&view, index)?;
        }
        Ok(view)
    }

    /// Performs the steps of `late` and enters the view.
    pub fn finish(&self, view: &UnenteredView, late: &Self) -> Result<(), StepError> {
        for index in 0..late.steps.len() {
            late.perform(view, index)?;
        }
        let root = self.root(view.root.as_fd());
        for step in &self.steps {
            if let MountStep::Shell { at } = step {
                root.seal(&at.path).map_err(StepError::at(ConfineStep::Private))?;
            }
        }
        if matches!(self.steps.first(), Some(MountStep::Empty)) {
            set_flags(root.root, MountFlags::READ_ONLY)
                .map_err(StepError::at(ConfineStep::Root))?;
        }
        calls::pivot(root.root).map_err(StepError::at(ConfineStep::Pivot))
    }

    fn perform(&self, view: &UnenteredView, index: usize) -> Result<(), StepError> {
        let root = self.root(view.root.as_fd());
        root.perform(&self.steps[index], &view.masks).map_err(|(step, errno)| StepError {
            index: u16::try_from(index).unwrap_or(u16::MAX),
            ..StepError::at(step)(errno)
        })
    }

    fn root<'a>(&self, root: BorrowedFd<'a>) -> ViewRoot<'a> {
        ViewRoot { root, own_uid: self.own_uid }
    }
}

/// Makes an id-mapped copy of the mounts at a path and drops it. Mounts nothing.
pub(super) fn try_map_owner(path: &CStr, owner_map: BorrowedFd<'_>) -> Result<(), StepError> {
    let tree = source(path)
        .and_then(|from| clone_tree(from.as_fd()))
        .map_err(StepError::at(ConfineStep::Bind))?;
    map_owner(tree.as_fd(), owner_map).map_err(StepError::at(ConfineStep::MapOwner))
}

/// A view that is built and not yet entered.
#[derive(Debug)]
pub(crate) struct UnenteredView {
    root: OwnedFd,
    masks: Masks,
}

fn make_root(first: &MountStep) -> Result<OwnedFd, Errno> {
    let tree = match first {
        MountStep::Machine { access } => {
            let machine = source(c"/")?;
            let tree = clone_tree(machine.as_fd())?;
            let attributes = match access {
                MountAccess::Read => MountFlags::READ_ONLY,
                MountAccess::Write => MountFlags::NO_SUID,
            };
            set_flags(tree.as_fd(), attributes.with_all_below())?;
            tree
        }
        _ => make_tmpfs(c"16777216", c"755")?,
    };
    let base = rustix::fs::open(BUILD_AT, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    attach(tree.as_fd(), base.as_fd())?;
    // The tree's descriptor now refers to the mounted root.
    for name in [c"dev", c"proc", c"tmp"] {
        match rustix::fs::mkdirat(&tree, name, Mode::from(0o755)) {
            Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(tree)
}

/// An empty directory and an empty file without access rights, which are bound over hidden paths.
#[derive(Debug)]
struct Masks {
    directory: OwnedFd,
    file: OwnedFd,
}

impl Masks {
    fn of(&self, file_type: FileType) -> BorrowedFd<'_> {
        match file_type {
            FileType::Directory => self.directory.as_fd(),
            _ => self.file.as_fd(),
        }
    }
}

fn file_type(file: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode))
}

struct ViewRoot<'a> {
    root: BorrowedFd<'a>,
    own_uid: Option<u32>,
}

impl ViewRoot<'_> {
    fn make_masks(&self) -> Result<Masks, Errno> {
        let tmpfs = make_tmpfs(c"65536", c"700")?;
        attach(tmpfs.as_fd(), target(self.root, MASKS)?.as_fd())?;
        let nothing = Mode::empty();
        rustix::fs::mkdirat(&tmpfs, c"directory", nothing)?;
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&tmpfs, c"file", create, nothing)?;
        let open = |name: &CStr| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&tmpfs, name, flags, nothing)
        };
        Ok(Masks { directory: open(c"directory")?, file: open(c"file")? })
    }

    fn perform(&self, step: &MountStep, masks: &Masks) -> Result<(), (ConfineStep, Errno)> {
        let named = |step: ConfineStep| move |errno: Errno| (step, errno);
        match step {
            MountStep::Machine { .. } | MountStep::Empty => Ok(()),
            MountStep::Bind(bind) => self.bind(bind),
            MountStep::Hold { at, access } => {
                self.hold(at, *access).map_err(named(ConfineStep::Hold))
            }
            MountStep::Private { at, size, mode } => {
                self.private(at, size, mode, self.own_uid).map_err(named(ConfineStep::Private))
            }
            MountStep::Shell { at } => {
                self.private(at, c"1048576", c"755", None).map_err(named(ConfineStep::Private))
            }
            MountStep::Hide { at } => self.hide(at, masks).map_err(named(ConfineStep::Hide)),
            MountStep::Cover { at } => self.cover(at, masks).map_err(named(ConfineStep::Hide)),
            MountStep::Link { at, to } => {
                rustix::fs::symlinkat(to.as_c_str(), self.root, at.as_c_str())
                    .map_err(named(ConfineStep::Root))
            }
            MountStep::Devices { shm_size } => {
                devices::make(self.root, shm_size).map_err(named(ConfineStep::Devices))
            }
            MountStep::Processes => {
                processes::make(self.root, masks.file.as_fd(), masks.directory.as_fd())
                    .map_err(named(ConfineStep::Processes))
            }
        }
    }

    fn bind(&self, bind: &BindStep) -> Result<(), (ConfineStep, Errno)> {
        let named = |step: ConfineStep| move |errno: Errno| (step, errno);
        let from = match source(&bind.from) {
            // Removed since the survey: there is nothing to read. A writable path must exist.
            Err(Errno::NOENT) if bind.access == MountAccess::Read => return Ok(()),
            other => other.map_err(named(ConfineStep::Bind))?,
        };
        let tree = clone_tree(from.as_fd()).map_err(named(ConfineStep::Bind))?;
        if let Some(owner_map) = &bind.owner_map {
            map_owner(tree.as_fd(), owner_map.as_fd()).map_err(named(ConfineStep::MapOwner))?;
        }
        self.attach_bound(bind, &from, &tree).map_err(named(ConfineStep::Bind))
    }

    fn attach_bound(&self, bind: &BindStep, from: &OwnedFd, tree: &OwnedFd) -> Result<(), Errno> {
        let attributes = match bind.access {
            MountAccess::Read => MountFlags::READ_ONLY,
            MountAccess::Write => MountFlags::NO_SUID,
        };
        set_flags(tree.as_fd(), attributes.with_all_below())?;
        let kind = match file_type(from)? {
            FileType::Directory => PathKind::Directory,
            _ if bind.kind == PathKind::Directory => PathKind::File,
            _ => bind.kind,
        };
        attach(tree.as_fd(), self.mount_point(&bind.to, kind)?.as_fd())
    }

    /// Mounts a path on itself. A symlink is not followed: the symlink itself is mounted.
    fn hold(&self, at: &CStr, access: MountAccess) -> Result<(), Errno> {
        let mount = || {
            let location = calls::target_or_link(self.root, at)?;
            let tree = clone_tree(location.as_fd())?;
            let attributes = match access {
                MountAccess::Read => MountFlags::READ_ONLY,
                MountAccess::Write => MountFlags::NO_SUID,
            };
            set_flags(tree.as_fd(), attributes.with_all_below())?;
            attach(tree.as_fd(), location.as_fd())
        };
        match mount() {
            // Its owner has removed it since the survey, perhaps just now.
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Mounts an empty directory. Its owner is `owner`, or else the user of this process.
    fn private(
        &self,
        at: &ViewPath,
        size: &CStr,
        mode: &CStr,
        owner: Option<u32>,
    ) -> Result<(), Errno> {
        let tmpfs = make_tmpfs(size, mode)?;
        if let Some(owner) = owner {
            let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
            rustix::fs::chownat(&tmpfs, c"", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        }
        attach(tmpfs.as_fd(), self.mount_point(at, PathKind::Directory)?.as_fd())
    }

    fn hide(&self, at: &ViewPath, masks: &Masks) -> Result<(), Errno> {
        let location = match target(self.root, &at.path) {
            // Removed since the survey: nothing to hide.
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(Errno::ACCESS) => return self.hide_above(at, masks),
            other => other?,
        };
        calls::cover(masks.of(file_type(&location)?), location.as_fd())
    }

    /// Covers a socket or a directory that another user may own. The owner can remove or replace it at any
    /// time, so any other kind of file is ignored.
    fn cover(&self, at: &ViewPath, masks: &Masks) -> Result<(), Errno> {
        let location = match target(self.root, &at.path) {
            Ok(location) => location,
            Err(Errno::ACCESS) => return self.hide_above(at, masks),
            // If this process cannot open the path, the session, which has fewer rights, cannot either.
            Err(_) => return Ok(()),
        };
        let file_type = file_type(&location)?;
        if !matches!(file_type, FileType::Socket | FileType::Directory) {
            return Ok(());
        }
        match calls::cover(masks.of(file_type), location.as_fd()) {
            // Removed in the meantime.
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Covers the nearest accessible directory above a path. A directory of another user that this process
    /// cannot enter holds nothing that the session may see. If its owner makes it accessible later, the
    /// session still sees an empty directory.
    fn hide_above(&self, at: &ViewPath, masks: &Masks) -> Result<(), Errno> {
        for above in at.above.iter().rev() {
            match target(self.root, above) {
                Err(Errno::ACCESS) => {}
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                found => return calls::cover(masks.directory.as_fd(), found?.as_fd()),
            }
        }
        Ok(())
    }

    /// Opens a mount point in the view. Creates it if it is missing, which works only in directories that the
    /// view has made itself.
    fn mount_point(&self, at: &ViewPath, kind: PathKind) -> Result<OwnedFd, Errno> {
        match target(self.root, &at.path) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        if let Err(Errno::NOENT) = self.make_mount_point(&at.path, kind) {
            for above in &at.above {
                self.make_directory(above)?;
            }
            self.make_mount_point(&at.path, kind)?;
        }
        target(self.root, &at.path)
    }

    fn make_mount_point(&self, at: &CStr, kind: PathKind) -> Result<(), Errno> {
        match kind {
            PathKind::Directory => self.make_directory(at),
            PathKind::File => {
                let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(self.root, at, create, Mode::from(0o644)).map(drop)
            }
        }
    }

    fn make_directory(&self, at: &CStr) -> Result<(), Errno> {
        match rustix::fs::mkdirat(self.root, at, Mode::from(0o755)) {
            // For an existing directory some read-only file systems return EROFS instead of EEXIST.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(Errno::ROFS)
                if rustix::fs::statat(self.root, at, AtFlags::SYMLINK_NOFOLLOW).is_ok() =>
            {
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    fn seal(&self, at: &CStr) -> Result<(), Errno> {
        set_flags(target(self.root, at)?.as_fd(), MountFlags::READ_ONLY)
    }
}

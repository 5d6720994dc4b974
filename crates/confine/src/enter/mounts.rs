//! Building the view: a copy of the machine's mounts (or an empty root) beside the old one, changed
//! as the plan says, and then entered. Paths are opened without following links, from descriptors:
//! whoever can write to a directory on the way cannot lead a mount astray.

mod calls;
mod devices;
mod processes;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

pub(super) use self::calls::source;
use self::calls::{Attributes, attach, clone_tree, make_tmpfs, set_attributes, target};
use super::{Failed, PrepareError, Step, c_path, relative};
use crate::plan::{Access, Kind, Mount};

/// Where the new root is put together. It must exist everywhere, and nothing that is bound into
/// the view lies below it.
const BASE: &CStr = c"/proc";

/// The masks lie here while the view is built; the private `/dev` then covers them.
const MASKS: &CStr = c"dev";

#[derive(Debug)]
pub(super) struct Mounts {
    steps: Vec<Action>,
}

#[derive(Debug)]
enum Action {
    Machine { access: Access },
    Empty,
    Bind { from: CString, to: Spot, kind: Kind, access: Access },
    Hold { at: CString, access: Access },
    Private { at: Spot, size: CString, mode: CString },
    Hide { at: Spot },
    Cover { at: Spot },
    Shell { at: Spot },
    Link { at: CString, to: CString },
    Devices { shm_size: CString },
    Processes,
}

/// A place in the view, and the directories above it, for where they have to be made.
#[derive(Debug)]
struct Spot {
    path: CString,
    above: Vec<CString>,
}

impl Spot {
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

/// `size=` of a tmpfs; 0 is no limit of its own.
fn size(bytes: Option<u64>) -> CString {
    CString::new(bytes.unwrap_or(0).to_string()).expect("digits hold no NUL")
}

impl Mounts {
    pub fn new(view: &[Mount]) -> Result<Self, PrepareError> {
        let steps = view
            .iter()
            .map(|mount| {
                Ok(match mount {
                    Mount::Machine { access } => Action::Machine { access: *access },
                    Mount::Empty => Action::Empty,
                    Mount::Bind { path, kind, access } => Action::Bind {
                        from: c_path(path)?,
                        to: Spot::new(path)?,
                        kind: *kind,
                        access: *access,
                    },
                    Mount::Hold { path, access } => {
                        Action::Hold { at: relative(path)?, access: *access }
                    }
                    Mount::Private { path, bytes, mode } => Action::Private {
                        at: Spot::new(path)?,
                        size: size(*bytes),
                        mode: CString::new(format!("{mode:o}"))?,
                    },
                    Mount::Hide { path, .. } => Action::Hide { at: Spot::new(path)? },
                    Mount::Cover { path } => Action::Cover { at: Spot::new(path)? },
                    Mount::Shell { path } => Action::Shell { at: Spot::new(path)? },
                    Mount::Link { path, target } => {
                        Action::Link { at: relative(path)?, to: c_path(target)? }
                    }
                    Mount::Devices { shm_bytes } => Action::Devices { shm_size: size(*shm_bytes) },
                    Mount::Processes => Action::Processes,
                })
            })
            .collect::<Result<_, std::ffi::NulError>>()?;
        Ok(Self { steps })
    }

    /// Builds the view and enters it. The caller is in a mount namespace of its own.
    pub fn build(&self) -> Result<(), Failed> {
        let begun = self.begin()?;
        self.finish(&begun, &Self { steps: Vec::new() })
    }

    /// Builds the view, beside the files as they are.
    pub fn begin(&self) -> Result<Begun, Failed> {
        calls::separate().map_err(Failed::at(Step::OwnMounts))?;
        let Some(first) = self.steps.first() else {
            return Err(Failed::at(Step::Root)(Errno::INVAL));
        };
        let failed = Failed::at(Step::Root);
        let root = make_root(first).map_err(&failed)?;
        let masks = View { root: root.as_fd() }.make_masks().map_err(&failed)?;
        let begun = Begun { root, masks };
        for place in 1..self.steps.len() {
            self.perform(&begun, place)?;
        }
        Ok(begun)
    }

    /// Does what came late, too, and enters the view.
    pub fn finish(&self, begun: &Begun, late: &Self) -> Result<(), Failed> {
        for place in 0..late.steps.len() {
            late.perform(begun, place)?;
        }
        let view = View { root: begun.root.as_fd() };
        for step in &self.steps {
            if let Action::Shell { at } = step {
                view.seal(&at.path).map_err(Failed::at(Step::Private))?;
            }
        }
        if matches!(self.steps.first(), Some(Action::Empty)) {
            set_attributes(view.root, Attributes::READ_ONLY).map_err(Failed::at(Step::Root))?;
        }
        calls::pivot(view.root).map_err(Failed::at(Step::Pivot))
    }

    fn perform(&self, begun: &Begun, place: usize) -> Result<(), Failed> {
        let view = View { root: begun.root.as_fd() };
        view.perform(&self.steps[place], &begun.masks).map_err(|(step, errno)| Failed {
            place: u16::try_from(place).unwrap_or(u16::MAX),
            ..Failed::at(step)(errno)
        })
    }
}

/// A view that is not entered yet.
#[derive(Debug)]
pub(crate) struct Begun {
    root: OwnedFd,
    masks: Masks,
}

fn make_root(first: &Action) -> Result<OwnedFd, Errno> {
    let tree = match first {
        Action::Machine { access } => {
            let machine = source(c"/")?;
            let tree = clone_tree(machine.as_fd())?;
            let attributes = match access {
                Access::Read => Attributes::READ_ONLY,
                Access::Write => Attributes::NO_SUID,
            };
            set_attributes(tree.as_fd(), attributes.with_all_below())?;
            tree
        }
        _ => make_tmpfs(c"16777216", c"755")?,
    };
    let base = rustix::fs::open(BASE, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    attach(tree.as_fd(), base.as_fd())?;
    // The descriptor of the tree stands for what is mounted now.
    for name in [c"dev", c"proc", c"tmp"] {
        match rustix::fs::mkdirat(&tree, name, Mode::from(0o755)) {
            Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(tree)
}

/// What is bound over hidden paths: nobody can open them, and nothing is in them.
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

struct View<'a> {
    root: BorrowedFd<'a>,
}

impl View<'_> {
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

    fn perform(&self, step: &Action, masks: &Masks) -> Result<(), (Step, Errno)> {
        let named = |step: Step| move |errno: Errno| (step, errno);
        match step {
            Action::Machine { .. } | Action::Empty => Ok(()),
            Action::Bind { from, to, kind, access } => {
                self.bind(from, to, *kind, *access).map_err(named(Step::Bind))
            }
            Action::Hold { at, access } => self.hold(at, *access).map_err(named(Step::Hold)),
            Action::Private { at, size, mode } => {
                self.private(at, size, mode).map_err(named(Step::Private))
            }
            Action::Shell { at } => {
                self.private(at, c"1048576", c"755").map_err(named(Step::Private))
            }
            Action::Hide { at } => self.hide(at, masks).map_err(named(Step::Hide)),
            Action::Cover { at } => self.cover(at, masks).map_err(named(Step::Hide)),
            Action::Link { at, to } => {
                rustix::fs::symlinkat(to.as_c_str(), self.root, at.as_c_str())
                    .map_err(named(Step::Root))
            }
            Action::Devices { shm_size } => {
                devices::make(self.root, shm_size).map_err(named(Step::Devices))
            }
            Action::Processes => {
                processes::make(self.root, masks.file.as_fd(), masks.directory.as_fd())
                    .map_err(named(Step::Processes))
            }
        }
    }

    fn bind(&self, from: &CStr, to: &Spot, kind: Kind, access: Access) -> Result<(), Errno> {
        let from = match source(from) {
            // Gone since it was seen: there is nothing to read. What is written must be there.
            Err(Errno::NOENT) if access == Access::Read => return Ok(()),
            other => other?,
        };
        let tree = clone_tree(from.as_fd())?;
        let attributes = match access {
            Access::Read => Attributes::READ_ONLY,
            Access::Write => Attributes::NO_SUID,
        };
        set_attributes(tree.as_fd(), attributes.with_all_below())?;
        let kind = match file_type(&from)? {
            FileType::Directory => Kind::Directory,
            _ if kind == Kind::Directory => Kind::File,
            _ => kind,
        };
        attach(tree.as_fd(), self.spot(to, kind)?.as_fd())
    }

    /// Mounts what is at a path on itself. A link is not followed: it is the link that is mounted on.
    fn hold(&self, at: &CStr, access: Access) -> Result<(), Errno> {
        let mount = || {
            let place = calls::target_or_link(self.root, at)?;
            let tree = clone_tree(place.as_fd())?;
            let attributes = match access {
                Access::Read => Attributes::READ_ONLY,
                Access::Write => Attributes::NO_SUID,
            };
            set_attributes(tree.as_fd(), attributes.with_all_below())?;
            attach(tree.as_fd(), place.as_fd())
        };
        match mount() {
            // Its user has removed it since it was seen, perhaps just now.
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    fn private(&self, at: &Spot, size: &CStr, mode: &CStr) -> Result<(), Errno> {
        let tmpfs = make_tmpfs(size, mode)?;
        attach(tmpfs.as_fd(), self.spot(at, Kind::Directory)?.as_fd())
    }

    fn hide(&self, at: &Spot, masks: &Masks) -> Result<(), Errno> {
        let place = match target(self.root, &at.path) {
            // Gone since it was seen: nothing to hide.
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(Errno::ACCESS) => return self.hide_above(at, masks),
            other => other?,
        };
        calls::cover(masks.of(file_type(&place)?), place.as_fd())
    }

    /// Covers what another user may have put there, who can take it away or replace it at any time: a
    /// socket or a directory is covered, and nothing else is there to be covered.
    fn cover(&self, at: &Spot, masks: &Masks) -> Result<(), Errno> {
        let place = match target(self.root, &at.path) {
            Ok(place) => place,
            Err(Errno::ACCESS) => return self.hide_above(at, masks),
            // Where this process finds nothing, the session, with fewer rights, finds nothing either.
            Err(_) => return Ok(()),
        };
        let file_type = file_type(&place)?;
        if !matches!(file_type, FileType::Socket | FileType::Directory) {
            return Ok(());
        }
        match calls::cover(masks.of(file_type), place.as_fd()) {
            // Removed meanwhile.
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Covers the nearest directory above that can be reached. Another user's directory that is closed
    /// to this process is closed to the session: nothing in it was bound, and nothing in it is to be
    /// seen. A user that opens it later shows an empty one.
    fn hide_above(&self, at: &Spot, masks: &Masks) -> Result<(), Errno> {
        for above in at.above.iter().rev() {
            match target(self.root, above) {
                Err(Errno::ACCESS) => {}
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                found => return calls::cover(masks.directory.as_fd(), found?.as_fd()),
            }
        }
        Ok(())
    }

    /// The place in the view; made where it is missing, which only our own directories allow.
    fn spot(&self, at: &Spot, kind: Kind) -> Result<OwnedFd, Errno> {
        match target(self.root, &at.path) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        if let Err(Errno::NOENT) = self.make_place(&at.path, kind) {
            for above in &at.above {
                self.make_directory(above)?;
            }
            self.make_place(&at.path, kind)?;
        }
        target(self.root, &at.path)
    }

    fn make_place(&self, at: &CStr, kind: Kind) -> Result<(), Errno> {
        match kind {
            Kind::Directory => self.make_directory(at),
            Kind::File => {
                let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(self.root, at, create, Mode::from(0o644)).map(drop)
            }
        }
    }

    fn make_directory(&self, at: &CStr) -> Result<(), Errno> {
        match rustix::fs::mkdirat(self.root, at, Mode::from(0o755)) {
            // A read-only directory that exists says ROFS rather than EXIST on some file systems.
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
        set_attributes(target(self.root, at)?.as_fd(), Attributes::READ_ONLY)
    }
}

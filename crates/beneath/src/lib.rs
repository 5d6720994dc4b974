//! Access to files that a session can write. Node and keeper reach such files only through this crate.
//!
//! A [`Directory`] is held by its descriptor. Every path is relative to it, and the kernel (`openat2`)
//! resolves the path beneath it, without following symlinks. Operations that the kernel offers only for a
//! name (rename, unlink, link) use a descriptor of the directory that contains the name. So no path that a
//! session can write is resolved twice, and no entry that a session swaps meanwhile leads out of the
//! directory.
//!
//! [`copy_tree`](Directory::copy_tree) copies a tree for a fork, [`remove_tree`](Directory::remove_tree)
//! removes a tree, and [`measure_tree`](Directory::measure_tree) measures its size on the disk.
//!
//! Why rustix and not cap-std:
//!
//! - cap-std follows symlinks that stay beneath its root, and cannot refuse all of them.
//! - cap-std hides flags that hostile trees require: `O_NONBLOCK`, `RESOLVE_NO_XDEV`, `RENAME_NOREPLACE`.
//! - Without `openat2`, cap-std resolves paths itself. Here a kernel without `openat2` is an error.

mod copy;
mod ignorable;
mod measure;
mod remove;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fstat, fstatfs,
    linkat, mkdirat, openat, openat2, readlinkat, renameat, renameat_with, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

pub use copy::{CopyError, CopyLimits, CopyOmissions, SkippedDirectory};
pub use ignorable::{Ignorable, SkipRule};
pub use measure::{LinkedFiles, TreeMeter, TreeSize, Whole};
pub use remove::FreedSpace;

/// Maximum number of retries when something on a path was renamed during its resolution.
const RESOLVES_MAX: usize = 64;

/// Flags for a directory that only serves as the base of other calls.
pub const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Flags to read a file of any type: a pipe does not block, a terminal does not become the controlling
/// terminal.
pub const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// File systems that are interfaces of the kernel. Their files look regular, but the node reads other content
/// from them than the session would.
const KERNEL_FILE_SYSTEMS: [u64; 8] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
];

/// How symlinks on a path are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// A symlink anywhere on the path is an error.
    Refuse,
    /// A symlink is followed if its target is beneath the directory.
    Inside,
}

/// Opens `path` beneath `directory`.
pub fn open_beneath(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    links: Links,
) -> rustix::io::Result<OwnedFd> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let resolve = match links {
        Links::Refuse => beneath | ResolveFlags::NO_SYMLINKS,
        Links::Inside => beneath,
    };
    resolved(directory, path, flags, mode, resolve)
}

fn resolved(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let mut tries = 0;
    loop {
        match openat2(&directory, path, flags, mode, resolve) {
            // Something on the path was renamed, or a signal arrived.
            Err(Errno::AGAIN | Errno::INTR) if tries < RESOLVES_MAX => tries += 1,
            done => return done,
        }
    }
}

/// Whether a descriptor is on a file system that is an interface of the kernel.
pub fn is_of_kernel(file: impl AsFd) -> rustix::io::Result<bool> {
    let kind = u64::try_from(fstatfs(file)?.f_type).unwrap_or(0) & u64::from(u32::MAX);
    Ok(KERNEL_FILE_SYSTEMS.contains(&kind))
}

/// The file type in a `Stat`.
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A directory, held by a descriptor.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Directory> for OwnedFd {
    fn from(directory: Directory) -> Self {
        directory.0
    }
}

impl Directory {
    /// Opens a directory by a path that no session can change. Symlinks on the path are followed.
    pub fn trusted(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(CWD, path, DIRECTORY, Mode::empty())?))
    }

    /// Opens a directory by an absolute path that was recorded without symlinks. A symlink on the path was
    /// put there later, and is an error.
    pub fn recorded(path: &Path) -> io::Result<Self> {
        if !path.is_absolute() {
            return Err(Errno::INVAL.into());
        }
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Self(resolved(CWD, path, DIRECTORY, Mode::empty(), resolve)?))
    }

    /// Opens a directory beneath this one.
    pub fn directory(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        self.open(path.as_ref(), DIRECTORY, Mode::empty()).map(Self)
    }

    /// Opens a directory beneath this one, and creates it and its parents if they are missing.
    pub fn make_directory(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let mut reached: Option<Self> = None;
        for part in path.as_ref().components() {
            let Component::Normal(name) = part else { return Err(Errno::INVAL.into()) };
            let here = reached.as_ref().unwrap_or(self);
            match mkdirat(&here.0, name, Mode::from_raw_mode(mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            reached = Some(here.directory(name)?);
        }
        reached.ok_or_else(|| Errno::INVAL.into())
    }

    /// Creates a directory. An existing entry is an error.
    pub fn create_directory(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let path = path.as_ref();
        self.at(path, |above, name| mkdirat(above, name, Mode::from_raw_mode(mode)))?;
        self.directory(path)
    }

    /// Opens a regular file for reading. Anything else is an error, and a pipe does not block.
    pub fn file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let file = self.open(path.as_ref(), READ, Mode::empty())?;
        match kind(&fstat(&file)?) {
            FileType::RegularFile => Ok(file.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Creates a file and opens it for writing. An existing entry is an error.
    pub fn create_file(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        self.open(path.as_ref(), flags, mode).map(File::from)
    }

    /// Metadata of the entry at a path; `None` if there is none. A symlink is not followed.
    pub fn look(&self, path: impl AsRef<Path>) -> io::Result<Option<Stat>> {
        let look =
            |above: BorrowedFd<'_>, name: &OsStr| statat(above, name, AtFlags::SYMLINK_NOFOLLOW);
        match self.at(path.as_ref(), look) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Metadata of this directory.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.0)?)
    }

    /// The target of a symlink, as it is stored. The symlink is not followed.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let target = self.at(path.as_ref(), |above, name| readlinkat(above, name, Vec::new()))?;
        Ok(OsStr::from_bytes(target.as_bytes()).into())
    }

    /// Creates a symlink with the target `target`.
    pub fn symlink(&self, target: &Path, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |above, name| symlinkat(target, above, name))?)
    }

    /// Creates a hard link `name` in `to` for the file at `path`. An existing `name` is an error. A symlink
    /// at `path` is not followed: the symlink itself gets the new name.
    pub fn hard_link(
        &self,
        path: impl AsRef<Path>,
        to: &Self,
        name: impl AsRef<Path>,
    ) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |from, old| {
            to.at(name.as_ref(), |to, new| linkat(from, old, to, new, AtFlags::empty()))
        })?)
    }

    /// Moves an entry to a new name. An existing entry of that name is an error.
    pub fn rename(
        &self,
        path: impl AsRef<Path>,
        to: &Self,
        name: impl AsRef<Path>,
    ) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |from, old| {
            to.at(name.as_ref(), |to, new| rename_new(from, old, to, new))
        })?)
    }

    /// Moves an entry to a new name, and replaces an existing file of that name in the same step. The existing entry is
    /// not followed if it is a symlink.
    pub fn replace(
        &self,
        path: impl AsRef<Path>,
        to: &Self,
        name: impl AsRef<Path>,
    ) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |from, old| {
            to.at(name.as_ref(), |to, new| renameat(from, old, to, new))
        })?)
    }

    /// Removes an entry that is not a directory. A symlink's target stays.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |above, name| unlinkat(above, name, AtFlags::empty()))?)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |above, name| unlinkat(above, name, AtFlags::REMOVEDIR))?)
    }

    /// Removes the entry at a path with everything beneath it, and returns the freed space. A missing entry
    /// is no error.
    pub fn remove_tree(&self, path: impl AsRef<Path>) -> io::Result<FreedSpace> {
        let removed = self.at(path.as_ref(), remove::tree);
        match removed {
            Err(Errno::NOENT) => Ok(FreedSpace::default()),
            removed => Ok(removed?),
        }
    }

    /// Measures the space on the disk of the entry at a path with everything beneath it. A missing entry has
    /// size 0.
    pub fn measure_tree(
        &self,
        path: impl AsRef<Path>,
        meter: &mut TreeMeter,
    ) -> io::Result<TreeSize> {
        match self.at(path.as_ref(), |above, name| measure::tree(above, name, meter)) {
            Err(Errno::NOENT) => Ok(TreeSize::default()),
            measured => Ok(measured?),
        }
    }

    /// Names in this directory, without `.` and `..`, in no particular order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in self.entries()? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Iterates over the directory's entries.
    pub fn entries(&self) -> rustix::io::Result<Dir> {
        entries(&self.0)
    }

    /// Copies everything beneath this directory into `to`, which is empty and which no session can write.
    /// Returns what was left out, with the reasons.
    pub fn copy_tree(&self, to: &Self, limits: CopyLimits) -> Result<CopyOmissions, CopyError> {
        copy::tree(self, to, limits)
    }

    fn open(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        if !is_plain(path) {
            return Err(Errno::INVAL.into());
        }
        Ok(open_beneath(&self.0, path, flags, mode, Links::Refuse)?)
    }

    /// Calls `act` with the parent directory of a path and the path's last name.
    fn at<T>(
        &self,
        path: &Path,
        act: impl FnOnce(BorrowedFd<'_>, &OsStr) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        let name = path.file_name().filter(|_| is_plain(path)).ok_or(Errno::INVAL)?;
        match path.parent().filter(|above| !above.as_os_str().is_empty()) {
            None => act(self.0.as_fd(), name),
            Some(above) => {
                let above = open_beneath(&self.0, above, DIRECTORY, Mode::empty(), Links::Refuse)?;
                act(above.as_fd(), name)
            }
        }
    }
}

/// Whether a path is relative and has only plain names: no `.`, no `..`.
fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Iterates over the entries of a directory that was opened with [`DIRECTORY`].
pub fn entries(directory: impl AsFd) -> rustix::io::Result<Dir> {
    Dir::new(openat(directory, ".", READ | OFlags::DIRECTORY, Mode::empty())?)
}

/// Renames without replacing an existing entry. On a file system without `RENAME_NOREPLACE` this first checks
/// that no entry has the new name. If another process wins the race after the check, a renamed directory
/// replaces at most an empty directory. The rename never follows a symlink.
fn rename_new(
    from: BorrowedFd<'_>,
    old: &OsStr,
    to: BorrowedFd<'_>,
    new: &OsStr,
) -> rustix::io::Result<()> {
    match renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => match statat(to, new, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => renameat(from, old, to, new),
            Ok(_) => Err(Errno::EXIST),
            Err(errno) => Err(errno),
        },
        done => done,
    }
}

//! Removes a tree that a session made, in bounded memory and with a bounded number of descriptors,
//! whatever its depth and its modes are.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, chmod, fchmod, fstat, openat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::measure::disk_bytes;
use super::{kind, rename_new, resolved};

/// Directories within each other that are open at once. A deeper one is moved up first.
const DEPTH_MAX: usize = 64;

/// Times that a directory is emptied again because something was made in it meanwhile.
const PASSES_MAX: usize = 64;

/// Directories that were moved up and wait; with more, these are removed first.
const WAITING_MAX: usize = 1024;

/// Says that no more can wait. No file system answers so to what is called here.
const TOO_MANY: Errno = Errno::NOBUFS;

/// What the node needs to empty a directory.
const OWNER_ALL: u32 = 0o700;

/// What the disk got back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Freed {
    /// A file that has another name elsewhere gives nothing back.
    pub bytes: u64,
    pub entries: u64,
}

impl std::ops::AddAssign for Freed {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.entries = self.entries.saturating_add(other.entries);
    }
}

/// Removes `name` from the directory `above`, and what is beneath it.
pub(super) fn tree(above: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Freed> {
    let freed = Freed::default();
    let mut removing = Removing { above, waiting: vec![name.to_owned()], count: 0, freed };
    while let Some(next) = removing.waiting.pop() {
        match removing.entry(above, &next, 0) {
            // There is more in it; what was moved up goes first.
            Err(TOO_MANY) => removing.waiting.insert(0, next),
            done => done?,
        }
    }
    Ok(removing.freed)
}

struct Removing<'a> {
    /// Where directories are moved that are too deep.
    above: BorrowedFd<'a>,
    /// Names there that are still to be removed.
    waiting: Vec<OsString>,
    count: usize,
    freed: Freed,
}

impl Removing<'_> {
    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        depth: usize,
    ) -> rustix::io::Result<()> {
        // Looked at before it goes: its last name gives its blocks back.
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_last = kind(&stat) == FileType::Directory || stat.st_nlink <= 1;
        let freed = Freed { bytes: if is_last { disk_bytes(&stat) } else { 0 }, entries: 1 };
        match unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {}
            done => {
                done?;
                self.freed += freed;
                return Ok(());
            }
        }
        let mut last = Err(Errno::NOTEMPTY);
        for _ in 0..PASSES_MAX {
            let inner = open(directory, name)?;
            if depth == DEPTH_MAX {
                return self.move_up(directory, name);
            }
            self.empty(inner, depth)?;
            last = unlinkat(directory, name, AtFlags::REMOVEDIR);
            if !matches!(last, Err(Errno::NOTEMPTY | Errno::EXIST)) {
                break;
            }
        }
        last?;
        self.freed += freed;
        Ok(())
    }

    fn empty(&mut self, directory: OwnedFd, depth: usize) -> rustix::io::Result<()> {
        let mut entries = Dir::new(directory)?;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match self.entry(entries.fd()?, name, depth + 1) {
                // Somebody else removed it.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn move_up(&mut self, directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(TOO_MANY);
        }
        loop {
            self.count += 1;
            let new = OsString::from(format!(".windlass-deep-{}", self.count));
            match rename_new(directory, name, self.above, &new) {
                Ok(()) => {
                    self.waiting.push(new);
                    return Ok(());
                }
                Err(Errno::EXIST) if self.count < usize::MAX => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Opens a directory to empty it: never through a link, never into another mount. Its mode may forbid
/// that; it goes away, so its mode is changed, by its descriptor.
fn open(above: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |flags| resolved(above, Path::new(name), flags, Mode::empty(), resolve);
    match open(flags | OFlags::RDONLY) {
        Ok(directory) => {
            let mode = fstat(&directory)?.st_mode;
            if mode & OWNER_ALL != OWNER_ALL {
                // Where it is another user's, the kernel says so when something is removed.
                let _ = fchmod(&directory, Mode::from_raw_mode(OWNER_ALL));
            }
            Ok(directory)
        }
        Err(Errno::ACCESS) => {
            let directory = open(flags | OFlags::PATH)?;
            if FileType::from_raw_mode(fstat(&directory)?.st_mode) != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            chmod(by_descriptor(&directory), Mode::from_raw_mode(OWNER_ALL))?;
            openat(&directory, ".", flags | OFlags::RDONLY, Mode::empty())
        }
        Err(errno) => Err(errno),
    }
}

/// A name of the very file that a descriptor is of: `fchmod` refuses one opened with `O_PATH`.
fn by_descriptor(file: impl AsFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

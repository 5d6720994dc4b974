//! Removes a tree that a session has made. Memory and descriptors are bounded, whatever the tree's depth and
//! file modes are.

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

/// Maximum depth of directories that are open at once. A deeper directory is first moved to the top.
const DEPTH_MAX: usize = 64;

/// Maximum number of passes over a directory into which a process keeps creating entries.
const PASSES_MAX: usize = 64;

/// Maximum number of directories that were moved to the top and are not removed yet. With more, these are
/// removed first.
const WAITING_MAX: usize = 1024;

/// Internal error: [`WAITING_MAX`] is reached. No file system returns it for the calls in this module.
const TOO_MANY: Errno = Errno::NOBUFS;

/// The mode that the node needs to empty a directory.
const OWNER_ALL: u32 = 0o700;

/// The space that a removal has freed on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreedSpace {
    /// A file with another name elsewhere frees nothing.
    pub bytes: u64,
    pub entries: u64,
}

impl std::ops::AddAssign for FreedSpace {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.entries = self.entries.saturating_add(other.entries);
    }
}

/// How often an entry is looked at again because it was swapped meanwhile. After that the removal fails.
const SWAPS_MAX: usize = 100;

/// Removes `name` from the directory `above`, with everything beneath it.
pub(super) fn tree(above: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<FreedSpace> {
    let freed = FreedSpace::default();
    let mut removing = TreeRemoval { above, waiting: vec![name.to_owned()], count: 0, freed };
    while let Some(next) = removing.waiting.pop() {
        match removing.entry(above, &next, 0) {
            // The directory is not empty yet; the directories that were moved to the top are removed first.
            Err(TOO_MANY) => removing.waiting.insert(0, next),
            done => done?,
        }
    }
    Ok(removing.freed)
}

struct TreeRemoval<'a> {
    /// The directory to which directories that are too deep are moved.
    above: BorrowedFd<'a>,
    /// Names in `above` that are still to be removed.
    waiting: Vec<OsString>,
    count: usize,
    freed: FreedSpace,
}

impl TreeRemoval<'_> {
    /// Removes an entry. A session may swap a directory for a symlink between two calls: then the entry is looked
    /// at again.
    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        depth: usize,
    ) -> rustix::io::Result<()> {
        for _ in 0..SWAPS_MAX {
            match self.entry_as_it_is(directory, name, depth) {
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                done => return done,
            }
        }
        Err(Errno::BUSY)
    }

    fn entry_as_it_is(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        depth: usize,
    ) -> rustix::io::Result<()> {
        // Read before the removal: only the removal of a file's last name frees its blocks.
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_last = kind(&stat) == FileType::Directory || stat.st_nlink <= 1;
        let freed = FreedSpace { bytes: if is_last { disk_bytes(&stat) } else { 0 }, entries: 1 };
        match unlinkat(directory, name, AtFlags::empty()) {
            // A file that may not be removed, not a directory.
            Err(Errno::PERM) if kind(&stat) != FileType::Directory => return Err(Errno::PERM),
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
                // Another process has removed the entry.
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

/// Opens a directory to empty it: never through a symlink, never into another mount. If the directory's mode
/// forbids that, the mode is changed by descriptor: the directory is removed anyway.
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
                // If the directory belongs to another user, the removal of its entries reports the error.
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

/// A path that refers to a descriptor's own file: `fchmod` refuses a descriptor that was opened with
/// `O_PATH`.
fn by_descriptor(file: impl AsFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

//! Copies a tree that a session can write, possibly while the session writes it. Each entry is opened once,
//! without following a symlink and without blocking, and is judged by its open descriptor. Files share blocks
//! with the original (reflink) if the file system supports it; otherwise the content is copied.
//!
//! - Directories that can be recreated are left out by default ([`judge`]).
//! - Symlinks stay symlinks with the same target.
//! - Sockets, pipes and devices are left out.
//! - Set-user-id and set-group-id bits are not copied.
//! - Entries that the session itself could not read are left out and named. The copy runs in a thread without
//!   the capabilities that override file modes, so the kernel decides.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat,
    futimens, ioctl_ficlone, linkat, mkdirat, openat, readlinkat, statat, symlinkat,
};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::ignorable::{Ignorable, SkipRule, judge};
use super::{Directory, READ, is_of_kernel, kind};

/// Mode bits that are copied: of a file, and of a directory (with the sticky bit).
const FILE_MODE: u32 = 0o777;
const DIRECTORY_MODE: u32 = 0o1777;

/// Bytes that are copied between two checks of the time limit.
const PART_BYTES: u64 = 64 << 20;

/// Maximum number of left-out entries that are named; the others are only counted.
const NAMED_MAX: usize = 64;

/// Maximum number of skipped directories that are named; the others are only counted.
const SKIPPED_MAX: usize = 64;

/// The limits of a copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyLimits {
    pub entries: usize,
    pub bytes: u64,
    /// Maximum depth of directories.
    pub depth: usize,
    pub until: Instant,
    /// Whether directories that can be recreated are left out.
    pub skip: SkipRule,
    /// Whether an entry of this name is left out without being reported: a temporary file that is being
    /// written.
    pub omit: fn(&OsStr) -> bool,
}

/// Why a tree was not copied. Paths are relative to it.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{path}: {cause}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the tree has more files or bytes than a copy may have")]
    TooLarge,
    #[error("{path} is deeper than a copy may be")]
    TooDeep { path: PathBuf },
    #[error("the copy exceeded its time limit")]
    TooSlow,
}

/// The entries that a copy has left out.
#[derive(Debug, Default)]
pub struct CopyOmissions {
    /// Paths relative to the tree, each with the reason.
    pub named: Vec<(PathBuf, &'static str)>,
    /// Number of further entries.
    pub others: usize,
    /// Directories that can be recreated.
    pub skipped: Vec<SkippedDirectory>,
    /// Number of further skipped directories.
    pub skipped_more: u64,
}

/// A directory that was left out because it can be recreated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedDirectory {
    /// Relative to the tree.
    pub path: PathBuf,
    pub why: Ignorable,
}

const UNREADABLE: &str = "the session may not read it";
const CHANGED: &str = "it was replaced while it was copied";
const LOCKED: &str = "a process holds a lease on it";
const OF_KERNEL: &str = "it is an interface of the kernel";

pub(super) fn tree(
    from: &Directory,
    to: &Directory,
    limits: CopyLimits,
) -> Result<CopyOmissions, CopyError> {
    let failed = |cause: io::Error| CopyError::Io { path: PathBuf::from("."), cause };
    let copy = || {
        drop_overrides().map_err(|errno| failed(errno.into()))?;
        let source = openat(from, ".", READ | OFlags::DIRECTORY, Mode::empty());
        let source = source.map_err(|errno| failed(errno.into()))?;
        let stat = fstat(&source).map_err(|errno| failed(errno.into()))?;
        let mut copying = TreeCopy {
            left: limits,
            device: stat.st_dev,
            root: to.as_fd(),
            at: PathBuf::new(),
            names: HashMap::new(),
            clones: true,
            left_out: CopyOmissions::default(),
        };
        let target = openat(to, ".", READ | OFlags::DIRECTORY, Mode::empty());
        let target = target.map_err(|errno| failed(errno.into()))?;
        copying.directory(source, &target, &stat, limits.depth)?;
        Ok(copying.left_out)
    };
    // Each thread has its own capabilities, so the copy runs in a thread of its own.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("windlass-copy".to_owned());
        let thread = thread.spawn_scoped(scope, copy).map_err(failed)?;
        thread.join().unwrap_or_else(|_| Err(failed(io::Error::other("the copy panicked"))))
    })
}

/// Drops the capabilities of this thread that override file modes.
fn drop_overrides() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    let overrides = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    if sets.effective.intersects(overrides) {
        sets.effective.remove(overrides);
        set_capabilities(None, sets)?;
    }
    Ok(())
}

struct TreeCopy<'a> {
    left: CopyLimits,
    /// The device that the tree is on.
    device: u64,
    /// The root of the copy.
    root: BorrowedFd<'a>,
    /// The current entry, relative to the tree and to the copy.
    at: PathBuf,
    /// Files with several names, by device and inode, with the first name that was copied.
    names: HashMap<(u64, u64), PathBuf>,
    /// Whether to try reflinks. False once the file system has refused one.
    clones: bool,
    left_out: CopyOmissions,
}

impl TreeCopy<'_> {
    fn directory(
        &mut self,
        source: OwnedFd,
        target: &OwnedFd,
        stat: &Stat,
        depth: usize,
    ) -> Result<(), CopyError> {
        let mut entries = Dir::new(source).map_err(|errno| self.failed(errno))?;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.failed(errno))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || (self.left.omit)(name) {
                continue;
            }
            self.left.entries = self.left.entries.checked_sub(1).ok_or(CopyError::TooLarge)?;
            self.check_time()?;
            self.at.push(name);
            let from = entries.fd().map_err(|errno| self.failed(errno))?;
            self.entry(EntryPair { from, to: target.as_fd(), name }, entry.file_type(), depth)?;
            self.at.pop();
        }
        // The mode is set last, because it may forbid writing into the directory.
        let mode = Mode::from_raw_mode(stat.st_mode & DIRECTORY_MODE);
        fchmod(target, mode).map_err(|errno| self.failed(errno))
    }

    fn entry(
        &mut self,
        pair: EntryPair<'_>,
        found: FileType,
        depth: usize,
    ) -> Result<(), CopyError> {
        let found = match found {
            FileType::Unknown => match statat(pair.from, pair.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => kind(&stat),
                Err(errno) => return self.judge(Err(errno)),
            },
            found => found,
        };
        match found {
            FileType::Directory => self.inner(pair, depth),
            FileType::RegularFile => {
                let copied = self.file(pair);
                copied.or_else(|stop| self.stopped(stop))
            }
            FileType::Symlink => {
                let copied = readlinkat(pair.from, pair.name, Vec::new());
                match copied {
                    Ok(target) => symlinkat(target.as_c_str(), pair.to, pair.name)
                        .map_err(|errno| self.failed(errno)),
                    Err(errno) => self.judge(Err(errno)),
                }
            }
            _ => Ok(()),
        }
    }

    fn inner(&mut self, pair: EntryPair<'_>, depth: usize) -> Result<(), CopyError> {
        let source = match openat(pair.from, pair.name, READ | OFlags::DIRECTORY, Mode::empty()) {
            Ok(source) => source,
            Err(errno) => return self.judge(Err(errno)),
        };
        let stat = fstat(&source).map_err(|errno| self.failed(errno))?;
        if stat.st_dev != self.device
            && is_of_kernel(&source).map_err(|errno| self.failed(errno))?
        {
            self.leave_out(OF_KERNEL);
            return Ok(());
        }
        if self.left.skip == SkipRule::LeaveOut
            && let Some(why) = judge(pair.name, source.as_fd())
        {
            self.skip(why);
            return Ok(());
        }
        let depth = depth.checked_sub(1);
        let depth = depth.ok_or_else(|| CopyError::TooDeep { path: self.at.clone() })?;
        let target = mkdirat(pair.to, pair.name, Mode::from_raw_mode(0o700))
            .and_then(|()| openat(pair.to, pair.name, READ | OFlags::DIRECTORY, Mode::empty()))
            .map_err(|errno| self.failed(errno))?;
        self.directory(source, &target, &stat, depth)
    }

    fn file(&mut self, pair: EntryPair<'_>) -> Result<(), CopyStop> {
        let source = openat(pair.from, pair.name, READ, Mode::empty()).map_err(CopyStop::Source)?;
        let stat = fstat(&source).map_err(CopyStop::Source)?;
        if kind(&stat) != FileType::RegularFile {
            return Err(CopyStop::Source(Errno::LOOP));
        }
        if stat.st_nlink > 1 {
            let identity = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.names.get(&identity) {
                let linked = linkat(self.root, first, pair.to, pair.name, AtFlags::empty());
                return Ok(linked.map_err(io::Error::from)?);
            }
            self.names.insert(identity, self.at.clone());
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(pair.to, pair.name, flags, Mode::from_raw_mode(0o600))
            .map_err(io::Error::from)?;
        let (mut source, mut target) = (File::from(source), File::from(target));
        self.content(&mut source, &mut target, &stat)?;
        fchmod(&target, Mode::from_raw_mode(stat.st_mode & FILE_MODE)).map_err(io::Error::from)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: stat.st_mtime,
                tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
            },
        };
        Ok(futimens(&target, &times).map_err(io::Error::from)?)
    }

    /// Copies a file's content up to the size that the file had when it was opened: it may be growing.
    fn content(
        &mut self,
        source: &mut File,
        target: &mut File,
        stat: &Stat,
    ) -> Result<(), CopyStop> {
        let held = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if self.clones {
            match ioctl_ficlone(&*target, &*source) {
                Ok(()) => return Ok(self.take(held)?),
                Err(errno) => {
                    self.clones = !matches!(errno, Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY);
                }
            }
        }
        if held >= size {
            return self.range(source, target, size);
        }
        // A sparse file: only the data between the holes is copied.
        let mut at = 0;
        while at < size {
            let Some(data) = seek(source, rustix::fs::SeekFrom::Data(at))? else { break };
            let hole = seek(source, rustix::fs::SeekFrom::Hole(data))?.unwrap_or(size);
            source.seek(SeekFrom::Start(data))?;
            target.seek(SeekFrom::Start(data))?;
            self.range(source, target, hole.min(size).saturating_sub(data))?;
            self.check_time()?;
            at = hole.max(data + 1);
        }
        Ok(target.set_len(size)?)
    }

    fn range(&mut self, source: &mut File, target: &mut File, bytes: u64) -> Result<(), CopyStop> {
        let mut left = bytes;
        while left > 0 {
            let part = left.min(PART_BYTES);
            // Counted before the bytes are written.
            self.take(part)?;
            // Uses `copy_file_range` if possible.
            if io::copy(&mut (&*source).take(part), target)? < part {
                break;
            }
            left -= part;
            self.check_time()?;
        }
        Ok(())
    }

    fn take(&mut self, bytes: u64) -> Result<(), CopyError> {
        self.left.bytes = self.left.bytes.checked_sub(bytes).ok_or(CopyError::TooLarge)?;
        Ok(())
    }

    fn check_time(&self) -> Result<(), CopyError> {
        if Instant::now() < self.left.until { Ok(()) } else { Err(CopyError::TooSlow) }
    }

    fn stopped(&mut self, stop: CopyStop) -> Result<(), CopyError> {
        match stop {
            CopyStop::Source(errno) => self.judge(Err(errno)),
            CopyStop::Io(cause) => Err(CopyError::Io { path: self.at.clone(), cause }),
            CopyStop::All(error) => Err(error),
        }
    }

    /// Decides whether an entry that could not be opened is left out, or fails the copy.
    fn judge(&mut self, opened: rustix::io::Result<()>) -> Result<(), CopyError> {
        match opened {
            // `NOENT`: the session has removed the entry since it was listed. The others: a socket or a
            // device, which cannot be opened.
            Ok(()) | Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Ok(()),
            Err(Errno::ACCESS | Errno::PERM) => {
                self.leave_out(UNREADABLE);
                Ok(())
            }
            Err(Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::INVAL) => {
                self.leave_out(CHANGED);
                Ok(())
            }
            Err(Errno::AGAIN) => {
                self.leave_out(LOCKED);
                Ok(())
            }
            Err(errno) => Err(self.failed(errno)),
        }
    }

    fn leave_out(&mut self, why: &'static str) {
        if self.left_out.named.len() < NAMED_MAX {
            self.left_out.named.push((self.at.clone(), why));
        } else {
            self.left_out.others += 1;
        }
    }

    /// Records a skipped directory. If the list is full, an environment or packages replace a cache: caches
    /// are many, and clients rarely miss them.
    fn skip(&mut self, why: Ignorable) {
        let skipped = &mut self.left_out.skipped;
        if skipped.len() >= SKIPPED_MAX {
            self.left_out.skipped_more += 1;
            let cache = skipped.iter().position(|one| one.why == Ignorable::Cache);
            match cache.filter(|_| why != Ignorable::Cache) {
                Some(cache) => drop(skipped.swap_remove(cache)),
                None => return,
            }
        }
        skipped.push(SkippedDirectory { path: self.at.clone(), why });
    }

    fn failed(&self, errno: Errno) -> CopyError {
        let path = if self.at == Path::new("") { PathBuf::from(".") } else { self.at.clone() };
        CopyError::Io { path, cause: errno.into() }
    }
}

/// One entry: its directory, the directory of its copy, and its name in both.
#[derive(Clone, Copy)]
struct EntryPair<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    name: &'a OsStr,
}

/// Why a file was not copied.
enum CopyStop {
    /// The source could not be opened, or is no longer a regular file.
    Source(Errno),
    Io(io::Error),
    All(CopyError),
}

impl From<io::Error> for CopyStop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<CopyError> for CopyStop {
    fn from(error: CopyError) -> Self {
        Self::All(error)
    }
}

/// The offset of the next data or hole; `None` after the last.
fn seek(file: &File, to: rustix::fs::SeekFrom) -> Result<Option<u64>, CopyStop> {
    match rustix::fs::seek(file, to) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(CopyStop::Io(errno.into())),
    }
}

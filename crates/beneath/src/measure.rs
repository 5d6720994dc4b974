//! Measures the space on the disk of a tree that a session can write. It only reads: it follows no symlink,
//! enters no other mount and changes nothing. Memory, descriptors and time are bounded, however deep and wide
//! the tree is. If a bound is reached, or a directory cannot be read, the result says so.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, statat};
use rustix::io::Errno;

use super::{READ, kind, resolved};

/// Maximum number of open directories on the path to the current one. A closed one is reopened when it is
/// needed.
const OPEN_MAX: usize = 64;

/// Maximum bytes of a path in one call; the kernel accepts at most 4096.
const PATH_BYTES_MAX: usize = 3800;

/// Maximum number of files with several names that are remembered. Beyond that, each name counts as a file.
const LINKED_MAX: usize = 262_144;

/// Bytes in a block, as `stat` counts them.
const BLOCK_BYTES: u64 = 512;

/// The bytes that a file takes on the disk.
pub(super) fn disk_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES)
}

/// The limits and the state of a measurement over any number of trees.
#[derive(Debug)]
pub struct TreeMeter {
    until: Instant,
    entries_left: u64,
    /// Files with several names, by device and inode: the number of names that were not seen yet.
    linked: HashMap<(u64, u64), u64>,
    counts: LinkedFiles,
}

/// How a file with several names is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkedFiles {
    /// At its first name: the sum is the space that the trees take.
    AtFirstName,
    /// At its last name: the sum is the space that is freed if the trees are removed.
    AtLastName,
}

/// The space that trees take on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeSize {
    pub bytes: u64,
    pub entries: u64,
    /// Whether the measurement saw everything.
    pub whole: Whole,
}

/// Whether a measurement saw everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Whole {
    #[default]
    Yes,
    /// A bound was reached, or a directory could not be read.
    No,
}

impl std::ops::AddAssign for TreeSize {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.entries = self.entries.saturating_add(other.entries);
        if other.whole == Whole::No {
            self.whole = Whole::No;
        }
    }
}

impl TreeMeter {
    /// A meter that stops at the time `until` or after `entries_max` entries.
    pub fn new(until: Instant, entries_max: u64, counts: LinkedFiles) -> Self {
        Self { until, entries_left: entries_max, linked: HashMap::new(), counts }
    }

    fn may_go_on(&mut self) -> bool {
        self.entries_left = self.entries_left.saturating_sub(1);
        self.entries_left > 0 && Instant::now() < self.until
    }

    /// The bytes that this name of a file adds.
    fn count(&mut self, stat: &Stat) -> u64 {
        let names = stat.st_nlink;
        if kind(stat) == FileType::Directory || names <= 1 {
            return disk_bytes(stat);
        }
        let identity = (stat.st_dev, stat.st_ino);
        let is_full = self.linked.len() >= LINKED_MAX && !self.linked.contains_key(&identity);
        if is_full {
            return disk_bytes(stat);
        }
        let mut is_first = false;
        let left = self.linked.entry(identity).or_insert_with(|| {
            is_first = true;
            names
        });
        *left = left.saturating_sub(1);
        let counts = match self.counts {
            LinkedFiles::AtFirstName => is_first,
            LinkedFiles::AtLastName => *left == 0,
        };
        if counts { disk_bytes(stat) } else { 0 }
    }
}

/// Measures `name` in the directory `above`, with everything beneath it.
pub(super) fn tree(
    above: BorrowedFd<'_>,
    name: &OsStr,
    meter: &mut TreeMeter,
) -> rustix::io::Result<TreeSize> {
    let stat = statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut found = TreeSize { bytes: meter.count(&stat), entries: 1, whole: Whole::Yes };
    if kind(&stat) != FileType::Directory {
        return Ok(found);
    }
    let mut walk =
        MeasureWalk { above, device: stat.st_dev, levels: Vec::new(), found: &mut found };
    walk.enter(name, meter);
    while walk.step(meter) {}
    Ok(found)
}

/// A directory on the path to the current one.
struct Level {
    name: OsString,
    /// `None` if it was closed because too many were open.
    directory: Option<OwnedFd>,
    /// Subdirectories that were not entered yet.
    inner: Vec<OsString>,
}

struct MeasureWalk<'a> {
    above: BorrowedFd<'a>,
    device: u64,
    levels: Vec<Level>,
    found: &'a mut TreeSize,
}

impl MeasureWalk<'_> {
    /// Continues with the next directory; false if there is none.
    fn step(&mut self, meter: &mut TreeMeter) -> bool {
        let Some(level) = self.levels.last_mut() else { return false };
        let Some(name) = level.inner.pop() else {
            self.levels.pop();
            return true;
        };
        if !meter.may_go_on() {
            self.found.whole = Whole::No;
            return false;
        }
        self.enter(&name, meter);
        true
    }

    /// Opens a directory of the deepest level and reads it once.
    fn enter(&mut self, name: &OsStr, meter: &mut TreeMeter) {
        let opened = self.open_deepest().and_then(|()| {
            let above = self.levels.last().and_then(|level| level.directory.as_ref());
            open(above.map_or(self.above, AsFd::as_fd), Path::new(name))
        });
        let read = opened.and_then(|directory| {
            let inner = self.read(directory.as_fd(), meter)?;
            Ok((directory, inner))
        });
        match read {
            Ok((directory, inner)) => {
                let name = name.to_owned();
                self.levels.push(Level { name, directory: Some(directory), inner });
                if let Some(far) = self.levels.len().checked_sub(OPEN_MAX + 1) {
                    self.levels[far].directory = None;
                }
            }
            // The directory was removed since it was listed.
            Err(Errno::NOENT) => {}
            Err(_) => self.found.whole = Whole::No,
        }
    }

    /// Counts the entries of a directory. Returns its subdirectories.
    fn read(
        &mut self,
        directory: BorrowedFd<'_>,
        meter: &mut TreeMeter,
    ) -> rustix::io::Result<Vec<OsString>> {
        let mut inner = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if !meter.may_go_on() {
                self.found.whole = Whole::No;
                break;
            }
            let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            };
            if stat.st_dev != self.device {
                continue;
            }
            self.found.bytes = self.found.bytes.saturating_add(meter.count(&stat));
            self.found.entries += 1;
            if kind(&stat) == FileType::Directory {
                inner.push(name.to_owned());
            }
        }
        Ok(inner)
    }

    /// Opens the deepest level again if it was closed.
    fn open_deepest(&mut self) -> rustix::io::Result<()> {
        let Some(deepest) = self.levels.len().checked_sub(1) else { return Ok(()) };
        if self.levels[deepest].directory.is_some() {
            return Ok(());
        }
        // Starts from the nearest open directory. The path is split into parts that the kernel accepts.
        let open_at = self.levels.iter().rposition(|level| level.directory.is_some());
        let mut reached: Option<OwnedFd> = None;
        let mut part = std::path::PathBuf::new();
        for at in open_at.map_or(0, |at| at + 1)..=deepest {
            let name = &self.levels[at].name;
            let is_long = part.as_os_str().len() + name.len() + 1 > PATH_BYTES_MAX;
            if is_long {
                reached = Some(self.open_from(reached.as_ref(), open_at, &part)?);
                part.clear();
            }
            part.push(&self.levels[at].name);
        }
        let directory = self.open_from(reached.as_ref(), open_at, &part)?;
        self.levels[deepest].directory = Some(directory);
        Ok(())
    }

    fn open_from(
        &self,
        reached: Option<&OwnedFd>,
        open_at: Option<usize>,
        part: &Path,
    ) -> rustix::io::Result<OwnedFd> {
        let nearest = open_at.and_then(|at| self.levels[at].directory.as_ref());
        let from = reached.or(nearest).map_or(self.above, AsFd::as_fd);
        open(from, part)
    }
}

fn open(above: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    resolved(above, path, READ | OFlags::DIRECTORY, Mode::empty(), resolve)
}

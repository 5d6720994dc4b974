//! What the workspace has grown by since the session began. Measuring means to walk it, a part at a
//! time: soon when its file system has lost more room than the session may still take, and seldom
//! when it has not, since others may have freed as much meanwhile. The session may change what is
//! walked at any time, so the walk goes by descriptors (`windlass_beneath`).

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags, fstatvfs, makedev, statx,
};
use rustix::io::Errno;
use windlass_beneath::{Directory, Links, READ, open_beneath};

use super::processes::Processes;

/// Entries that one look takes in; the walk goes on with the next.
const ENTRIES_PER_LOOK: usize = 4096;

/// Files may be dated by a clock that is late by so much.
const CLOCK_STEP: Duration = Duration::from_millis(10);

/// Directories that a walk remembers to go into, and files with several names that it remembers to
/// have seen. With more, what it finds is no longer believed.
const REMEMBERED_MAX: usize = 100_000;

/// Time between two walks, in times of what the last one took: when room was lost, and when not.
const PAUSE_WALKS: u32 = 10;
const PAUSE_WALKS_UNCALLED: u32 = 100;

/// The workspace's size as far as it is known.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Absent where it could not be opened: then nothing is measured.
    workspace: Option<Directory>,
    allowed: u64,
    /// Its size when the session began; unknown until a first walk, in which what was made since
    /// does not count.
    baseline: Option<u64>,
    began: SystemTime,
    /// Its size when it was measured last, and what the file system had left then.
    size: u64,
    free: u64,
    walk: Option<Walk>,
    /// Nothing was hidden from us when the session began.
    sees_all: bool,
    last: Option<Walked>,
}

/// When a walk ended, and the time that it took of this process.
#[derive(Debug, Clone, Copy)]
struct Walked {
    at: Instant,
    took: Duration,
}

/// More than is allowed, and more than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grown {
    pub by: u64,
    pub allowed: u64,
}

impl Disk {
    /// As it is now; it may grow as it likes. The path is the one that the node recorded.
    pub fn of(workspace: &Path) -> Self {
        let workspace = Directory::recorded(workspace).ok();
        let is_empty = workspace.as_ref().is_some_and(is_empty);
        let free = workspace.as_ref().and_then(free_bytes);
        Self {
            workspace,
            allowed: u64::MAX,
            baseline: is_empty.then_some(0),
            began: SystemTime::now() - CLOCK_STEP,
            size: 0,
            free: free.unwrap_or(0),
            walk: None,
            sees_all: true,
            last: None,
        }
    }

    /// It may grow by so much.
    pub fn allowing(self, allowed: u64) -> Self {
        Self { allowed, ..self }
    }

    /// Whether it is known how large it was when the session began.
    pub fn has_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// Measures a part, if that is called for.
    pub fn look(&mut self, now: Instant, processes: impl Fn() -> Processes) -> Option<Grown> {
        let free = free_bytes(self.workspace.as_ref()?)?;
        self.look_with(now, free, processes)
    }

    fn look_with(
        &mut self,
        now: Instant,
        free: u64,
        processes: impl Fn() -> Processes,
    ) -> Option<Grown> {
        if self.walk.is_none() {
            if !self.worth_a_walk(now, free) {
                return None;
            }
            self.walk = Walk::begin(self.workspace.as_ref()?, self.began, free);
        }
        let (root, walk) = (self.workspace.as_ref()?, self.walk.as_mut()?);
        if walk.go_on(root, ENTRIES_PER_LOOK) == Progress::More {
            return None;
        }
        let walk = self.walk.take()?;
        let fallen = self.free.saturating_sub(walk.free);
        let mut size = walk.bytes + processes().unlinked_bytes(walk.device);
        if walk.blind && self.sees_all && self.baseline.is_some() {
            // The session has made what cannot be seen: then what the file system lost counts.
            size = size.max(self.size + fallen);
        }
        let before = std::mem::replace(&mut self.size, size);
        self.free = walk.free;
        self.last = Some(Walked { at: now, took: walk.took });
        let Some(baseline) = self.baseline else {
            self.baseline = Some(size.saturating_sub(walk.new_bytes));
            self.sees_all = !walk.blind;
            return None;
        };
        let by = size.saturating_sub(baseline);
        (by > self.allowed && size > before).then_some(Grown { by, allowed: self.allowed })
    }

    fn worth_a_walk(&self, now: Instant, free: u64) -> bool {
        let Some(baseline) = self.baseline else { return true };
        let left = baseline.saturating_add(self.allowed).saturating_sub(self.size);
        let pause = match self.free.saturating_sub(free) > left {
            true => PAUSE_WALKS,
            false => PAUSE_WALKS_UNCALLED,
        };
        self.last.is_none_or(|walked| now >= walked.at + walked.took * pause)
    }
}

/// A walk that may be taken in parts.
#[derive(Debug)]
struct Walk {
    took: Duration,
    /// What the file system had left when it began.
    free: u64,
    device: u64,
    session_began: SystemTime,
    bytes: u64,
    /// Those of files that were made since the session began, where the file system says when.
    new_bytes: u64,
    /// Directories relative to the workspace, which is itself empty here.
    todo: Vec<PathBuf>,
    reading: Option<(Dir, PathBuf)>,
    /// Files with several names count once.
    seen: HashSet<u64>,
    /// Something of the session's own could not be seen.
    blind: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    More,
    Done,
}

impl Walk {
    fn begin(root: &Directory, session_began: SystemTime, free: u64) -> Option<Self> {
        let device = root.stat().ok()?.st_dev;
        Some(Self {
            took: Duration::ZERO,
            free,
            device,
            session_began,
            bytes: 0,
            new_bytes: 0,
            todo: vec![PathBuf::new()],
            reading: None,
            seen: HashSet::new(),
            blind: false,
        })
    }

    fn go_on(&mut self, root: &Directory, entries_max: usize) -> Progress {
        let began = Instant::now();
        let progress = self.take_in(root, entries_max);
        self.took += began.elapsed();
        progress
    }

    fn take_in(&mut self, root: &Directory, entries_max: usize) -> Progress {
        for _ in 0..entries_max {
            let Some((reading, path)) = &mut self.reading else {
                let Some(path) = self.todo.pop() else { return Progress::Done };
                match read(root, &path) {
                    Ok(reading) => self.reading = Some((reading, path)),
                    Err(errno) => self.blind |= hides(errno),
                }
                continue;
            };
            match reading.next() {
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    if matches!(name.to_bytes(), b"." | b"..") {
                        continue;
                    }
                    match look(reading, name) {
                        Ok(about) => {
                            let path = path.join(OsStr::from_bytes(name.to_bytes()));
                            self.count(&about, path);
                        }
                        Err(errno) => self.blind |= hides(errno),
                    }
                }
                Some(Err(_)) => self.blind = true,
                None => self.reading = None,
            }
        }
        Progress::More
    }

    fn count(&mut self, about: &Statx, path: PathBuf) {
        if makedev(about.stx_dev_major, about.stx_dev_minor) != self.device {
            return;
        }
        if FileType::from_raw_mode(about.stx_mode.into()) == FileType::Directory {
            match self.todo.len() < REMEMBERED_MAX {
                true => self.todo.push(path),
                false => self.blind = true,
            }
        } else if about.stx_nlink > 1 && !self.remember(about.stx_ino) {
            return;
        }
        let bytes = about.stx_blocks * 512;
        self.bytes += bytes;
        if made(about).is_some_and(|made| made >= self.session_began) {
            self.new_bytes += bytes;
        }
    }

    fn remember(&mut self, inode: u64) -> bool {
        if self.seen.len() == REMEMBERED_MAX {
            self.blind = true;
        }
        self.seen.len() < REMEMBERED_MAX && self.seen.insert(inode)
    }
}

/// Opens a directory of the workspace to be read.
fn read(root: &Directory, path: &Path) -> rustix::io::Result<Dir> {
    if path == Path::new("") {
        return root.entries();
    }
    let flags = READ | OFlags::DIRECTORY;
    Dir::new(open_beneath(root, path, flags, Mode::empty(), Links::Refuse)?)
}

/// What an entry is. A link is described itself.
fn look(directory: &Dir, name: &std::ffi::CStr) -> rustix::io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    statx(directory.fd()?, name, AtFlags::SYMLINK_NOFOLLOW, wanted)
}

/// When a file was made, where the file system says that.
fn made(about: &Statx) -> Option<SystemTime> {
    if about.stx_mask & StatxFlags::BTIME.bits() == 0 {
        return None;
    }
    let seconds = u64::try_from(about.stx_btime.tv_sec).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, about.stx_btime.tv_nsec))
}

fn is_empty(directory: &Directory) -> bool {
    let Ok(mut entries) = directory.entries() else { return false };
    let other = |name: &[u8]| !matches!(name, b"." | b"..");
    !entries.any(|entry| match entry {
        Ok(entry) => other(entry.file_name().to_bytes()),
        Err(_) => true,
    })
}

/// What the file system of the workspace has left for its owner.
fn free_bytes(workspace: &Directory) -> Option<u64> {
    let about = fstatvfs(workspace).ok()?;
    Some(about.f_bfree.saturating_mul(about.f_frsize))
}

/// Whether an error can be the session's doing. What is gone meanwhile holds nothing.
fn hides(errno: Errno) -> bool {
    errno != Errno::NOENT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a walk of a few files may take.
    const SOON: Duration = Duration::from_secs(5);

    const MIB: u64 = 1 << 20;

    fn write(dir: &Path, name: &str, bytes: u64) {
        std::fs::write(dir.join(name), vec![7; usize::try_from(bytes).unwrap()]).unwrap();
    }

    /// Makes a file of 1 MiB which the file system dates later than another one, and says when.
    fn made_later(dir: &Path, other: &str, name: &str) -> SystemTime {
        let made = |name| std::fs::metadata(dir.join(name)).unwrap().created().unwrap();
        let start = Instant::now();
        loop {
            write(dir, name, MIB);
            if made(name) > made(other) {
                return made(name);
            }
            assert!(start.elapsed() < SOON);
            std::fs::remove_file(dir.join(name)).unwrap();
        }
    }

    /// Looks until a walk, if one is called for, is done.
    fn look(disk: &mut Disk, free: u64) -> Option<u64> {
        let now = Instant::now();
        disk.last = None;
        loop {
            let grown = disk.look_with(now, free, Processes::default);
            if grown.is_some() || disk.walk.is_none() {
                return grown.map(|grown| grown.by / MIB);
            }
            assert!(now.elapsed() < SOON);
        }
    }

    #[test]
    fn growth_over_the_limit_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Disk { free: 100 * MIB, ..Disk::of(dir.path()).allowing(4 * MIB) };
        assert_eq!(disk.baseline, Some(0));
        write(dir.path(), "a", 5 * MIB);
        assert_eq!(look(&mut disk, 95 * MIB), Some(5));
        assert_eq!(disk.free, 95 * MIB);
    }

    #[test]
    fn it_is_found_soon_if_room_was_lost_and_later_if_others_freed_as_much() {
        let dir = tempfile::tempdir().unwrap();
        let walked = Walked { at: Instant::now(), took: Duration::from_millis(20) };
        let disk = Disk { free: 100 * MIB, ..Disk::of(dir.path()).allowing(4 * MIB) };
        let disk = Disk { last: Some(walked), ..disk };
        let worth = |ms, free| disk.worth_a_walk(walked.at + Duration::from_millis(ms), free);
        assert!(!worth(199, 95 * MIB) && worth(200, 95 * MIB));
        assert!(!worth(1999, 100 * MIB) && worth(2000, 100 * MIB));
        assert!(worth(2000, 200 * MIB), "others freed a lot");
    }

    #[test]
    fn what_was_there_before_is_not_growth() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "before", 6 * MIB);
        let mut disk = Disk { free: 100 * MIB, ..Disk::of(dir.path()).allowing(4 * MIB) };
        assert_eq!(disk.baseline, None);
        disk.began = made_later(dir.path(), "before", "quick");
        assert_eq!(look(&mut disk, 100 * MIB), None);
        assert_eq!(disk.baseline.map(|bytes| bytes / MIB), Some(6));
        write(dir.path(), "new", 2 * MIB);
        assert_eq!(look(&mut disk, 90 * MIB), None, "others took the room");
        write(dir.path(), "more", 3 * MIB);
        assert_eq!(look(&mut disk, 80 * MIB), Some(6));
    }

    #[test]
    fn a_full_session_may_remove_files_and_may_not_grow() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Disk { free: 100 * MIB, ..Disk::of(dir.path()).allowing(4 * MIB) };
        write(dir.path(), "a", 5 * MIB);
        write(dir.path(), "b", 3 * MIB);
        assert_eq!(look(&mut disk, 92 * MIB), Some(8));
        std::fs::remove_file(dir.path().join("b")).unwrap();
        assert_eq!(look(&mut disk, 91 * MIB), None, "less than before");
        write(dir.path(), "c", MIB);
        assert_eq!(look(&mut disk, 90 * MIB), Some(6));
    }

    #[test]
    fn a_walk_is_taken_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        for directory in 0..40 {
            let below = dir.path().join(directory.to_string());
            std::fs::create_dir(&below).unwrap();
            for file in 0..150 {
                std::fs::write(below.join(file.to_string()), "x").unwrap();
            }
        }
        let root = Directory::trusted(dir.path()).unwrap();
        let mut walk = Walk::begin(&root, SystemTime::now(), 0).unwrap();
        let parts = (1..).find(|_| walk.go_on(&root, ENTRIES_PER_LOOK) == Progress::Done);
        assert_eq!(parts, Some(2));
        assert!(walk.bytes >= 40 * 150 * 512 && !walk.blind, "{}", walk.bytes);
    }

    #[test]
    fn names_of_one_file_count_once_and_links_are_not_followed() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(dir.path(), "a", MIB);
        write(other.path(), "large", 8 * MIB);
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        std::os::unix::fs::symlink(other.path(), dir.path().join("out")).unwrap();
        let root = Directory::trusted(dir.path()).unwrap();
        let mut walk = Walk::begin(&root, SystemTime::now(), 0).unwrap();
        assert_eq!(walk.go_on(&root, ENTRIES_PER_LOOK), Progress::Done);
        assert_eq!(walk.bytes / MIB, 1);
    }

    #[test]
    fn files_without_a_name_count_while_they_are_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let script = format!(
            "exec 3>{0}; rm {0}; head -c 3000000 /dev/zero >&3; echo; read x",
            path.display()
        );
        let mut child = std::process::Command::new("sh")
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        let device = Directory::trusted(dir.path()).unwrap().stat().unwrap().st_dev;
        let unlinked = Processes::below_this().unlinked_bytes(device);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(unlinked >= 3_000_000, "{unlinked}");
    }
}

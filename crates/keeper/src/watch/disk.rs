//! Measures by how much the workspace has grown since the session began. A measurement walks the workspace, a
//! part at a time:
//!
//! - soon, if its file system has lost more space than the session may still use;
//! - seldom, if it has not: other programs may have freed as much as the session has used.
//!
//! The session may change the tree during the walk, so the walk goes by descriptors (`windlass_beneath`).

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

use super::processes::ProcessList;

/// Entries that one check walks; the next check continues the walk.
const ENTRIES_PER_CHECK: usize = 4096;

/// The clock of file timestamps may be late by this much.
const CLOCK_STEP: Duration = Duration::from_millis(10);

/// Maximum number of directories that a walk has still to enter, and of files with several names that it has
/// seen. With more, the walk counts as incomplete (`blind`).
const REMEMBERED_MAX: usize = 100_000;

/// Time between two walks, as a multiple of the last walk's time: if the file system has lost space, and if
/// not.
const PAUSE_WALKS: u32 = 10;
const PAUSE_WALKS_UNPROMPTED: u32 = 100;

/// What a session of a tenant may exceed its disk limit by, besides the limit itself. A check comes late, and a small
/// limit is exceeded by much before it.
const FAR_OVER_SLACK: u64 = 64 << 20;

/// The known size of the workspace, and the growth that is allowed.
#[derive(Debug)]
pub(crate) struct DiskMeter {
    /// `None` if the workspace could not be opened: then nothing is measured.
    workspace: Option<Directory>,
    allowed: u64,
    /// Above this growth the session ends. Absent: it goes on, so that it can remove files.
    ends_above: Option<u64>,
    /// The size when the session began. Unknown until the first walk, which does not count files that were
    /// created since.
    baseline: Option<u64>,
    began: SystemTime,
    /// The size at the last measurement, and the free bytes of the file system then.
    size: u64,
    free: u64,
    walk: Option<DiskWalk>,
    /// The first walk could read everything.
    sees_all: bool,
    /// The next measurement does not report growth, because processes that are gone have written it.
    forgives: bool,
    last: Option<LastWalk>,
}

/// When the last walk ended, and how long it took.
#[derive(Debug, Clone, Copy)]
struct LastWalk {
    at: Instant,
    took: Duration,
}

/// The workspace has grown by more than is allowed, and since the last measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverDiskLimit {
    pub by: u64,
    pub allowed: u64,
    pub excess: DiskExcess,
}

/// Whether a session that exceeds its disk limit may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskExcess {
    Over,
    FarOver,
}

impl DiskExcess {
    fn of(by: u64, ends_above: Option<u64>) -> Self {
        match ends_above.is_some_and(|most| by > most) {
            true => Self::FarOver,
            false => Self::Over,
        }
    }
}

/// The growth above which a session of a tenant ends, for the growth that is allowed.
pub(crate) fn far_over(allowed: u64) -> u64 {
    allowed.saturating_mul(2).saturating_add(FAR_OVER_SLACK)
}

impl DiskMeter {
    /// A meter without a limit, starting from the current state. The node recorded the path without symlinks.
    pub fn of(workspace: &Path) -> Self {
        let workspace = Directory::recorded(workspace).ok();
        let is_empty = workspace.as_ref().is_some_and(is_empty);
        let free = workspace.as_ref().and_then(free_bytes);
        Self {
            workspace,
            allowed: u64::MAX,
            ends_above: None,
            baseline: is_empty.then_some(0),
            began: SystemTime::now() - CLOCK_STEP,
            size: 0,
            free: free.unwrap_or(0),
            walk: None,
            sees_all: true,
            forgives: false,
            last: None,
        }
    }

    /// Sets the allowed growth in bytes.
    pub fn allowing(self, allowed: u64) -> Self {
        Self { allowed, ..self }
    }

    /// Sets the growth above which the session ends.
    pub fn ending_at(self, ends_above: Option<u64>) -> Self {
        Self { ends_above, ..self }
    }

    /// Whether the size at the session's begin is known.
    pub fn has_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// Called when all processes of the session have ended. If the session is over its limit, this measures what they wrote
    /// last, so that it does not count as growth by the next worker. A session far over its limit gets no such mercy.
    pub fn measure_left(&mut self, now: Instant) {
        let before = self.size;
        let most = self.baseline.unwrap_or(before).saturating_add(self.allowed);
        if before <= most {
            return;
        }
        (self.walk, self.last, self.forgives) = (None, None, true);
        if self.check(now, ProcessList::default).is_some() {
            self.size = before;
        }
    }

    /// Walks a part of the workspace if a walk is in progress or due. Returns the growth if it is over the
    /// limit.
    pub fn check(
        &mut self,
        now: Instant,
        processes: impl Fn() -> ProcessList,
    ) -> Option<OverDiskLimit> {
        let free = free_bytes(self.workspace.as_ref()?)?;
        self.check_with(now, free, processes)
    }

    fn check_with(
        &mut self,
        now: Instant,
        free: u64,
        processes: impl Fn() -> ProcessList,
    ) -> Option<OverDiskLimit> {
        if self.walk.is_none() {
            if !self.walk_is_due(now, free) {
                return None;
            }
            self.walk = DiskWalk::begin(self.workspace.as_ref()?, self.began, free);
        }
        let (root, walk) = (self.workspace.as_ref()?, self.walk.as_mut()?);
        if walk.go_on(root, ENTRIES_PER_CHECK) == WalkProgress::More {
            return None;
        }
        let walk = self.walk.take()?;
        let fallen = self.free.saturating_sub(walk.free);
        let mut size = walk.bytes + processes().unlinked_bytes(walk.device);
        if walk.blind && self.sees_all && self.baseline.is_some() {
            // The session has created something that the keeper cannot read: count what the file system has
            // lost.
            size = size.max(self.size + fallen);
        }
        let before = std::mem::replace(&mut self.size, size);
        self.free = walk.free;
        self.last = Some(LastWalk { at: now, took: walk.took });
        let Some(baseline) = self.baseline else {
            self.baseline = Some(size.saturating_sub(walk.new_bytes));
            self.sees_all = !walk.blind;
            return None;
        };
        let by = size.saturating_sub(baseline);
        let excess = DiskExcess::of(by, self.ends_above);
        let over = OverDiskLimit { by, allowed: self.allowed, excess };
        let is_forgiven = std::mem::take(&mut self.forgives) && excess == DiskExcess::Over;
        (by > self.allowed && size > before && !is_forgiven).then_some(over)
    }

    fn walk_is_due(&self, now: Instant, free: u64) -> bool {
        let Some(baseline) = self.baseline else { return true };
        let left = baseline.saturating_add(self.allowed).saturating_sub(self.size);
        let pause = match self.free.saturating_sub(free) > left {
            true => PAUSE_WALKS,
            false => PAUSE_WALKS_UNPROMPTED,
        };
        self.last.is_none_or(|walked| now >= walked.at + walked.took * pause)
    }
}

/// A walk through the workspace, done in parts.
#[derive(Debug)]
struct DiskWalk {
    took: Duration,
    /// Free bytes of the file system when the walk began.
    free: u64,
    device: u64,
    session_began: SystemTime,
    bytes: u64,
    /// Bytes of files that were created since the session began, if the file system records creation times.
    new_bytes: u64,
    /// Directories to enter, relative to the workspace. The workspace itself is the empty path.
    todo: Vec<PathBuf>,
    reading: Option<(Dir, PathBuf)>,
    /// Inodes of files with several names: each file counts once.
    seen: HashSet<u64>,
    /// Something could not be read.
    blind: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkProgress {
    More,
    Done,
}

impl DiskWalk {
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

    fn go_on(&mut self, root: &Directory, entries_max: usize) -> WalkProgress {
        let began = Instant::now();
        let progress = self.take_in(root, entries_max);
        self.took += began.elapsed();
        progress
    }

    fn take_in(&mut self, root: &Directory, entries_max: usize) -> WalkProgress {
        for _ in 0..entries_max {
            let Some((reading, path)) = &mut self.reading else {
                let Some(path) = self.todo.pop() else { return WalkProgress::Done };
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
                    match metadata(reading, name) {
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
        WalkProgress::More
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

/// Opens a directory of the workspace for reading.
fn read(root: &Directory, path: &Path) -> rustix::io::Result<Dir> {
    if path == Path::new("") {
        return root.entries();
    }
    let flags = READ | OFlags::DIRECTORY;
    Dir::new(open_beneath(root, path, flags, Mode::empty(), Links::Refuse)?)
}

/// Metadata of an entry. A symlink is not followed.
fn metadata(directory: &Dir, name: &std::ffi::CStr) -> rustix::io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    statx(directory.fd()?, name, AtFlags::SYMLINK_NOFOLLOW, wanted)
}

/// When a file was created, if the file system records it.
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

/// Free bytes of the workspace's file system.
fn free_bytes(workspace: &Directory) -> Option<u64> {
    let about = fstatvfs(workspace).ok()?;
    Some(about.f_bfree.saturating_mul(about.f_frsize))
}

/// Whether an error can hide files. An entry that was removed meanwhile holds nothing.
fn hides(errno: Errno) -> bool {
    errno != Errno::NOENT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time limit for a walk of a few files.
    const SOON: Duration = Duration::from_secs(5);

    const MIB: u64 = 1 << 20;

    fn write(dir: &Path, name: &str, bytes: u64) {
        std::fs::write(dir.join(name), vec![7; usize::try_from(bytes).unwrap()]).unwrap();
    }

    /// Creates a file of 1 MiB with a later creation time than another file, and returns that time.
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

    /// Checks until a walk, if one is due, is done.
    fn check(disk: &mut DiskMeter, free: u64) -> Option<u64> {
        let now = Instant::now();
        disk.last = None;
        loop {
            let grown = disk.check_with(now, free, ProcessList::default);
            if grown.is_some() || disk.walk.is_none() {
                return grown.map(|grown| grown.by / MIB);
            }
            assert!(now.elapsed() < SOON);
        }
    }

    #[test]
    fn only_sessions_of_tenants_end_when_they_are_far_over_the_limit() {
        for (by, allowed, is_of_tenant, expected) in [
            (3 * MIB, 2 * MIB, true, DiskExcess::Over),
            (68 * MIB, 2 * MIB, true, DiskExcess::Over),
            (69 * MIB, 2 * MIB, true, DiskExcess::FarOver),
            (69 * MIB, 2 * MIB, false, DiskExcess::Over),
            (64 * MIB + 1, 0, true, DiskExcess::FarOver),
            (u64::MAX, u64::MAX, true, DiskExcess::Over),
        ] {
            let ends_above = is_of_tenant.then(|| far_over(allowed));
            assert_eq!(DiskExcess::of(by, ends_above), expected, "{by} {allowed} {is_of_tenant}");
        }
    }

    #[test]
    fn growth_over_the_limit_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = DiskMeter { free: 100 * MIB, ..DiskMeter::of(dir.path()).allowing(4 * MIB) };
        assert_eq!(disk.baseline, Some(0));
        write(dir.path(), "a", 5 * MIB);
        assert_eq!(check(&mut disk, 95 * MIB), Some(5));
        assert_eq!(disk.free, 95 * MIB);
    }

    #[test]
    fn a_walk_is_due_soon_if_space_was_lost_and_later_if_not() {
        let dir = tempfile::tempdir().unwrap();
        let walked = LastWalk { at: Instant::now(), took: Duration::from_millis(20) };
        let disk = DiskMeter { free: 100 * MIB, ..DiskMeter::of(dir.path()).allowing(4 * MIB) };
        let disk = DiskMeter { last: Some(walked), ..disk };
        let worth = |ms, free| disk.walk_is_due(walked.at + Duration::from_millis(ms), free);
        assert!(!worth(199, 95 * MIB) && worth(200, 95 * MIB));
        assert!(!worth(1999, 100 * MIB) && worth(2000, 100 * MIB));
        assert!(worth(2000, 200 * MIB), "others freed a lot");
    }

    #[test]
    fn files_from_before_the_session_are_not_growth() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "before", 6 * MIB);
        let mut disk = DiskMeter { free: 100 * MIB, ..DiskMeter::of(dir.path()).allowing(4 * MIB) };
        assert_eq!(disk.baseline, None);
        disk.began = made_later(dir.path(), "before", "quick");
        assert_eq!(check(&mut disk, 100 * MIB), None);
        assert_eq!(disk.baseline.map(|bytes| bytes / MIB), Some(6));
        write(dir.path(), "new", 2 * MIB);
        assert_eq!(check(&mut disk, 90 * MIB), None, "others took the room");
        write(dir.path(), "more", 3 * MIB);
        assert_eq!(check(&mut disk, 80 * MIB), Some(6));
    }

    #[test]
    fn a_full_session_may_remove_files_and_may_not_grow() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = DiskMeter { free: 100 * MIB, ..DiskMeter::of(dir.path()).allowing(4 * MIB) };
        write(dir.path(), "a", 5 * MIB);
        write(dir.path(), "b", 3 * MIB);
        assert_eq!(check(&mut disk, 92 * MIB), Some(8));
        std::fs::remove_file(dir.path().join("b")).unwrap();
        assert_eq!(check(&mut disk, 91 * MIB), None, "less than before");
        write(dir.path(), "c", MIB);
        assert_eq!(check(&mut disk, 90 * MIB), Some(6));
    }

    #[test]
    fn what_ended_processes_wrote_at_last_is_no_growth_of_the_next_ones() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskMeter::of(dir.path()).allowing(4 * MIB).ending_at(Some(12 * MIB));
        let mut disk = DiskMeter { free: 100 * MIB, ..disk };
        write(dir.path(), "a", 5 * MIB);
        assert_eq!(check(&mut disk, 95 * MIB), Some(5));
        write(dir.path(), "b", 2 * MIB);
        disk.measure_left(Instant::now());
        assert_eq!(check(&mut disk, 93 * MIB), None, "nothing was written since");
        write(dir.path(), "c", MIB);
        assert_eq!(check(&mut disk, 92 * MIB), Some(8));
        write(dir.path(), "d", 6 * MIB);
        disk.measure_left(Instant::now());
        assert_eq!(check(&mut disk, 86 * MIB), Some(14), "far over the limit");
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
        let mut walk = DiskWalk::begin(&root, SystemTime::now(), 0).unwrap();
        let parts = (1..).find(|_| walk.go_on(&root, ENTRIES_PER_CHECK) == WalkProgress::Done);
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
        let mut walk = DiskWalk::begin(&root, SystemTime::now(), 0).unwrap();
        assert_eq!(walk.go_on(&root, ENTRIES_PER_CHECK), WalkProgress::Done);
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
        let unlinked = ProcessList::below_this().unlinked_bytes(device);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(unlinked >= 3_000_000, "{unlinked}");
    }
}

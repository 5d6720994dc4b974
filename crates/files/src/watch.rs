//! Watches the directories of a workspace with inotify. Owns the table of watched directories and
//! their paths. Never waits: the caller reads the events and passes them in.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{CreateFlags, ReadFlags, WatchFlags, add_watch, init, remove_watch};
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use tokio::net::unix::pipe;
use windlass_beneath::entries;
use windlass_protocol::api::{FileEvent, FileEventKind};

use super::staging::is_staged;
use super::{FileError, FilePath, Workspace};

/// Maximum number of directories in one watch. More directories give an overflow event.
const DIRECTORIES_MAX: usize = 4096;

/// Maximum number of existing entries of new directories that are reported at once. More entries give
/// an overflow event.
const EXISTING_MAX: usize = 10_000;

const WATCHED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// A watch on a directory and all directories below it.
#[derive(Debug)]
pub struct WorkspaceWatch {
    /// A pipe end of tokio only reads and waits for readiness, and an inotify descriptor supports both.
    inotify: Arc<pipe::Receiver>,
    workspace: Workspace,
    base: FilePath,
    directories: HashMap<i32, FilePath>,
}

/// The result of a batch of inotify events.
#[derive(Debug)]
pub enum WatchUpdate {
    Events(Vec<FileEvent>),
    /// The watched directory is gone, so the watch ends after these events.
    Gone(Vec<FileEvent>),
}

/// One event as the kernel reports it.
#[derive(Debug, PartialEq, Eq)]
struct InotifyEvent {
    directory: i32,
    flags: u32,
    /// Absent also for a name that is not UTF-8: JSON cannot carry such a name.
    name: Option<String>,
}

/// The events to report, in order.
#[derive(Default)]
struct EventBatch {
    events: Vec<FileEvent>,
    /// Paths whose change was reported and that were not removed since: a further change is not reported.
    changed: HashSet<FilePath>,
    /// Number of reported existing entries.
    existing: usize,
}

impl WorkspaceWatch {
    /// Watches a directory. The events name directories that cannot be watched.
    pub fn begin(
        workspace: Workspace,
        path: FilePath,
    ) -> Result<(Self, Vec<FileEvent>), FileError> {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let inotify = init(flags).map_err(|cause| match cause {
            Errno::MFILE | Errno::NFILE => FileError::TooManyWatches,
            other => FileError::of(path.as_str(), other),
        })?;
        let inotify = pipe::Receiver::from_owned_fd_unchecked(inotify)
            .map_err(|cause| FileError::of(path.as_str(), cause))?;
        // A directory that cannot be opened is an error here; `watch_tree` would skip it.
        workspace.directory(&path)?;
        let mut watch = Self {
            inotify: Arc::new(inotify),
            workspace,
            base: path.clone(),
            directories: HashMap::new(),
        };
        let mut batch = EventBatch::default();
        watch.watch_tree(path, ExistingEntries::Skip, &mut batch);
        if watch.directories.is_empty() {
            return Err(FileError::TooManyWatches);
        }
        Ok((watch, batch.events))
    }

    /// The descriptor to read inotify events from.
    pub fn source(&self) -> Arc<pipe::Receiver> {
        self.inotify.clone()
    }

    /// Translates a batch of bytes that was read from `source`.
    pub fn read_events(&mut self, mut bytes: &[u8]) -> WatchUpdate {
        let mut batch = EventBatch::default();
        while let Some((event, rest)) = InotifyEvent::parse(bytes) {
            self.apply(event, &mut batch);
            bytes = rest;
        }
        if self.directories.is_empty() {
            batch.add(FileEventKind::Removed, &self.base);
            return WatchUpdate::Gone(batch.events);
        }
        WatchUpdate::Events(batch.events)
    }

    fn apply(&mut self, event: InotifyEvent, batch: &mut EventBatch) {
        let InotifyEvent { directory, flags, name } = event;
        let flags = ReadFlags::from_bits_retain(flags);
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            batch.add(FileEventKind::Overflow, &self.base);
            // Events were lost, so new directories may be unwatched. Watch them from now on.
            self.watch_tree(self.base.clone(), ExistingEntries::Skip, batch);
            return;
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&directory);
            return;
        }
        let (Some(above), Some(name)) = (self.directories.get(&directory), name) else { return };
        let path = above.join(&name);
        if is_staged(&name) || self.workspace.is_hidden(&path) {
            return;
        }
        if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            batch.add(FileEventKind::Made, &path);
            if flags.contains(ReadFlags::ISDIR) {
                self.watch_tree(path, ExistingEntries::Report, batch);
            }
        } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            if flags.contains(ReadFlags::ISDIR) {
                self.unwatch_tree(&path);
            }
            // Another file may have this path already. Its creation has its own event.
            if !self.is_present(&path) {
                batch.add(FileEventKind::Removed, &path);
            }
        } else if flags.contains(ReadFlags::MODIFY) {
            batch.add(FileEventKind::Changed, &path);
        }
    }

    /// Watches a directory and all directories below it, and reports their entries if asked to.
    fn watch_tree(&mut self, path: FilePath, existing: ExistingEntries, batch: &mut EventBatch) {
        let mut pending = vec![path];
        while let Some(path) = pending.pop() {
            let Ok(directory) = self.workspace.directory(&path) else { continue };
            let by_descriptor = format!("/proc/self/fd/{}", directory.as_raw_fd());
            let full = self.directories.len() >= DIRECTORIES_MAX;
            let watched =
                if full { None } else { add_watch(&*self.inotify, by_descriptor, WATCHED).ok() };
            let Some(number) = watched else {
                batch.add(FileEventKind::Overflow, &path);
                return;
            };
            self.directories.insert(number, path.clone());
            // Listed after the watch began: an entry that is made in between is reported twice rather
            // than not at all.
            let Ok(listed) = entries(&directory) else { continue };
            for entry in listed.flatten() {
                let Ok(name) = entry.file_name().to_str() else { continue };
                let inner = path.join(name);
                if matches!(name, "." | "..") || is_staged(name) || self.workspace.is_hidden(&inner)
                {
                    continue;
                }
                if existing == ExistingEntries::Report && !batch.add_existing(&inner, &path) {
                    return;
                }
                if is_directory(&directory, name, entry.file_type()) {
                    pending.push(inner);
                }
            }
        }
    }

    /// Stops watching a directory that was removed or moved, and all directories below it.
    fn unwatch_tree(&mut self, path: &FilePath) {
        self.directories.retain(|number, watched| {
            let gone = watched.is_within(path);
            if gone {
                // A moved directory would report events under its old path.
                let _ = remove_watch(&*self.inotify, *number);
            }
            !gone
        });
    }

    fn is_present(&self, path: &FilePath) -> bool {
        matches!(self.workspace.look(path), Ok(Some(_)))
    }
}

impl InotifyEvent {
    /// Parses the first event of a batch: four words, the last of which is the length of the name. The
    /// name is padded with zeros.
    fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (words, rest) = bytes.split_at_checked(16)?;
        let word = |at: usize| {
            let word = words[at..at + 4].try_into().expect("the slice has four bytes");
            u32::from_ne_bytes(word)
        };
        let (name, rest) = rest.split_at_checked(usize::try_from(word(12)).ok()?)?;
        let name = name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty());
        let name = name.and_then(|name| String::from_utf8(name.to_vec()).ok());
        Some((Self { directory: word(0).cast_signed(), flags: word(4), name }, rest))
    }
}

/// Whether entries that exist when a directory is first watched are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExistingEntries {
    Report,
    Skip,
}

impl EventBatch {
    fn add(&mut self, kind: FileEventKind, path: &FilePath) {
        match kind {
            FileEventKind::Changed if !self.changed.insert(path.clone()) => return,
            FileEventKind::Removed => {
                self.changed.remove(path);
            }
            _ => {}
        }
        let event = FileEvent { kind, path: path.as_str().to_owned() };
        if self.events.last() != Some(&event) {
            self.events.push(event);
        }
    }

    /// Reports an existing entry of a new directory. Returns false when the limit is reached.
    fn add_existing(&mut self, path: &FilePath, directory: &FilePath) -> bool {
        self.existing += 1;
        if self.existing > EXISTING_MAX {
            self.add(FileEventKind::Overflow, directory);
            return false;
        }
        self.add(FileEventKind::Made, path);
        true
    }
}

fn is_directory(above: &OwnedFd, name: &str, kind: FileType) -> bool {
    match kind {
        FileType::Directory => true,
        FileType::Unknown => statat(above, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inotify_events_are_parsed_as_the_kernel_lays_them_out() {
        let mut bytes = Vec::new();
        for (directory, flags, name) in [(1u32, 2u32, &b"a.txt\0\0\0"[..]), (7, 0x4000, b"")] {
            for word in [directory, flags, 0, u32::try_from(name.len()).unwrap()] {
                bytes.extend_from_slice(&word.to_ne_bytes());
            }
            bytes.extend_from_slice(name);
        }
        let (first, rest) = InotifyEvent::parse(&bytes).unwrap();
        assert_eq!(first, InotifyEvent { directory: 1, flags: 2, name: Some("a.txt".to_owned()) });
        let (second, rest) = InotifyEvent::parse(rest).unwrap();
        assert_eq!(second, InotifyEvent { directory: 7, flags: 0x4000, name: None });
        assert_eq!(InotifyEvent::parse(rest), None);
        assert_eq!(InotifyEvent::parse(&bytes[..20]), None);
    }
}

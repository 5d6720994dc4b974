//! What happens in a workspace's directories, told by the kernel (inotify). Owns which directories
//! are watched under which names; waits for nothing itself.

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

/// Directories of one watch. Of more, only that there are more is told.
const DIRECTORIES_MAX: usize = 4096;

/// Entries told of directories that came with something in them; of more, only that there are.
const FOUND_MAX: usize = 10_000;

const WATCHED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// A directory and those below it, watched.
#[derive(Debug)]
pub struct Watch {
    /// The runtime's pipe ends only read and wait, which this descriptor does as pipes do.
    inotify: Arc<pipe::Receiver>,
    workspace: Workspace,
    base: FilePath,
    directories: HashMap<i32, FilePath>,
}

/// What was heard.
#[derive(Debug)]
pub enum Heard {
    Events(Vec<FileEvent>),
    /// The watched directory is gone, and with it everything to watch.
    Gone(Vec<FileEvent>),
}

/// One of the kernel's events.
#[derive(Debug, PartialEq, Eq)]
struct Raw {
    directory: i32,
    flags: u32,
    /// Absent where it is no text, too: that can neither be told nor asked for.
    name: Option<String>,
}

/// What is to be told, in order.
#[derive(Default)]
struct Tale {
    events: Vec<FileEvent>,
    /// Whose last word is that it changed, or was made: nothing more is said of its changes.
    changed: HashSet<FilePath>,
    found: usize,
}

impl Watch {
    /// Watches a directory, and says what it cannot watch of it.
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
        // Refused here rather than passed over below.
        workspace.directory(&path)?;
        let mut watch = Self {
            inotify: Arc::new(inotify),
            workspace,
            base: path.clone(),
            directories: HashMap::new(),
        };
        let mut tale = Tale::default();
        watch.cover(path, Found::Known, &mut tale);
        if watch.directories.is_empty() {
            return Err(FileError::TooManyWatches);
        }
        Ok((watch, tale.events))
    }

    /// Where the kernel's events are read from.
    pub fn source(&self) -> Arc<pipe::Receiver> {
        self.inotify.clone()
    }

    /// What bytes of the kernel's mean, as they were read.
    pub fn hear(&mut self, mut bytes: &[u8]) -> Heard {
        let mut tale = Tale::default();
        while let Some((event, rest)) = Raw::parse(bytes) {
            self.understand(event, &mut tale);
            bytes = rest;
        }
        if self.directories.is_empty() {
            tale.tell(FileEventKind::Removed, &self.base);
            return Heard::Gone(tale.events);
        }
        Heard::Events(tale.events)
    }

    fn understand(&mut self, event: Raw, tale: &mut Tale) {
        let Raw { directory, flags, name } = event;
        let flags = ReadFlags::from_bits_retain(flags);
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            tale.tell(FileEventKind::Overflow, &self.base);
            // Directories that came unheard are watched from now on.
            self.cover(self.base.clone(), Found::Known, tale);
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
            tale.tell(FileEventKind::Made, &path);
            if flags.contains(ReadFlags::ISDIR) {
                self.cover(path, Found::New, tale);
            }
        } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            if flags.contains(ReadFlags::ISDIR) {
                self.uncover(&path);
            }
            // Something else may be there already: it is told of by itself.
            if !self.is_there(&path) {
                tale.tell(FileEventKind::Removed, &path);
            }
        } else if flags.contains(ReadFlags::MODIFY) {
            tale.tell(FileEventKind::Changed, &path);
        }
    }

    /// Watches a directory and all below it, and tells what is in them if they are new.
    fn cover(&mut self, path: FilePath, found: Found, tale: &mut Tale) {
        let mut open = vec![path];
        while let Some(path) = open.pop() {
            let Ok(directory) = self.workspace.directory(&path) else { continue };
            let place = format!("/proc/self/fd/{}", directory.as_raw_fd());
            let full = self.directories.len() >= DIRECTORIES_MAX;
            let watched = if full { None } else { add_watch(&*self.inotify, place, WATCHED).ok() };
            let Some(number) = watched else {
                tale.tell(FileEventKind::Overflow, &path);
                return;
            };
            self.directories.insert(number, path.clone());
            // After the watch: what comes between is told twice rather than not at all.
            let Ok(found_there) = entries(&directory) else { continue };
            for entry in found_there.flatten() {
                let Ok(name) = entry.file_name().to_str() else { continue };
                let inner = path.join(name);
                if matches!(name, "." | "..") || is_staged(name) || self.workspace.is_hidden(&inner)
                {
                    continue;
                }
                if found == Found::New && !tale.tell_found(&inner, &path) {
                    return;
                }
                if is_directory(&directory, name, entry.file_type()) {
                    open.push(inner);
                }
            }
        }
    }

    /// Forgets a directory that went, and all below it.
    fn uncover(&mut self, path: &FilePath) {
        self.directories.retain(|number, watched| {
            let gone = watched.is_within(path);
            if gone {
                // Moved, and not removed: what happens there is no longer ours to tell.
                let _ = remove_watch(&*self.inotify, *number);
            }
            !gone
        });
    }

    fn is_there(&self, path: &FilePath) -> bool {
        matches!(self.workspace.look(path), Ok(Some(_)))
    }
}

impl Raw {
    /// The first of some events: four words, the last of them the length of the name, which is
    /// filled up with zeros.
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

/// Whether what is in a directory is news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    New,
    Known,
}

impl Tale {
    fn tell(&mut self, kind: FileEventKind, path: &FilePath) {
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

    /// Tells of what was found in a new directory; whether there may be more.
    fn tell_found(&mut self, path: &FilePath, directory: &FilePath) -> bool {
        self.found += 1;
        if self.found > FOUND_MAX {
            self.tell(FileEventKind::Overflow, directory);
            return false;
        }
        self.tell(FileEventKind::Made, path);
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
    fn the_kernels_events_are_read_as_they_are_laid_out() {
        let mut bytes = Vec::new();
        for (directory, flags, name) in [(1u32, 2u32, &b"a.txt\0\0\0"[..]), (7, 0x4000, b"")] {
            for word in [directory, flags, 0, u32::try_from(name.len()).unwrap()] {
                bytes.extend_from_slice(&word.to_ne_bytes());
            }
            bytes.extend_from_slice(name);
        }
        let (first, rest) = Raw::parse(&bytes).unwrap();
        assert_eq!(first, Raw { directory: 1, flags: 2, name: Some("a.txt".to_owned()) });
        let (second, rest) = Raw::parse(rest).unwrap();
        assert_eq!(second, Raw { directory: 7, flags: 0x4000, name: None });
        assert_eq!(Raw::parse(rest), None);
        assert_eq!(Raw::parse(&bytes[..20]), None);
    }
}

//! Empty directories that wait to become placeholders. To move one into a workspace takes some 7 us; to
//! make one there takes 20 to 50, and a session may need twenty.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{Mode, RenameFlags, mkdirat, renameat_with};
use rustix::io::Errno;

use super::open_directory;

/// Directories that wait: enough for two sessions, each in a directory of its own.
const WAITING_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct Stock {
    place: PathBuf,
    directory: OnceLock<OwnedFd>,
    /// The numbers of those that are there; a number is a name.
    ready: Mutex<Vec<u32>>,
}

impl Stock {
    /// `place` is a directory where no session writes.
    pub fn at(place: PathBuf) -> Self {
        Self { place, directory: OnceLock::new(), ready: Mutex::default() }
    }

    /// Makes what is missing of the stock. Without a stock placeholders are made one by one.
    pub fn fill(&self) {
        let Some(directory) = self.open() else { return };
        for number in 0..WAITING_MAX {
            if self.ready().contains(&number) {
                continue;
            }
            match mkdirat(directory, number.to_string(), Mode::from(0o755)) {
                // One that is there already was made by a node before this one.
                Ok(()) | Err(Errno::EXIST) => self.ready().push(number),
                Err(_) => return,
            }
        }
    }

    /// Moves an empty directory of the stock to `name`, if that name is free. Returns false where the stock
    /// is empty, or cannot be moved there because `to` lies on another file system.
    pub fn move_one_to(&self, to: impl AsFd, name: &OsStr) -> Result<bool, Errno> {
        let Some(directory) = self.directory.get() else { return Ok(false) };
        let Some(number) = self.ready().pop() else { return Ok(false) };
        let moved = renameat_with(directory, number.to_string(), to, name, RenameFlags::NOREPLACE);
        match moved {
            Ok(()) => return Ok(true),
            // It is gone: `fill` makes it again.
            Err(Errno::NOENT) => return Ok(false),
            Err(_) => self.ready().push(number),
        }
        match moved {
            Err(Errno::EXIST) => Err(Errno::EXIST),
            _ => Ok(false),
        }
    }

    fn open(&self) -> Option<&OwnedFd> {
        if self.directory.get().is_none() {
            std::fs::create_dir_all(&self.place).ok()?;
            let opened = open_directory(&self.place).ok()?;
            // Whoever came first has the same one open.
            let _ = self.directory.set(opened);
        }
        self.directory.get()
    }

    fn ready(&self) -> MutexGuard<'_, Vec<u32>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

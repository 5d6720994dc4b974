//! A stock of empty directories for placeholders. Moving one into a workspace takes about 7 us. Making one
//! there takes 20 to 50 us, and a session may need thirty.
//!
//! A placeholder is never moved back into the stock. Another session in the same workspace, whose policy
//! does not protect the name, may have the directory open and could write into it after the move.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{Mode, RenameFlags, mkdirat, renameat_with};
use rustix::io::Errno;

use super::open_directory;

/// The mode of a placeholder.
pub(super) const MODE: u32 = 0o755;

/// Number of directories in a full stock: enough for two sessions in different workspaces. Their names are
/// the numbers below this.
const WAITING_MAX: u32 = u64::BITS;

#[derive(Debug)]
pub(super) struct Stock {
    path: PathBuf,
    directory: OnceLock<OwnedFd>,
    ready: Mutex<StockedDirs>,
}

/// Which directories exist: one bit for each number.
#[derive(Debug, Default)]
struct StockedDirs(u64);

impl StockedDirs {
    fn count(&self) -> u32 {
        self.0.count_ones()
    }

    fn missing(&self) -> Option<u32> {
        let number = self.0.trailing_ones();
        (number < WAITING_MAX).then_some(number)
    }

    fn add(&mut self, number: u32) {
        self.0 |= 1 << number;
    }

    fn take(&mut self) -> Option<u32> {
        let number = self.0.trailing_zeros();
        if number == WAITING_MAX {
            return None;
        }
        self.0 &= !(1 << number);
        Some(number)
    }
}

impl Stock {
    /// `path` is a directory in which no session can write.
    pub fn at(path: PathBuf) -> Self {
        Self { path, directory: OnceLock::new(), ready: Mutex::default() }
    }

    /// Whether the stock may be too small for one session.
    pub fn is_low(&self) -> bool {
        self.ready().count() < WAITING_MAX / 2
    }

    /// Makes the missing directories. If that fails, placeholders are made one by one instead.
    pub fn fill(&self) {
        let Some(directory) = self.open() else { return };
        loop {
            let Some(number) = self.ready().missing() else { return };
            match mkdirat(directory, number.to_string(), Mode::from(MODE)) {
                // An earlier node made the directory.
                Ok(()) | Err(Errno::EXIST) => self.ready().add(number),
                Err(_) => return,
            }
        }
    }

    /// Moves a directory of the stock to `name`, if that name is free. Returns false if the stock is empty,
    /// or if `to` is on another file system.
    pub fn move_one_to(&self, to: impl AsFd, name: &OsStr) -> Result<bool, Errno> {
        let Some(directory) = self.directory.get() else { return Ok(false) };
        let Some(number) = self.ready().take() else { return Ok(false) };
        let moved = renameat_with(directory, number.to_string(), to, name, RenameFlags::NOREPLACE);
        match moved {
            Ok(()) => return Ok(true),
            // The directory is gone; `fill` makes it again.
            Err(Errno::NOENT) => return Ok(false),
            Err(_) => self.ready().add(number),
        }
        match moved {
            Err(Errno::EXIST) => Err(Errno::EXIST),
            _ => Ok(false),
        }
    }

    fn open(&self) -> Option<&OwnedFd> {
        if self.directory.get().is_none() {
            std::fs::create_dir_all(&self.path).ok()?;
            let opened = open_directory(&self.path).ok()?;
            // Another thread may have set it already, to the same directory.
            let _ = self.directory.set(opened);
        }
        self.directory.get()
    }

    fn ready(&self) -> MutexGuard<'_, StockedDirs> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

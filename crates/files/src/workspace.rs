//! A workspace, held by a descriptor of its directory. The kernel resolves every path beneath this
//! descriptor (`openat2`). It rejects `..`, symlinks that lead out and the magic links of `/proc`, even
//! if directories are renamed at the same time. Only regular files are opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, mkdirat, statat};
use rustix::io::Errno;
use windlass_beneath::{DIRECTORY, Directory, Links, READ, is_of_kernel, open_beneath};

use super::hidden::Hidden;
use super::{CommitLock, FileError, FilePath, FileScope, Files, Precondition, precondition};

/// Identifies a file independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
    identity: FileIdentity,
    hidden: Hidden,
    commit_lock: Arc<CommitLock>,
    pub file_bytes_max: u64,
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    pub bytes: u64,
    pub etag: String,
    stat: Stat,
}

impl OpenFile {
    pub fn meets(&self, condition: &Precondition) -> bool {
        condition.holds(Some(&self.stat))
    }
}

impl Workspace {
    pub fn open(access: &FileScope, files: &Files) -> Result<Self, FileError> {
        let missing = |cause: io::Error| FileError::NoWorkspace {
            path: access.workspace.display().to_string(),
            cause,
        };
        // The recorded path has no symlinks.
        let root = Directory::recorded(&access.workspace).map_err(missing)?;
        let identity = FileIdentity::of(&root.stat().map_err(missing)?);
        Ok(Self {
            commit_lock: files.commit_lock(identity),
            hidden: Hidden::of(access),
            file_bytes_max: access.file_bytes_max,
            identity,
            root: root.into(),
        })
    }

    /// Waits until no other client commits changes in this workspace.
    pub fn lock_commits(&self) -> MutexGuard<'_, ()> {
        self.commit_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_hidden(&self, path: &FilePath) -> bool {
        self.hidden.hides(path)
    }

    /// Opens a regular file.
    pub fn file(&self, path: &FilePath) -> Result<OpenFile, FileError> {
        let failed = |cause: Errno| FileError::of(path.as_str(), cause);
        let Some((above, name)) = path.split() else { return Err(failed(Errno::ISDIR)) };
        let directory = self.directory(&above).map_err(|error| named(error, path))?;
        // Checked before it is opened, because opening a pipe or a device can have side effects.
        let seen = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        self.check_regular(path, &seen)?;
        let file = beneath(&directory, name, READ, Mode::empty()).map_err(failed)?;
        let stat = fstat(&file).map_err(failed)?;
        self.check_regular(path, &stat)?;
        Ok(OpenFile {
            file: file.into(),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            etag: precondition::etag(&stat),
            stat,
        })
    }

    /// Opens a directory as an `O_PATH` descriptor.
    pub fn directory(&self, path: &FilePath) -> Result<OwnedFd, FileError> {
        let failed = |cause: Errno| FileError::of(path.as_str(), cause);
        self.check_shown(path)?;
        let name = if path.is_workspace() { "." } else { path.as_str() };
        let directory = beneath(&self.root, name, DIRECTORY, Mode::empty()).map_err(failed)?;
        if self.hidden.holds(&directory, self.identity).map_err(failed)? {
            return Err(hidden(path));
        }
        check_file_system(&directory, path)?;
        Ok(directory)
    }

    /// The status of what is at a path now, without following a symlink at the path itself.
    pub fn look(&self, path: &FilePath) -> Result<Option<Stat>, FileError> {
        self.check_shown(path)?;
        let Some((above, name)) = path.split() else {
            return Err(FileError::of(path.as_str(), Errno::ISDIR));
        };
        let directory = match self.directory(&above) {
            Ok(directory) => directory,
            Err(FileError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if self.hidden.is_one(&stat) => Err(hidden(path)),
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(FileError::of(path.as_str(), cause)),
        }
    }

    /// Opens the directory at a path, and makes it and its parents if they are missing. Adds the new
    /// directories to `made`.
    pub fn make_directory(
        &self,
        path: &FilePath,
        made: &mut Vec<FilePath>,
    ) -> Result<OwnedFd, FileError> {
        match (self.directory(path), path.split()) {
            (Err(FileError::NotFound { .. }), Some((above, name))) => {
                let directory = self.make_directory(&above, made)?;
                match mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) => made.push(path.clone()),
                    Err(Errno::EXIST) => {}
                    Err(cause) => return Err(FileError::of(path.as_str(), cause)),
                }
                self.directory(path)
            }
            (found, _) => found,
        }
    }

    /// The nearest existing directory above a file.
    pub fn nearest_directory(&self, path: &FilePath) -> Result<OwnedFd, FileError> {
        let mut above = path.split().map(|(above, _)| above);
        while let Some(here) = above {
            match self.directory(&here) {
                Err(FileError::NotFound { .. }) if !here.is_workspace() => {
                    above = here.split().map(|(above, _)| above);
                }
                found => return found,
            }
        }
        Err(FileError::of(path.as_str(), Errno::ISDIR))
    }

    /// Refuses everything that is not a regular file, and hidden files.
    pub fn check_regular(&self, path: &FilePath, stat: &Stat) -> Result<(), FileError> {
        let why = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if self.hidden.is_one(stat) => return Err(hidden(path)),
            FileType::RegularFile => return self.check_shown(path),
            FileType::Directory => "it is a directory",
            FileType::Symlink => "it is a symlink, and symlinks are not followed",
            _ => "it is not a regular file",
        };
        Err(FileError::Refused { path: path.as_str().to_owned(), why })
    }

    fn check_shown(&self, path: &FilePath) -> Result<(), FileError> {
        if self.hidden.hides(path) { Err(hidden(path)) } else { Ok(()) }
    }
}

/// Opens a path beneath a directory. Symlinks that stay beneath the directory are followed, so that a
/// client can name files as the session's code does.
pub(super) fn beneath(
    directory: impl AsFd,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    open_beneath(directory, path.as_ref(), flags, mode, Links::Inside)
}

fn check_file_system(directory: impl AsFd, path: &FilePath) -> Result<(), FileError> {
    if is_of_kernel(directory).map_err(|cause| FileError::of(path.as_str(), cause))? {
        let why = "it is on a file system of the kernel";
        return Err(FileError::Refused { path: path.as_str().to_owned(), why });
    }
    Ok(())
}

fn hidden(path: &FilePath) -> FileError {
    let why = "the session's policy hides it";
    FileError::Refused { path: path.as_str().to_owned(), why }
}

/// Makes the error name the requested file instead of its missing directory.
fn named(error: FileError, path: &FilePath) -> FileError {
    match error {
        FileError::NotFound { .. } => FileError::of(path.as_str(), io::Error::from(Errno::NOENT)),
        other => other,
    }
}

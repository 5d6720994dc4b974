//! A workspace, held by a descriptor of its directory. Every path is resolved by the kernel beneath
//! it (`openat2`): `..`, links that lead out and `/proc`'s magic links end there, whatever is
//! renamed at the same moment. Only plain files are opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, mkdirat, statat};
use rustix::io::Errno;
use windlass_beneath::{DIRECTORY, Directory, Links, READ, is_of_kernel, open_beneath};

use super::hidden::Hidden;
use super::{Condition, FileError, FilePath, Files, Place, Turnstile, condition};

/// What a file is, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
    identity: Identity,
    hidden: Hidden,
    turnstile: Arc<Turnstile>,
    pub file_bytes_max: u64,
}

/// A plain file, open to be read.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    pub bytes: u64,
    pub etag: String,
    stat: Stat,
}

impl OpenFile {
    pub fn meets(&self, condition: &Condition) -> bool {
        condition.holds(Some(&self.stat))
    }
}

impl Workspace {
    pub fn open(place: &Place, files: &Files) -> Result<Self, FileError> {
        let missing = |cause: io::Error| FileError::NoWorkspace {
            path: place.workspace.display().to_string(),
            cause,
        };
        // The path was recorded without links.
        let root = Directory::recorded(&place.workspace).map_err(missing)?;
        let identity = Identity::of(&root.stat().map_err(missing)?);
        Ok(Self {
            turnstile: files.turnstile(identity),
            hidden: Hidden::of(place),
            file_bytes_max: place.file_bytes_max,
            identity,
            root: root.into(),
        })
    }

    /// Waits until no other client changes files in this workspace.
    pub fn alone(&self) -> MutexGuard<'_, ()> {
        self.turnstile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_hidden(&self, path: &FilePath) -> bool {
        self.hidden.hides(path)
    }

    /// A plain file's content.
    pub fn file(&self, path: &FilePath) -> Result<OpenFile, FileError> {
        let failed = |cause: Errno| FileError::of(path.as_str(), cause);
        let Some((above, name)) = path.split() else { return Err(failed(Errno::ISDIR)) };
        let directory = self.directory(&above).map_err(|error| named(error, path))?;
        // Looked at before it is opened: opening a pipe or a device can do something.
        let seen = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        self.check_plain(path, &seen)?;
        let file = beneath(&directory, name, READ, Mode::empty()).map_err(failed)?;
        let stat = fstat(&file).map_err(failed)?;
        self.check_plain(path, &stat)?;
        Ok(OpenFile {
            file: file.into(),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            etag: condition::etag(&stat),
            stat,
        })
    }

    /// A directory's descriptor, to be used by name only.
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

    /// What is at a path now, if anything; never what a link there leads to.
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

    /// The directory of that path, made with those above it where they are not there. Those that
    /// were made are added to `made`.
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

    /// The nearest directory above a file that is there.
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

    /// Refuses what is not a plain file that may be seen.
    pub fn check_plain(&self, path: &FilePath, stat: &Stat) -> Result<(), FileError> {
        let why = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if self.hidden.is_one(stat) => return Err(hidden(path)),
            FileType::RegularFile => return self.check_shown(path),
            FileType::Directory => "it is a directory",
            FileType::Symlink => "it is a link, and links are not followed",
            _ => "it is no plain file",
        };
        Err(FileError::Refused { path: path.as_str().to_owned(), why })
    }

    fn check_shown(&self, path: &FilePath) -> Result<(), FileError> {
        if self.hidden.hides(path) { Err(hidden(path)) } else { Ok(()) }
    }
}

/// Opens beneath a directory. Links are followed as long as they stay beneath it: a client names its
/// files as the session's code does.
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
        let why = "it is the kernel's, and no file";
        return Err(FileError::Refused { path: path.as_str().to_owned(), why });
    }
    Ok(())
}

fn hidden(path: &FilePath) -> FileError {
    let why = "the session's policy hides it";
    FileError::Refused { path: path.as_str().to_owned(), why }
}

/// Who asks for a file is told of the file, and not of a directory that is not there.
fn named(error: FileError, path: &FilePath) -> FileError {
    match error {
        FileError::NotFound { .. } => FileError::of(path.as_str(), io::Error::from(Errno::NOENT)),
        other => other,
    }
}

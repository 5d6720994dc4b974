//! A workspace, held by a descriptor of its directory. The kernel resolves every path beneath this
//! descriptor (`openat2`). It rejects `..`, symlinks that lead out and the magic links of `/proc`, even
//! if directories are renamed at the same time. Only regular files are opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, statat};
use rustix::io::Errno;
use windlass_beneath::{DIRECTORY, Directory, Links, READ, is_of_kernel, open_beneath};
use windlass_protocol::policy::WorkspaceAccess;

use super::closed::ClosedPaths;
use super::owner::FileOwner;
use super::{
    CommitLock, FileError, FilePath, FileScope, Files, Precondition, Writer, precondition,
};

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
    hidden: ClosedPaths,
    protected: ClosedPaths,
    writer: Writer,
    new_file_owner: Option<FileOwner>,
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
        let stat = root.stat().map_err(missing)?;
        let identity = FileIdentity::of(&stat);
        Ok(Self {
            commit_lock: files.commit_lock(identity),
            hidden: ClosedPaths::hidden(access),
            protected: ClosedPaths::protected(access),
            writer: access.writer.clone(),
            new_file_owner: FileOwner::of(access.new_file_owner, &stat),
            file_bytes_max: access.file_bytes_max,
            identity,
            root: root.into(),
        })
    }

    /// Waits until no other client commits changes in this workspace.
    pub fn lock_commits(&self) -> MutexGuard<'_, ()> {
        self.commit_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user who gets new files and directories. `None` leaves them to the node's user.
    pub(super) fn new_file_owner(&self) -> Option<FileOwner> {
        self.new_file_owner
    }

    pub fn is_hidden(&self, path: &FilePath) -> bool {
        self.hidden.names(path)
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
        self.check_open(path)?;
        let name = if path.is_workspace() { "." } else { path.as_str() };
        let directory = beneath(&self.root, name, DIRECTORY, Mode::empty()).map_err(failed)?;
        for (closed, why) in self.closed() {
            if closed.holds(&directory, self.identity).map_err(failed)? {
                return Err(refused(path, why));
            }
        }
        check_file_system(&directory, path)?;
        Ok(directory)
    }

    /// The status of what a change would replace, without following a symlink at the path itself. Refuses a
    /// path that the writer must not change.
    pub fn look(&self, path: &FilePath) -> Result<Option<Stat>, FileError> {
        self.check_writer(path)?;
        self.check_open(path)?;
        let Some((above, name)) = path.split() else {
            return Err(FileError::of(path.as_str(), Errno::ISDIR));
        };
        let directory = match self.directory(&above) {
            Ok(directory) => directory,
            Err(FileError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => self.check_identity(path, &stat).map(|()| Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(FileError::of(path.as_str(), cause)),
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
            FileType::RegularFile => {
                return self.check_identity(path, stat).and_then(|()| self.check_open(path));
            }
            FileType::Directory => "it is a directory",
            FileType::Symlink => "it is a symlink, and symlinks are not followed",
            _ => "it is not a regular file",
        };
        Err(refused(path, why))
    }

    /// Refuses every path if the changes are those of code that may change nothing in the workspace.
    fn check_writer(&self, path: &FilePath) -> Result<(), FileError> {
        match self.writer {
            Writer::Code { workspace: WorkspaceAccess::Read, .. } => {
                Err(refused(path, "the session's policy lets its code only read the workspace"))
            }
            Writer::CodeOfLostNames => Err(refused(
                path,
                "the node cannot find all names any more that the session protects here, so it \
                 changes nothing for the session's code",
            )),
            Writer::Code { .. } | Writer::Client => Ok(()),
        }
    }

    /// What is closed, each with the reason for the client.
    fn closed(&self) -> [(&ClosedPaths, &'static str); 2] {
        [
            (&self.hidden, "the session's policy hides it"),
            (&self.protected, "the session's policy protects it from changes"),
        ]
    }

    fn check_open(&self, path: &FilePath) -> Result<(), FileError> {
        let mut closed = self.closed().into_iter();
        let found = closed.find(|(closed, _)| closed.names(path));
        found.map_or(Ok(()), |(_, why)| Err(refused(path, why)))
    }

    fn check_identity(&self, path: &FilePath, stat: &Stat) -> Result<(), FileError> {
        let mut closed = self.closed().into_iter();
        let found = closed.find(|(closed, _)| closed.is_one(stat));
        found.map_or(Ok(()), |(_, why)| Err(refused(path, why)))
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
        return Err(refused(path, why));
    }
    Ok(())
}

fn refused(path: &FilePath, why: &'static str) -> FileError {
    FileError::Refused { path: path.as_str().to_owned(), why }
}

/// Makes the error name the requested file instead of its missing directory.
fn named(error: FileError, path: &FilePath) -> FileError {
    match error {
        FileError::NotFound { .. } => FileError::of(path.as_str(), io::Error::from(Errno::NOENT)),
        other => other,
    }
}

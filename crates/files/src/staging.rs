//! Staged files: files that are written on the workspace's disk before they are moved into place. Where the
//! file system supports it (`O_TMPFILE`), a file has no name while it is written, so a killed node leaves
//! nothing behind. Otherwise, and between completion and the move, the file has a random name. Dropping the
//! staging removes all its files.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, fstat, linkat, mkdirat, openat, renameat,
    renameat_with, unlinkat,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use windlass_beneath::DIRECTORY;

use super::owner::{FileOwner, is_private};
use super::workspace::beneath;
use super::{FileError, FileIdentity, FilePath, Workspace};

/// The prefix of all staged names, in every workspace.
const PREFIX: &str = ".windlass-";

/// Random bytes in a name: 96 bits never collide.
const RANDOM_BYTES: usize = 12;

/// The mode of a new directory in a workspace, from which the node's umask takes rights.
pub(super) const DIRECTORY_MODE: u32 = 0o777;

/// Whether a name has the form of a staged name.
pub fn is_staged(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| {
        rest.len() == 2 * RANDOM_BYTES && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Where files are staged. Removing them can take long, so a drop on the runtime's thread removes them
/// on the blocking pool.
#[derive(Debug)]
pub(super) struct Staging(Option<StagedNames>);

/// The names of one staging; removed from the disk when dropped.
#[derive(Debug)]
struct StagedNames {
    directory: OwnedFd,
    names: Vec<String>,
    /// To whom complete files are given.
    owner: Option<FileOwner>,
    /// The parent and the name of the directory, if the directory was made for this staging.
    made_in: Option<(OwnedFd, String)>,
}

/// A staged file while it is written.
#[derive(Debug)]
pub(super) struct StagedWriter {
    file: File,
    /// The name that the file has, or gets when it is complete.
    name: String,
    is_named: bool,
    pub bytes: u64,
}

/// A complete staged file.
#[derive(Debug)]
pub(super) struct StagedFile {
    pub name: String,
    pub bytes: u64,
    identity: FileIdentity,
}

impl Staging {
    /// Stages in the directory of the file, or in the nearest existing directory above it.
    pub fn beside(workspace: &Workspace, path: &FilePath) -> Result<Self, FileError> {
        let (directory, owner) = (workspace.nearest_directory(path)?, workspace.new_file_owner());
        Ok(Self(Some(StagedNames { directory, names: Vec::new(), owner, made_in: None })))
    }

    /// Stages in a new directory at the top of the workspace.
    pub fn apart(workspace: &Workspace) -> Result<Self, FileError> {
        let above = workspace.directory(&FilePath::directory("")?)?;
        Self::within(above, workspace.new_file_owner()).map_err(|cause| FileError::of("", cause))
    }

    /// Stages in a new directory below `above`, which only the node's user may use.
    pub fn within(above: OwnedFd, owner: Option<FileOwner>) -> rustix::io::Result<Self> {
        let name = fresh_name()?;
        mkdirat(&above, &name, Mode::from_raw_mode(0o700))?;
        match beneath(&above, &name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(directory) => Ok(Self(Some(StagedNames {
                directory,
                names: Vec::new(),
                owner,
                made_in: Some((above, name)),
            }))),
            Err(cause) => {
                let _ = unlinkat(&above, &name, AtFlags::REMOVEDIR);
                Err(cause)
            }
        }
    }

    pub fn directory(&self) -> BorrowedFd<'_> {
        self.names().directory.as_fd()
    }

    /// A new unused name. Whatever has this name later is removed with the staging.
    pub fn fresh(&mut self) -> rustix::io::Result<String> {
        let name = fresh_name()?;
        self.names_mut().names.push(name.clone());
        Ok(name)
    }

    pub fn begin(&mut self) -> rustix::io::Result<StagedWriter> {
        let name = self.fresh()?;
        let mode = Mode::from_raw_mode(0o666);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(file) = openat(self.directory(), ".", flags | OFlags::TMPFILE, mode) {
            return Ok(StagedWriter { file: file.into(), name, is_named: false, bytes: 0 });
        }
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = openat(self.directory(), &name, flags, mode)?;
        Ok(StagedWriter { file: file.into(), name, is_named: true, bytes: 0 })
    }

    /// Makes an empty directory of this owner and returns its name. The staging was made by [`within`](Self::within).
    pub fn make_directory(&self, owner: FileOwner) -> rustix::io::Result<String> {
        // The session may have put another directory in the place of the new one.
        if !is_private(&fstat(self.directory())?) {
            return Err(Errno::AGAIN);
        }
        let name = fresh_name()?;
        mkdirat(self.directory(), &name, Mode::from_raw_mode(DIRECTORY_MODE))?;
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        let given = beneath(self.directory(), &name, flags, Mode::empty())
            .and_then(|directory| owner.give(directory));
        if given.is_err() {
            let _ = unlinkat(self.directory(), &name, AtFlags::REMOVEDIR);
        }
        given.map(|()| name)
    }

    /// Gives the complete file its owner and its name.
    pub fn finish(&self, writing: StagedWriter) -> rustix::io::Result<StagedFile> {
        let StagedWriter { file, name, is_named, bytes } = writing;
        let identity = FileIdentity::of(&fstat(&file)?);
        if let Some(owner) = self.names().owner {
            owner.give(&file)?;
        }
        if !is_named {
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, unnamed, self.directory(), &name, AtFlags::SYMLINK_FOLLOW)?;
        }
        Ok(StagedFile { name, bytes, identity })
    }

    /// Opens a staged file, if the name still belongs to the file that was written.
    pub fn open(&self, staged: &StagedFile) -> rustix::io::Result<OwnedFd> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = beneath(self.directory(), &staged.name, flags, Mode::empty())?;
        if FileIdentity::of(&fstat(&file)?) == staged.identity {
            Ok(file)
        } else {
            Err(Errno::NOENT)
        }
    }

    /// Removes the remaining files immediately.
    pub fn clear(mut self) {
        drop(self.0.take());
    }

    fn names(&self) -> &StagedNames {
        self.0.as_ref().expect("only clear and drop take the names, and both end the staging")
    }

    fn names_mut(&mut self) -> &mut StagedNames {
        self.0.as_mut().expect("only clear and drop take the names, and both end the staging")
    }
}

impl StagedWriter {
    pub fn write(&mut self, bytes: &Bytes) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let Some(names) = self.0.take() else { return };
        // If the pool does not run the closure any more, dropping the closure drops the names.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(names));
        }
    }
}

impl Drop for StagedNames {
    fn drop(&mut self) {
        for name in &self.names {
            // Most names are gone: their files were moved into place.
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
        if let Some((above, name)) = &self.made_in {
            let _ = unlinkat(above, name, AtFlags::REMOVEDIR);
        }
    }
}

/// Renames onto a free name. A file system without `RENAME_NOREPLACE` may overwrite a file that was made
/// at the same moment.
pub(super) fn rename_onto_nothing(
    staging: &Staging,
    staged: &str,
    directory: &OwnedFd,
    name: &str,
) -> rustix::io::Result<()> {
    match renameat_with(staging.directory(), staged, directory, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) => renameat(staging.directory(), staged, directory, name),
        done => done,
    }
}

fn fresh_name() -> rustix::io::Result<String> {
    let mut random = [0u8; RANDOM_BYTES];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{PREFIX}{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_staged_names_are_recognised() {
        assert!(is_staged(&fresh_name().unwrap()));
        for other in [".windlass-", ".windlass-notes", "windlass-000000000000000000000000", "a"] {
            assert!(!is_staged(other), "{other}");
        }
    }
}

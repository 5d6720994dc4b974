//! Makes the directories that are missing above a new file.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::owner::FileOwner;
use super::staging::{DIRECTORY_MODE, Staging, rename_onto_nothing};
use super::{FileError, FilePath, Workspace};

/// Opens the directory at a path, and makes it and its parents if they are missing. Adds the new directories to `made`.
pub(super) fn make_missing(
    workspace: &Workspace,
    path: &FilePath,
    made: &mut Vec<FilePath>,
) -> Result<OwnedFd, FileError> {
    match (workspace.directory(path), path.split()) {
        (Err(FileError::NotFound { .. }), Some((above, name))) => {
            let above = make_missing(workspace, &above, made)?;
            let done = match workspace.new_file_owner() {
                None => mkdirat(&above, name, Mode::from_raw_mode(DIRECTORY_MODE)),
                Some(owner) => make_for(owner, &above, name),
            };
            match done {
                Ok(()) => made.push(path.clone()),
                Err(Errno::EXIST) => {}
                Err(cause) => return Err(FileError::of(path.as_str(), cause)),
            }
            workspace.directory(path)
        }
        (found, _) => found,
    }
}

/// Makes a directory for another owner. The session can write the directory above: it could swap a directory between its
/// making and the change of its owner. So the directory is made in one that only the node can change, and moved.
fn make_for(owner: FileOwner, above: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let staging = Staging::within(fcntl_dupfd_cloexec(above, 0)?, Some(owner))?;
    let done = staging.make_directory(owner).and_then(|staged| {
        let placed = rename_onto_nothing(&staging, &staged, above, name);
        if placed.is_err() {
            let _ = unlinkat(staging.directory(), &staged, AtFlags::REMOVEDIR);
        }
        placed
    });
    staging.clear();
    done
}

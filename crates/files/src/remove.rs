//! Removes one file, symlink (not its target) or empty directory from a workspace.

use rustix::fs::{AtFlags, FileType, unlinkat};
use rustix::io::Errno;
use windlass_protocol::api::FileDeleted;

use super::commit::{FileAction, StagedChange, commit};
use super::staging::Staging;
use super::{FileError, FilePath, Precondition, Workspace};

pub fn remove(
    workspace: &Workspace,
    path: FilePath,
    condition: Precondition,
) -> Result<FileDeleted, FileError> {
    let failed = |cause: Errno| FileError::of(path.as_str(), cause);
    let there = workspace.look(&path)?;
    let is_directory =
        there.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    let name = path.as_str().to_owned();
    if let (true, Some((above, last))) = (is_directory, path.split()) {
        if condition != Precondition::Any {
            return Err(FileError::conflict(path.as_str()));
        }
        let directory = workspace.directory(&above)?;
        unlinkat(&directory, last, AtFlags::REMOVEDIR).map_err(failed)?;
    } else {
        // A conditional delete moves the file into the staging until the precondition is verified.
        let mut staging = Staging::beside(workspace, &path)?;
        let done = commit(
            workspace,
            &mut staging,
            &[StagedChange { path, condition, action: FileAction::Delete }],
        );
        staging.clear();
        done?;
    }
    Ok(FileDeleted { path: name })
}

//! Takes one file out of a workspace, a link without what it leads to, or an empty directory.

use rustix::fs::{AtFlags, FileType, unlinkat};
use rustix::io::Errno;
use windlass_protocol::api::FileDeleted;

use super::commit::{Act, Change, commit};
use super::staging::Staging;
use super::{Condition, FileError, FilePath, Workspace};

pub fn remove(
    workspace: &Workspace,
    path: FilePath,
    condition: Condition,
) -> Result<FileDeleted, FileError> {
    let failed = |cause: Errno| FileError::of(path.as_str(), cause);
    let there = workspace.look(&path)?;
    let is_directory =
        there.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    let name = path.as_str().to_owned();
    if let (true, Some((above, last))) = (is_directory, path.split()) {
        if condition != Condition::Any {
            return Err(FileError::conflict(path.as_str()));
        }
        let directory = workspace.directory(&above)?;
        unlinkat(&directory, last, AtFlags::REMOVEDIR).map_err(failed)?;
    } else {
        // For what is taken away on a condition, until it has been looked at.
        let mut staging = Staging::beside(workspace, &path)?;
        let done = commit(workspace, &mut staging, &[Change { path, condition, act: Act::Delete }]);
        staging.clear();
        done?;
    }
    Ok(FileDeleted { path: name })
}

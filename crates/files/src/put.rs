//! One file from a client: refused before its content comes where that can be told, staged while it
//! comes, in place when all of it is there.

use bytes::Bytes;
use windlass_protocol::api::FileWritten;

use super::commit::{Act, Change, commit};
use super::staging::{Staging, Writing};
use super::{Condition, FileError, FilePath, Intake, Workspace};

#[derive(Debug)]
pub struct Put {
    workspace: Workspace,
    path: FilePath,
    condition: Condition,
    staging: Staging,
    writing: Writing,
}

impl Put {
    /// `announced`: the content's length, where the client says it.
    pub fn begin(
        workspace: Workspace,
        path: FilePath,
        condition: Condition,
        announced: Option<u64>,
    ) -> Result<Self, FileError> {
        let limit = workspace.file_bytes_max;
        if announced.is_some_and(|bytes| bytes > limit) {
            return Err(FileError::TooLarge { path: path.as_str().to_owned(), limit });
        }
        let there = workspace.look(&path)?;
        if let Some(stat) = &there {
            workspace.check_plain(&path, stat)?;
        }
        if !condition.holds(there.as_ref()) {
            return Err(FileError::conflict(path.as_str()));
        }
        let mut staging = Staging::beside(&workspace, &path)?;
        let writing = staging.begin().map_err(|cause| FileError::of(path.as_str(), cause))?;
        Ok(Self { workspace, path, condition, staging, writing })
    }

    /// Puts the whole file in place.
    pub fn finish(self) -> Result<FileWritten, FileError> {
        let Self { workspace, path, condition, mut staging, writing } = self;
        let bytes = writing.bytes;
        let staged =
            staging.finish(writing).map_err(|cause| FileError::of(path.as_str(), cause))?;
        let name = path.as_str().to_owned();
        let change = Change { path, condition, act: Act::Put(staged) };
        let done = commit(&workspace, &mut staging, &[change]);
        staging.clear();
        let etag = done?.into_iter().next().flatten().unwrap_or_default();
        Ok(FileWritten { path: name, bytes, etag })
    }
}

impl Intake for Put {
    fn take(&mut self, piece: &[Bytes]) -> Result<(), FileError> {
        piece.iter().try_for_each(|bytes| {
            write(&mut self.writing, bytes, self.path.as_str(), self.workspace.file_bytes_max)
        })
    }

    fn give_up(self) {
        self.staging.clear();
    }
}

/// Adds to a file, within its limit.
pub(super) fn write(
    writing: &mut Writing,
    bytes: &Bytes,
    path: &str,
    limit: u64,
) -> Result<(), FileError> {
    if writing.bytes + bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { path: path.to_owned(), limit });
    }
    writing.write(bytes).map_err(|cause| FileError::of(path, cause))
}

//! Writes one file from a client. The file is refused before its content arrives if possible, staged
//! while it arrives, and moved into place when it is complete.

use bytes::Bytes;
use windlass_protocol::api::FileWritten;

use super::commit::{FileAction, StagedChange, commit};
use super::staging::{StagedWriter, Staging};
use super::{BodySink, FileError, FilePath, Precondition, Workspace};

#[derive(Debug)]
pub struct Put {
    workspace: Workspace,
    path: FilePath,
    condition: Precondition,
    staging: Staging,
    writing: StagedWriter,
}

impl Put {
    /// `announced` is the content's length, if the client sends it.
    pub fn begin(
        workspace: Workspace,
        path: FilePath,
        condition: Precondition,
        announced: Option<u64>,
    ) -> Result<Self, FileError> {
        let limit = workspace.file_bytes_max;
        if announced.is_some_and(|bytes| bytes > limit) {
            return Err(FileError::TooLarge { path: path.as_str().to_owned(), limit });
        }
        let there = workspace.look(&path)?;
        if let Some(stat) = &there {
            workspace.check_regular(&path, stat)?;
        }
        if !condition.holds(there.as_ref()) {
            return Err(FileError::conflict(path.as_str()));
        }
        let mut staging = Staging::beside(&workspace, &path)?;
        let writing = staging.begin().map_err(|cause| FileError::of(path.as_str(), cause))?;
        Ok(Self { workspace, path, condition, staging, writing })
    }

    /// Moves the complete file into place.
    pub fn finish(self) -> Result<FileWritten, FileError> {
        let Self { workspace, path, condition, mut staging, writing } = self;
        let bytes = writing.bytes;
        let staged =
            staging.finish(writing).map_err(|cause| FileError::of(path.as_str(), cause))?;
        let name = path.as_str().to_owned();
        let change = StagedChange { path, condition, action: FileAction::Put(staged) };
        let done = commit(&workspace, &mut staging, &[change]);
        staging.clear();
        let etag = done?.into_iter().next().flatten().unwrap_or_default();
        Ok(FileWritten { path: name, bytes, etag })
    }
}

impl BodySink for Put {
    fn take(&mut self, piece: &[Bytes]) -> Result<(), FileError> {
        piece.iter().try_for_each(|bytes| {
            write(&mut self.writing, bytes, self.path.as_str(), self.workspace.file_bytes_max)
        })
    }

    fn discard(self) {
        self.staging.clear();
    }
}

/// Appends to a staged file, within the size limit.
pub(super) fn write(
    writing: &mut StagedWriter,
    bytes: &Bytes,
    path: &str,
    limit: u64,
) -> Result<(), FileError> {
    if writing.bytes + bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { path: path.to_owned(), limit });
    }
    writing.write(bytes).map_err(|cause| FileError::of(path, cause))
}

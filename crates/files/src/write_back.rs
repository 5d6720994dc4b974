//! Writes many files of one request. The body is a sequence of frames, and the header of each frame
//! names a change. All files are staged, then all changes are committed or none.

use std::collections::HashSet;

use bytes::Bytes;
use windlass_protocol::api::{
    CHANGES_MAX, FILE_BYTES_MAX, FileChange, FileDeleted, FileWritten, WrittenBack,
};
use windlass_protocol::frame::{Decoder, Frame};

use super::commit::{FileAction, StagedChange, commit};
use super::put::write;
use super::staging::{StagedWriter, Staging};
use super::{BodySink, FileError, FilePath, Precondition, Workspace};

/// Maximum size of all files of one write-back together.
const BYTES_MAX: u64 = FILE_BYTES_MAX;

#[derive(Debug)]
pub struct WriteBack {
    workspace: Workspace,
    staging: Staging,
    decoder: Decoder,
    changes: Vec<StagedChange>,
    paths: HashSet<FilePath>,
    /// The file whose next frame is expected.
    open: Option<OpenPut>,
    bytes: u64,
}

#[derive(Debug)]
struct OpenPut {
    path: FilePath,
    condition: Precondition,
    writing: StagedWriter,
}

impl WriteBack {
    pub fn begin(workspace: Workspace) -> Result<Self, FileError> {
        Ok(Self {
            staging: Staging::apart(&workspace)?,
            workspace,
            decoder: Decoder::default(),
            changes: Vec::new(),
            paths: HashSet::new(),
            open: None,
            bytes: 0,
        })
    }

    /// Commits all changes.
    pub fn finish(mut self) -> Result<WrittenBack, FileError> {
        if self.decoder.pending() > 0 || self.open.is_some() {
            self.discard();
            return Err(bad("the write-back ends in the middle of a file or a frame"));
        }
        let done = commit(&self.workspace, &mut self.staging, &self.changes);
        self.staging.clear();
        let mut back = WrittenBack::default();
        for (change, etag) in self.changes.into_iter().zip(done?) {
            let path = change.path.as_str().to_owned();
            match change.action {
                FileAction::Put(staged) => back.written.push(FileWritten {
                    path,
                    bytes: staged.bytes,
                    etag: etag.unwrap_or_default(),
                }),
                FileAction::Delete => back.deleted.push(FileDeleted { path }),
            }
        }
        Ok(back)
    }

    fn change(&mut self, frame: &Frame) -> Result<(), FileError> {
        let header = serde_json::from_slice(&frame.header).map_err(|error| {
            bad(format!("a frame's header is not a valid file change: {error}"))
        })?;
        match header {
            FileChange::Put { path, if_match, if_none_match, more } => {
                let path = FilePath::file(&path)?;
                let mut put = match self.open.take() {
                    Some(put) if put.path == path => put,
                    Some(put) => {
                        let unfinished = put.path.as_str();
                        return Err(bad(format!(
                            "another change starts before {unfinished:?} ends"
                        )));
                    }
                    None => {
                        self.admit(&path)?;
                        let condition =
                            Precondition::parse(if_match.as_deref(), if_none_match.as_deref())?;
                        let writing = self.staging.begin();
                        let writing =
                            writing.map_err(|cause| FileError::of(path.as_str(), cause))?;
                        OpenPut { path, condition, writing }
                    }
                };
                self.content(&mut put, &frame.body)?;
                if more {
                    self.open = Some(put);
                    return Ok(());
                }
                let OpenPut { path, condition, writing } = put;
                let failed = |cause| FileError::of(path.as_str(), cause);
                let staged = self.staging.finish(writing).map_err(failed)?;
                self.changes.push(StagedChange {
                    path,
                    condition,
                    action: FileAction::Put(staged),
                });
            }
            FileChange::Delete { path, if_match } => {
                if self.open.is_some() {
                    return Err(bad(format!("the delete of {path:?} starts before a file ends")));
                }
                let path = FilePath::file(&path)?;
                self.admit(&path)?;
                let condition = Precondition::parse(if_match.as_deref(), None)?;
                self.changes.push(StagedChange { path, condition, action: FileAction::Delete });
            }
        }
        Ok(())
    }

    fn content(&mut self, put: &mut OpenPut, body: &Bytes) -> Result<(), FileError> {
        self.bytes += body.len() as u64;
        if self.bytes > BYTES_MAX {
            return Err(FileError::TooLarge {
                path: "the write-back".to_owned(),
                limit: BYTES_MAX,
            });
        }
        write(&mut put.writing, body, put.path.as_str(), self.workspace.file_bytes_max)
    }

    /// Checks the number of changes, and that the path has no other change.
    fn admit(&mut self, path: &FilePath) -> Result<(), FileError> {
        if self.paths.len() == CHANGES_MAX {
            return Err(bad(format!("the write-back has more than {CHANGES_MAX} changes")));
        }
        if !self.paths.insert(path.clone()) {
            return Err(bad(format!("the write-back changes {:?} twice", path.as_str())));
        }
        Ok(())
    }
}

impl BodySink for WriteBack {
    fn take(&mut self, piece: &[Bytes]) -> Result<(), FileError> {
        for bytes in piece {
            self.decoder.push(bytes);
            while let Some(frame) = self.decoder.next_frame()? {
                self.change(&frame)?;
            }
        }
        Ok(())
    }

    fn discard(self) {
        self.staging.clear();
    }
}

fn bad(message: impl Into<String>) -> FileError {
    FileError::BadRequest(message.into())
}

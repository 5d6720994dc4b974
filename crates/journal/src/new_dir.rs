//! The directory of a session that is being created. The directory appears among the sessions only with its
//! first record in it, even if the node dies at any moment. The next start of the journal removes a directory
//! that never became a session.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use windlass_protocol::Seq;

use crate::facts::SessionFacts;
use crate::journal::CreateError;
use crate::log::{self, NewestSegment};
use crate::segment::{self, SegmentHead};

/// The event that a session's first segment begins with.
pub(crate) const FIRST_SEQ: Seq = Seq(1);

/// A temporary directory with an empty first segment. Dropping this removes the directory, unless
/// [`NewSessionDir::become_session`] succeeded.
#[derive(Debug)]
pub(crate) struct NewSessionDir {
    segment: File,
    dir_guard: TemporaryDir,
}

impl NewSessionDir {
    pub fn make(path: PathBuf) -> Result<Self, CreateError> {
        fs::create_dir(&path).map_err(|cause| CreateError::Io { path: path.clone(), cause })?;
        let dir_guard = TemporaryDir { path, kept: false };
        let segment = log::create_segment(&segment::path(&dir_guard.path, FIRST_SEQ))?;
        Ok(Self { segment, dir_guard })
    }

    /// Writes the first record, and renames the directory to the session's directory.
    pub fn become_session(
        self,
        dir: &Path,
        head: &SegmentHead,
        facts: &SessionFacts,
    ) -> Result<NewestSegment, CreateError> {
        let Self { segment, mut dir_guard } = self;
        let path = segment::path(&dir_guard.path, FIRST_SEQ);
        let mut newest = log::fill_segment(segment, path, head, facts)?;
        fs::rename(&dir_guard.path, dir)
            .map_err(|cause| CreateError::Io { path: dir.to_owned(), cause })?;
        dir_guard.kept = true;
        newest.path = segment::path(dir, FIRST_SEQ);
        Ok(newest)
    }
}

/// A directory that is removed on drop unless it is kept.
#[derive(Debug)]
struct TemporaryDir {
    path: PathBuf,
    kept: bool,
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

//! A session's directory while it is being made. The directory appears among the sessions with its
//! first record in it or not at all, whenever the node dies; a directory that never became a session's
//! is removed when the journal is next opened.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use windlass_protocol::Seq;

use crate::facts::Facts;
use crate::journal::CreateError;
use crate::log::{self, Newest};
use crate::segment::{self, Head};

/// The event that a session's first segment begins with.
pub(crate) const FIRST_SEQ: Seq = Seq(1);

/// A directory with an empty first segment. Dropping this removes the directory unless it has become a
/// session's.
#[derive(Debug)]
pub(crate) struct NewDir {
    segment: File,
    aside: Aside,
}

impl NewDir {
    pub fn make(path: PathBuf) -> Result<Self, CreateError> {
        fs::create_dir(&path).map_err(|cause| CreateError::Io { path: path.clone(), cause })?;
        let aside = Aside { path, kept: false };
        let segment = log::create_segment(&segment::path(&aside.path, FIRST_SEQ))?;
        Ok(Self { segment, aside })
    }

    /// Makes it the session's directory.
    pub fn become_session(
        self,
        dir: &Path,
        head: &Head,
        facts: &Facts,
    ) -> Result<Newest, CreateError> {
        let Self { segment, mut aside } = self;
        let path = segment::path(&aside.path, FIRST_SEQ);
        let mut newest = log::fill_segment(segment, path, head, facts)?;
        fs::rename(&aside.path, dir)
            .map_err(|cause| CreateError::Io { path: dir.to_owned(), cause })?;
        aside.kept = true;
        newest.path = segment::path(dir, FIRST_SEQ);
        Ok(newest)
    }
}

/// A directory beside the sessions.
#[derive(Debug)]
struct Aside {
    path: PathBuf,
    kept: bool,
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

//! Why a file operation fails, with the message and code for the client.

use std::io;

use rustix::io::Errno;
use windlass_protocol::ErrorCode;
use windlass_protocol::frame::FrameError;

/// Maximum number of paths that a message names; further paths are counted.
const NAMED_MAX: usize = 20;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("there is no {path:?} in the workspace")]
    NotFound { path: String },
    #[error("the path {path:?} is refused: {why}")]
    Refused { path: String, why: &'static str },
    #[error("nothing was written, because the precondition fails for: {}", named(paths))]
    Conflict { paths: Vec<String> },
    #[error("{path:?} is larger than the limit of {limit} bytes")]
    TooLarge { path: String, limit: u64 },
    #[error("the workspace's disk has no space left for {path:?}")]
    DiskFull { path: String },
    #[error("the workspace {path} cannot be opened: {cause}")]
    NoWorkspace { path: String, cause: io::Error },
    /// Without `openat2` nothing confines a path to the workspace.
    #[error("this kernel has no openat2, so files cannot be accessed safely")]
    NoOpenat2,
    #[error("{0}")]
    BadRequest(String),
    #[error("the write-back's body is not a valid sequence of frames: {0}")]
    BadFrame(#[from] FrameError),
    #[error("the node has no watch left; end another watch and try again")]
    TooManyWatches,
    #[error("{path:?} failed: {cause}")]
    Failed { path: String, cause: io::Error },
    #[error("the write-back failed ({cause}) and could not be undone for: {}", named(paths))]
    HalfDone { paths: Vec<String>, cause: Box<FileError> },
}

fn named(paths: &[String]) -> String {
    let mut text = paths.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if paths.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", paths.len() - NAMED_MAX));
    }
    text
}

impl FileError {
    /// Translates an error of the kernel about `path`.
    pub fn of(path: &str, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        let path = path.to_owned();
        let refused = |why| Self::Refused { path: path.clone(), why };
        match Errno::from_io_error(&cause) {
            Some(Errno::NOENT) => Self::NotFound { path },
            // `openat2` reports a path that leads out of the workspace as EXDEV.
            Some(Errno::XDEV) => refused("it leads out of the workspace, or to another disk"),
            Some(Errno::LOOP) => refused("it is or contains a symlink that is not followed"),
            Some(Errno::NOTDIR) => refused("a part of it is not a directory"),
            Some(Errno::ISDIR) => refused("it is a directory"),
            Some(Errno::NOTEMPTY | Errno::EXIST) => refused("the directory is not empty"),
            Some(Errno::ACCESS | Errno::PERM) => refused("the node has no permission"),
            Some(Errno::ROFS) => refused("it is on a read-only file system"),
            Some(Errno::NAMETOOLONG) => refused("it is too long"),
            Some(Errno::AGAIN) => refused("its directories are being renamed"),
            Some(Errno::NXIO | Errno::NODEV) => refused("it is not a regular file"),
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull { path },
            Some(Errno::NOSYS) => Self::NoOpenat2,
            _ => Self::Failed { path, cause },
        }
    }

    pub fn conflict(path: &str) -> Self {
        Self::Conflict { paths: vec![path.to_owned()] }
    }

    /// The stable code for the client.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } | Self::NoWorkspace { .. } => ErrorCode::FileNotFound,
            Self::Refused { .. } => ErrorCode::PathRefused,
            Self::Conflict { .. } => ErrorCode::FileConflict,
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Self::DiskFull { .. } => ErrorCode::DiskFull,
            Self::NoOpenat2 => ErrorCode::NotEnforceable,
            Self::BadRequest(_) | Self::BadFrame(_) => ErrorCode::BadRequest,
            Self::TooManyWatches => ErrorCode::Overloaded,
            Self::Failed { .. } | Self::HalfDone { .. } => ErrorCode::Internal,
        }
    }
}

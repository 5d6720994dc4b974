//! Tells whether a file has changed since it was read. Never reads what is in it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies a version of a file: a new version has another inode, change time or size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

impl FileVersion {
    /// The version of the file that the path leads to now; `None` if there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(Self { inode: file.ino(), changed, bytes: file.len() })
    }
}

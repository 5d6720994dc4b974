//! Tells whether a path still names the same file, also where the file system gave a new file the inode
//! number of a removed one.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Identifies one file while it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileFingerprint {
    device: u64,
    inode: u64,
    since: FileOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FileOrigin {
    Created(SystemTime),
    /// The inode's change time, where the file system has no creation time.
    Changed {
        s: i64,
        ns: i64,
    },
}

impl FileFingerprint {
    pub fn of(file: &Metadata) -> Self {
        let changed = || FileOrigin::Changed { s: file.ctime(), ns: file.ctime_nsec() };
        let since = file.created().map_or_else(|_| changed(), FileOrigin::Created);
        Self { device: file.dev(), inode: file.ino(), since }
    }

    /// The fingerprint of the file at a path. A symlink is not followed.
    pub fn at(path: &Path) -> Option<Self> {
        path.symlink_metadata().ok().map(|file| Self::of(&file))
    }
}

//! Which file it is that has a name, also where a new one was given the number of one that is gone.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Which {
    device: u64,
    number: u64,
    since: Since,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Since {
    Made(SystemTime),
    /// The file system does not know when: when it was last changed in any way.
    Changed {
        s: i64,
        ns: i64,
    },
}

impl Which {
    pub fn of(file: &Metadata) -> Self {
        let changed = || Since::Changed { s: file.ctime(), ns: file.ctime_nsec() };
        let since = file.created().map_or_else(|_| changed(), Since::Made);
        Self { device: file.dev(), number: file.ino(), since }
    }

    /// The file at a path, or the link that is there.
    pub fn is_at(path: &Path) -> Option<Self> {
        path.symlink_metadata().ok().map(|file| Self::of(&file))
    }
}

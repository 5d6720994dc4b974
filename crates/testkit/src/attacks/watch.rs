//! Snapshots of the files that no attack may change, and the difference between two snapshots.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files below some directories, with every property that an attack could change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileSnapshot(BTreeMap<PathBuf, FileState>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    mode: u32,
    owner: (u32, u32),
    /// Only for files: the time of a directory changes with its content.
    modified: (i64, i64),
    bytes: Vec<u8>,
}

impl FileSnapshot {
    /// Skips the directory `skipped`, where attacks are installed.
    pub fn now(roots: &[PathBuf], skipped: &Path) -> Self {
        let mut found = BTreeMap::new();
        for root in roots {
            collect(root, skipped, &mut found);
        }
        Self(found)
    }

    /// Describes the first difference.
    pub fn difference(&self, later: &Self) -> Option<String> {
        let names = self.0.keys().chain(later.0.keys());
        let mut changed = names.filter(|path| self.0.get(*path) != later.0.get(*path));
        changed.next().map(|path| {
            let what = match (self.0.get(path), later.0.get(path)) {
                (Some(_), None) => "is gone",
                (None, Some(_)) => "is new",
                _ => "was changed",
            };
            format!("{} {what}", path.display())
        })
    }
}

fn collect(path: &Path, skipped: &Path, found: &mut BTreeMap<PathBuf, FileState>) {
    if path == skipped {
        return;
    }
    let Ok(about) = fs::symlink_metadata(path) else { return };
    let file = about.is_file();
    let entry = FileState {
        mode: about.mode(),
        owner: (about.uid(), about.gid()),
        modified: if file { (about.mtime(), about.mtime_nsec()) } else { (0, 0) },
        bytes: if file { fs::read(path).unwrap_or_default() } else { Vec::new() },
    };
    found.insert(path.to_owned(), entry);
    if about.is_dir() {
        for child in fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&child.path(), skipped, found);
        }
    }
}

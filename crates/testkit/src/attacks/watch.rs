//! Watches files that no attack may change: what they are now, and what differs later.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files below some directories, with all that an attack could change of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen(BTreeMap<PathBuf, Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    mode: u32,
    owner: (u32, u32),
    /// Of files only: a directory's change with what is in it.
    modified: (i64, i64),
    bytes: Vec<u8>,
}

impl Seen {
    /// `besides` is where attacks are installed, and is not looked at.
    pub fn now(roots: &[PathBuf], besides: &Path) -> Self {
        let mut found = BTreeMap::new();
        for root in roots {
            look(root, besides, &mut found);
        }
        Self(found)
    }

    /// The first thing that differs, in words.
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

fn look(path: &Path, besides: &Path, found: &mut BTreeMap<PathBuf, Entry>) {
    if path == besides {
        return;
    }
    let Ok(about) = fs::symlink_metadata(path) else { return };
    let file = about.is_file();
    let entry = Entry {
        mode: about.mode(),
        owner: (about.uid(), about.gid()),
        modified: if file { (about.mtime(), about.mtime_nsec()) } else { (0, 0) },
        bytes: if file { fs::read(path).unwrap_or_default() } else { Vec::new() },
    };
    found.insert(path.to_owned(), entry);
    if about.is_dir() {
        for child in fs::read_dir(path).into_iter().flatten().flatten() {
            look(&child.path(), besides, found);
        }
    }
}

//! Stamps of the files that a zygote was made from: its interpreter, and the directories of its modules.
//! They show whether a file has changed since.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of paths to stamp. Further paths are ignored.
const PATHS_MAX: usize = 32;

/// Files and directories, each with its stamp.
#[derive(Debug)]
pub(super) struct FileStamps(Vec<(PathBuf, Option<FileStamp>)>);

/// The metadata that changes when a file is replaced, or when a directory gets or loses an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl FileStamps {
    pub fn of(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut stamps = Self(Vec::new());
        paths.into_iter().for_each(|path| stamps.add(path));
        stamps
    }

    /// Adds a path with its stamp of now.
    pub fn add(&mut self, path: PathBuf) {
        if self.0.len() < PATHS_MAX {
            let stamp = stamp(&path);
            self.0.push((path, stamp));
        }
    }

    pub fn are_current(&self) -> bool {
        self.0.iter().all(|(path, before)| stamp(path) == *before)
    }
}

fn stamp(path: &Path) -> Option<FileStamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(FileStamp {
        inode: metadata.ino(),
        size: metadata.size(),
        seconds: metadata.mtime(),
        nanoseconds: metadata.mtime_nsec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_package_and_a_new_interpreter_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (packages, program) = (dir.path().join("site-packages"), dir.path().join("python"));
        std::fs::create_dir(&packages).unwrap();
        std::fs::write(&program, "one").unwrap();
        let stamps =
            || FileStamps::of([packages.clone(), program.clone(), dir.path().join("none")]);
        let before = stamps();
        assert!(before.are_current());
        std::fs::create_dir(packages.join("six")).unwrap();
        assert!(!before.are_current());
        let before = stamps();
        std::fs::remove_file(&program).unwrap();
        assert!(!before.are_current());
        let before = stamps();
        std::fs::write(dir.path().join("none"), "").unwrap();
        assert!(!before.are_current());
    }
}

//! What a zygote was made of, to see whether it changed since: its interpreter, and the directories
//! where modules are found.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Places that are looked at; more of them are not.
const PLACES_MAX: usize = 32;

/// Files and directories, each as it was.
#[derive(Debug)]
pub(super) struct FileStamps(Vec<(PathBuf, Option<FileStamp>)>);

/// What changes when a file is replaced, or a directory gets or loses an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl FileStamps {
    pub fn of(places: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut marks = Self(Vec::new());
        places.into_iter().for_each(|place| marks.add(place));
        marks
    }

    /// One more place, as it is now.
    pub fn add(&mut self, place: PathBuf) {
        if self.0.len() < PLACES_MAX {
            let mark = look(&place);
            self.0.push((place, mark));
        }
    }

    pub fn are_current(&self) -> bool {
        self.0.iter().all(|(place, mark)| look(place) == *mark)
    }
}

fn look(place: &Path) -> Option<FileStamp> {
    let metadata = std::fs::metadata(place).ok()?;
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
        let place = tempfile::tempdir().unwrap();
        let (packages, program) = (place.path().join("site-packages"), place.path().join("python"));
        std::fs::create_dir(&packages).unwrap();
        std::fs::write(&program, "one").unwrap();
        let marks =
            || FileStamps::of([packages.clone(), program.clone(), place.path().join("none")]);
        let before = marks();
        assert!(before.are_current());
        std::fs::create_dir(packages.join("six")).unwrap();
        assert!(!before.are_current());
        let before = marks();
        std::fs::remove_file(&program).unwrap();
        assert!(!before.are_current());
        let before = marks();
        std::fs::write(place.path().join("none"), "").unwrap();
        assert!(!before.are_current());
    }
}

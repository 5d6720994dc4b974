//! A copy of a workspace: files share their blocks with the original's where the file system can do
//! that, and are copied where it cannot. Links stay links, and lead where they led. What is neither
//! file, directory nor link (a socket, a pipe, a device) is left out.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use windlass_protocol::ErrorCode;
use windlass_protocol::limits::{FORK_BYTES_MAX, FORK_ENTRIES_MAX};

use super::cannot_copy;
use crate::failure::Failure;

/// Why a workspace was not copied.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error(
        "the workspace has more than {FORK_ENTRIES_MAX} files or {FORK_BYTES_MAX} bytes, which is \
         the most that a fork copies"
    )]
    TooLarge,
}

/// Copies the directory `from` to `to`, which is not there yet.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let mut copying = Copying { left: Left::default(), known: HashMap::new() };
    copying.tree(from, to).map_err(|error| match error {
        CopyError::TooLarge => Failure::new(ErrorCode::WorkspaceTooLarge, error.to_string()),
        CopyError::Io { ref cause, .. } if cause.kind() == io::ErrorKind::StorageFull => {
            Failure::new(ErrorCode::DiskFull, error.to_string())
        }
        CopyError::Io { .. } => cannot_copy(&io::Error::other(error.to_string())),
    })
}

/// What may still be copied.
#[derive(Debug)]
struct Left {
    entries: usize,
    bytes: u64,
}

impl Default for Left {
    fn default() -> Self {
        Self { entries: FORK_ENTRIES_MAX, bytes: FORK_BYTES_MAX }
    }
}

impl Left {
    fn take(&mut self, about: &Metadata) -> Result<(), CopyError> {
        let bytes = if about.is_file() { about.blocks().saturating_mul(512) } else { 0 };
        self.entries = self.entries.checked_sub(1).ok_or(CopyError::TooLarge)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(CopyError::TooLarge)?;
        Ok(())
    }
}

#[derive(Debug)]
struct Copying {
    left: Left,
    /// Files with several names, by what they are, and where the first was copied to.
    known: HashMap<(u64, u64), PathBuf>,
}

impl Copying {
    fn tree(&mut self, from: &Path, to: &Path) -> Result<(), CopyError> {
        let mut directories = Vec::new();
        let mut waiting = vec![(from.to_owned(), to.to_owned())];
        while let Some((from, to)) = waiting.pop() {
            let failed = |cause| CopyError::Io { path: from.clone(), cause };
            let about = from.metadata().map_err(failed)?;
            // Its own mode may forbid to write into it, and is set when that is done.
            DirBuilder::new().mode(0o700).create(&to).map_err(failed)?;
            directories.push((to.clone(), about.permissions()));
            for entry in std::fs::read_dir(&from).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let about = match entry.metadata() {
                    Ok(about) => about,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(failed(error)),
                };
                self.left.take(&about)?;
                let (from, to) = (entry.path(), to.join(entry.file_name()));
                if about.is_dir() {
                    waiting.push((from, to));
                } else {
                    self.entry(&from, &to, &about)
                        .map_err(|cause| CopyError::Io { path: from.clone(), cause })?;
                }
            }
        }
        for (path, mode) in directories.into_iter().rev() {
            let set = std::fs::set_permissions(&path, mode);
            set.map_err(|cause| CopyError::Io { path, cause })?;
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &Path, about: &Metadata) -> io::Result<()> {
        if about.is_symlink() {
            return std::os::unix::fs::symlink(from.read_link()?, to);
        }
        if !about.is_file() {
            return Ok(());
        }
        if about.nlink() > 1 {
            let identity = (about.dev(), about.ino());
            if let Some(first) = self.known.get(&identity) {
                return std::fs::hard_link(first, to);
            }
            self.known.insert(identity, to.to_owned());
        }
        file(from, to, about)
    }
}

fn file(from: &Path, to: &Path, about: &Metadata) -> io::Result<()> {
    // Never through a link that took the file's place meanwhile.
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut source = match OpenOptions::new().read(true).custom_flags(flags).open(from) {
        Ok(source) => source,
        // It went away since it was listed, which a process of the session's may do at any time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        // `copy_file_range` where the kernel has it.
        io::copy(&mut source, &mut target)?;
    }
    finish(&target, about)
}

/// Mode and times, which programs look at.
fn finish(target: &File, about: &Metadata) -> io::Result<()> {
    target.set_permissions(Permissions::from_mode(about.mode() & 0o7777))?;
    let times = std::fs::FileTimes::new().set_modified(about.modified()?);
    target.set_times(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_files_links_modes_and_names_of_the_original() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        std::fs::write(from.join("a/b/c"), "text").unwrap();
        std::fs::hard_link(from.join("a/b/c"), from.join("again")).unwrap();
        std::os::unix::fs::symlink("a/b", from.join("link")).unwrap();
        std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        std::fs::set_permissions(from.join("a"), Permissions::from_mode(0o500)).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("link/c")).unwrap(), "text");
        assert_eq!(to.join("again").metadata().unwrap().nlink(), 2);
        assert_eq!(to.join("a").metadata().unwrap().mode() & 0o777, 0o500);
        assert!(!to.join("socket").exists());
        std::fs::write(to.join("again"), "other").unwrap();
        assert_eq!(std::fs::read_to_string(from.join("again")).unwrap(), "text");
    }

    #[test]
    fn a_copy_stops_at_its_limits() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(from.join(name), "text").unwrap();
        }
        let left = Left { entries: 2, bytes: u64::MAX };
        let mut copying = Copying { left, known: HashMap::new() };
        assert!(matches!(copying.tree(&from, &to), Err(CopyError::TooLarge)));
    }
}

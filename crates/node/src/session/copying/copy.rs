//! Copies a workspace for a twin, within limits. Turns errors and left out files into what the client is
//! told. `windlass_beneath` does the copying.

use std::path::Path;
use std::time::Instant;

use windlass_beneath::{
    CopyError, CopyLimits, CopyOmissions, Directory, Ignorable, SkipRule, SkippedDirectory,
};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{CopyScope, LeftOutDirectory, LeftOutReason};
use windlass_protocol::limits::{FORK_BYTES_MAX, FORK_COPY_TIME, FORK_DEPTH_MAX, FORK_ENTRIES_MAX};
use windlass_protocol::link::NotCarried;

use super::refused;
use crate::failure::Failure;
use windlass_files::is_staged;

/// The kind of left out files, in a fork's answer.
const FILE: &str = "file";

/// What is not in the copy.
#[derive(Debug, Default)]
pub(crate) struct NotCopied {
    /// Left out files, as the fork's answer lists them.
    pub files: Vec<NotCarried>,
    /// Left out directories. They can be made or installed again.
    pub directories: Vec<LeftOutDirectory>,
    pub directories_more: u64,
}

/// What the copy has instead of an installed directory (`.venv`, `node_modules`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum InstalledDirs {
    /// A symlink to the original's directory, which the twin can read and not write.
    Link,
    Omit,
}

/// Copies the workspace at `from`, a recorded path, into `to`. Returns what was left out.
pub(in crate::session) fn copy(
    from: &Path,
    to: &Directory,
    scope: CopyScope,
    installed: InstalledDirs,
) -> Result<NotCopied, Failure> {
    let source = Directory::recorded(from).map_err(|error| {
        refused(&format!("cannot open the workspace {}: {error}", from.display()))
    })?;
    let limits = CopyLimits {
        entries: FORK_ENTRIES_MAX,
        bytes: FORK_BYTES_MAX,
        depth: FORK_DEPTH_MAX,
        until: Instant::now() + FORK_COPY_TIME,
        skip: match scope {
            CopyScope::Needed => SkipRule::LeaveOut,
            CopyScope::All => SkipRule::CopyAll,
        },
        omit: |name| name.to_str().is_some_and(is_staged),
    };
    let mut left = source.copy_tree(to, limits).map_err(|error| failure(&error))?;
    let skipped = std::mem::take(&mut left.skipped).into_iter();
    let directories = skipped.map(|one| left_out(from, to, one, installed)).collect();
    let directories_more = left.skipped_more;
    Ok(NotCopied { files: not_carried(left), directories, directories_more })
}

/// Puts a symlink in place of an installed directory that was left out, if `installed` says so. A cache
/// gets no symlink: its program must be able to write it again.
fn left_out(
    from: &Path,
    to: &Directory,
    skipped: SkippedDirectory,
    installed: InstalledDirs,
) -> LeftOutDirectory {
    let SkippedDirectory { path, why } = skipped;
    let (why, is_installed) = match why {
        Ignorable::Environment => (LeftOutReason::Environment, true),
        Ignorable::Packages => (LeftOutReason::Packages, true),
        Ignorable::Cache => (LeftOutReason::Cache, false),
    };
    let wanted = installed == InstalledDirs::Link && is_installed;
    // No session can write in the copy yet.
    let linked = wanted && to.symlink(&from.join(&path), &path).is_ok();
    LeftOutDirectory { path: path.display().to_string(), why, linked }
}

fn not_carried(CopyOmissions { named, others, .. }: CopyOmissions) -> Vec<NotCarried> {
    let name = |path: &Path, why: &str| format!("{}: {why}", path.display());
    let named = named.into_iter().map(|(path, why)| name(&path, why));
    let more = (others > 0).then(|| format!("{others} more"));
    named.chain(more).map(|name| NotCarried { what: FILE.to_owned(), name }).collect()
}

fn failure(error: &CopyError) -> Failure {
    match error {
        CopyError::TooLarge | CopyError::TooDeep { .. } => Failure::new(
            ErrorCode::WorkspaceTooLarge,
            format!(
                "the workspace is not copied: {error}; a fork copies at most {FORK_ENTRIES_MAX} \
                 files, {FORK_BYTES_MAX} bytes and {FORK_DEPTH_MAX} nested directories"
            ),
        ),
        CopyError::TooSlow => {
            let seconds = FORK_COPY_TIME.as_secs();
            refused(&format!("the workspace was not copied within {seconds} s"))
        }
        CopyError::Io { .. } => Failure::while_making("cannot copy the workspace", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symlink_in_place_of_the_workspace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("outside")).unwrap();
        std::fs::create_dir_all(root.join("to")).unwrap();
        std::os::unix::fs::symlink("outside", root.join("work")).unwrap();
        let to = Directory::trusted(&root.join("to")).unwrap();
        let work = root.join("work");
        let refused = copy(&work, &to, CopyScope::Needed, InstalledDirs::Link).unwrap_err();
        assert_eq!(refused.code, ErrorCode::ForkRefused);
    }

    #[test]
    fn a_full_disk_and_missing_resources_have_their_own_error_codes() {
        for (errno, code) in [
            (rustix::io::Errno::NOSPC, ErrorCode::DiskFull),
            (rustix::io::Errno::AGAIN, ErrorCode::Overloaded),
            (rustix::io::Errno::MFILE, ErrorCode::Overloaded),
            (rustix::io::Errno::IO, ErrorCode::Internal),
        ] {
            let error = CopyError::Io { path: ".".into(), cause: errno.into() };
            assert_eq!(failure(&error).code, code, "{errno}");
        }
    }

    #[test]
    fn a_file_that_is_being_uploaded_to_the_original_is_not_in_the_copy() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("work/inner")).unwrap();
        std::fs::create_dir_all(root.join("to")).unwrap();
        for name in ["kept", ".windlass-0123456789abcdef01234567", ".windlass-notes"] {
            std::fs::write(root.join("work/inner").join(name), "").unwrap();
        }
        let to = Directory::trusted(&root.join("to")).unwrap();
        copy(&root.join("work"), &to, CopyScope::All, InstalledDirs::Omit).unwrap();
        let entries = std::fs::read_dir(root.join("to/inner")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".windlass-notes", "kept"]);
    }

    #[test]
    fn left_out_files_are_listed_with_their_reason() {
        let named = vec![("a/b".into(), "because")];
        let left_out = CopyOmissions { named, others: 3, ..CopyOmissions::default() };
        let names: Vec<_> = not_carried(left_out).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["a/b: because", "3 more"]);
    }

    #[test]
    fn installed_directories_become_symlinks_if_the_twin_cannot_write_there_and_caches_never() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["work/a/.venv/lib", "work/a/__pycache__", "linked", "apart", "all"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let work = root.join("work");
        let make = |name: &str, scope, installed| {
            let to = Directory::trusted(&root.join(name)).unwrap();
            let mut left = copy(&work, &to, scope, installed).unwrap().directories;
            left.sort_by(|one, other| one.path.cmp(&other.path));
            left.into_iter().map(|one| (one.path, one.linked)).collect::<Vec<_>>()
        };
        let named = |linked| [("a/.venv".to_owned(), linked), ("a/__pycache__".to_owned(), false)];
        assert_eq!(make("linked", CopyScope::Needed, InstalledDirs::Link), named(true));
        assert_eq!(root.join("linked/a/.venv").read_link().unwrap(), work.join("a/.venv"));
        assert!(root.join("linked/a/__pycache__").symlink_metadata().is_err());
        assert_eq!(make("apart", CopyScope::Needed, InstalledDirs::Omit), named(false));
        assert!(root.join("apart/a/.venv").symlink_metadata().is_err());
        assert_eq!(make("all", CopyScope::All, InstalledDirs::Link), []);
        assert!(root.join("all/a/.venv/lib").symlink_metadata().unwrap().is_dir());
    }
}

//! The copy of a workspace for a twin: what it may take, and what its client is told when it is
//! refused or is not whole. The copying itself is `windlass_sandbox::beneath`.

use std::io;
use std::path::Path;
use std::time::Instant;

use windlass_protocol::ErrorCode;
use windlass_protocol::limits::{FORK_BYTES_MAX, FORK_COPY_TIME, FORK_DEPTH_MAX, FORK_ENTRIES_MAX};
use windlass_protocol::link::NotCarried;
use windlass_sandbox::beneath::{CopyError, CopyLimits, Directory, LeftOut};

use super::{cannot_copy, refused};
use crate::failure::Failure;

/// The name of files that a copy does not have, in a fork's answer.
const FILE: &str = "file";

/// Copies the workspace at `from`, a recorded path, into `to`. Gives what was left out.
pub(super) fn copy(from: &Path, to: &Directory) -> Result<Vec<NotCarried>, Failure> {
    let source = Directory::recorded(from).map_err(|error| {
        refused(&format!("its workspace {} cannot be opened: {error}", from.display()))
    })?;
    let limits = CopyLimits {
        entries: FORK_ENTRIES_MAX,
        bytes: FORK_BYTES_MAX,
        depth: FORK_DEPTH_MAX,
        until: Instant::now() + FORK_COPY_TIME,
    };
    source.copy_tree(to, limits).map(not_carried).map_err(|error| failure(&error))
}

fn not_carried(LeftOut { named, others }: LeftOut) -> Vec<NotCarried> {
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
                 files, {FORK_BYTES_MAX} bytes and {FORK_DEPTH_MAX} directories within each other"
            ),
        ),
        CopyError::TooSlow => {
            let seconds = FORK_COPY_TIME.as_secs();
            refused(&format!("its workspace was not copied within {seconds} s"))
        }
        CopyError::Io { cause, .. } if cause.kind() == io::ErrorKind::StorageFull => {
            Failure::new(ErrorCode::DiskFull, format!("the workspace cannot be copied: {error}"))
        }
        CopyError::Io { .. } => cannot_copy(&io::Error::other(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_workspace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("outside")).unwrap();
        std::fs::create_dir_all(root.join("to")).unwrap();
        std::os::unix::fs::symlink("outside", root.join("work")).unwrap();
        let to = Directory::trusted(&root.join("to")).unwrap();
        let refused = copy(&root.join("work"), &to).unwrap_err();
        assert_eq!(refused.code, ErrorCode::ForkRefused);
    }

    #[test]
    fn what_was_left_out_is_named_with_its_reason() {
        let left_out = LeftOut { named: vec![("a/b".into(), "because")], others: 3 };
        let names: Vec<_> = not_carried(left_out).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["a/b: because", "3 more"]);
    }
}

//! The paths that a policy hides inside a workspace. The sandbox hides them from the session's code.
//! This module hides them from clients too, so that no symlink or name that the code made leads a
//! client to fetch a hidden file.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat, fstat, openat};
use windlass_protocol::policy::expand_home;

use super::{FileIdentity, FilePath, FileScope};

/// Maximum number of parent directories that are checked. A deeper directory counts as hidden.
const ABOVE_MAX: usize = 256;

/// The hidden paths below one workspace. Most workspaces have none.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    paths: Vec<FilePath>,
    /// Identities of the hidden files that exist, because a file can have other names too.
    identities: Vec<FileIdentity>,
}

impl Hidden {
    pub fn of(access: &FileScope) -> Self {
        let real = |path: &Path| path.canonicalize().ok();
        let workspaces: Vec<PathBuf> =
            std::iter::once(access.workspace.clone()).chain(real(&access.workspace)).collect();
        let below = |path: &Path| {
            let inside = workspaces.iter().find_map(|root| path.strip_prefix(root).ok())?;
            FilePath::file(inside.to_str()?).ok()
        };
        let home = access.home.as_deref();
        let named = access.hidden.iter().filter_map(|path| expand_home(path, home));
        let mut found = Self::default();
        for path in named.chain(access.node_dirs.iter().cloned()) {
            found.paths.extend(below(&path));
            // Most hidden paths do not exist: one system call finds that out.
            let Some(real) = path.symlink_metadata().ok().and_then(|_| real(&path)) else {
                continue;
            };
            if let Some(inside) = below(&real) {
                found.paths.push(inside);
                found
                    .identities
                    .extend(rustix::fs::stat(&real).ok().map(|stat| FileIdentity::of(&stat)));
            }
        }
        found
    }

    /// Whether a path is hidden.
    pub fn hides(&self, path: &FilePath) -> bool {
        self.paths.iter().any(|hidden| path.is_within(hidden))
    }

    /// Whether a file is hidden, under whatever name it was found.
    pub fn is_one(&self, stat: &Stat) -> bool {
        self.identities.contains(&FileIdentity::of(stat))
    }

    /// Whether a directory is hidden or lies in a hidden directory, under whatever name.
    pub fn holds(&self, directory: impl AsFd, workspace: FileIdentity) -> rustix::io::Result<bool> {
        if self.identities.is_empty() {
            return Ok(false);
        }
        let mut above: Option<OwnedFd> = None;
        for _ in 0..ABOVE_MAX {
            let here = above.as_ref().map_or(directory.as_fd(), AsFd::as_fd);
            let stat = fstat(here)?;
            if self.is_one(&stat) {
                return Ok(true);
            }
            if FileIdentity::of(&stat) == workspace {
                return Ok(false);
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            above = Some(openat(here, "..", flags, Mode::empty())?);
        }
        Ok(true)
    }
}

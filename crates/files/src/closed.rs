//! Paths inside a workspace that are closed to clients: those that the policy hides, and for a write on
//! behalf of the session's code those that the code must not change. The sandbox closes them to the code.
//! This module closes them to clients too, so that no symlink or name that the code made leads a
//! client to fetch a hidden file, or to change a protected one.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, lstat, openat};
use windlass_protocol::policy::expand_home;

use super::{FileIdentity, FilePath, FileScope, Writer};

/// Maximum number of parent directories that are checked. A deeper directory counts as closed.
const ABOVE_MAX: usize = 256;

/// The closed paths below one workspace. Most workspaces have none.
#[derive(Debug, Default)]
pub(super) struct ClosedPaths {
    paths: Vec<FilePath>,
    /// Identities of the closed files that exist, because a file can have other names too.
    identities: Vec<FileIdentity>,
}

impl ClosedPaths {
    /// What the policy hides, and the node's own directories.
    pub fn hidden(access: &FileScope) -> Self {
        let home = access.home.as_deref();
        let named = access.hidden.iter().filter_map(|path| expand_home(path, home));
        Self::find(access, named.chain(access.node_dirs.iter().cloned()))
    }

    /// What the code must not change.
    pub fn protected(access: &FileScope) -> Self {
        match &access.writer {
            Writer::Client | Writer::CodeOfLostNames => Self::default(),
            Writer::Code { protected, .. } => Self::find(access, protected.iter().cloned()),
        }
    }

    fn find(access: &FileScope, named: impl Iterator<Item = PathBuf>) -> Self {
        let real = |path: &Path| path.canonicalize().ok();
        let workspaces: Vec<PathBuf> =
            std::iter::once(access.workspace.clone()).chain(real(&access.workspace)).collect();
        let below = |path: &Path| {
            let inside = workspaces.iter().find_map(|root| path.strip_prefix(root).ok())?;
            FilePath::file(inside.to_str()?).ok()
        };
        let mut found = Self::default();
        for path in named {
            found.paths.extend(below(&path));
            // Most closed paths do not exist: one system call finds that out.
            let Ok(stat) = lstat(&path) else { continue };
            // A symlink is closed beside its target, so that it cannot be removed or replaced by another way to it.
            let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
            let link = is_link.then(|| {
                let above = real(path.parent()?)?;
                Some(above.join(path.file_name()?))
            });
            for closed in link.flatten().into_iter().chain(real(&path)) {
                let Some(inside) = below(&closed) else { continue };
                found.paths.push(inside);
                found.identities.extend(lstat(&closed).ok().map(|stat| FileIdentity::of(&stat)));
            }
        }
        found
    }

    /// Whether a path is closed.
    pub fn names(&self, path: &FilePath) -> bool {
        self.paths.iter().any(|closed| path.is_within(closed))
    }

    /// Whether a file is closed. The file is known by its device and inode, so another path to it is closed too.
    pub fn is_one(&self, stat: &Stat) -> bool {
        self.identities.contains(&FileIdentity::of(stat))
    }

    /// Whether a directory is closed or lies in a closed directory. Directories are known by their device and inode.
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

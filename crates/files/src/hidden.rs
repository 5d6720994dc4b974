//! What a policy hides inside of a workspace. The sandbox hides it from the code; here it is left
//! out for clients too, so that no link or name that the code chose leads one to fetch it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat, fstat, openat};
use windlass_protocol::policy::expand_home;

use super::{FilePath, Identity, Place};

/// Directories above a file that are looked at; deeper ones are refused.
const ABOVE_MAX: usize = 256;

/// The hidden paths below one workspace; hardly ever any.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    paths: Vec<FilePath>,
    /// Of those that exist: a file has other names than the one that is hidden.
    identities: Vec<Identity>,
}

impl Hidden {
    pub fn of(place: &Place) -> Self {
        let real = |path: &Path| path.canonicalize().ok();
        let workspaces: Vec<PathBuf> =
            std::iter::once(place.workspace.clone()).chain(real(&place.workspace)).collect();
        let below = |path: &Path| {
            let inside = workspaces.iter().find_map(|root| path.strip_prefix(root).ok())?;
            FilePath::file(inside.to_str()?).ok()
        };
        let home = place.home.as_deref();
        let named = place.hidden.iter().filter_map(|path| expand_home(path, home));
        let mut found = Self::default();
        for path in named.chain(place.own.iter().cloned()) {
            found.paths.extend(below(&path));
            // Most of what is hidden does not exist: one look tells.
            let Some(real) = path.symlink_metadata().ok().and_then(|_| real(&path)) else {
                continue;
            };
            if let Some(inside) = below(&real) {
                found.paths.push(inside);
                found
                    .identities
                    .extend(rustix::fs::stat(&real).ok().map(|stat| Identity::of(&stat)));
            }
        }
        found
    }

    /// Whether that name is hidden.
    pub fn hides(&self, path: &FilePath) -> bool {
        self.paths.iter().any(|hidden| path.is_within(hidden))
    }

    /// Whether it is one that is hidden, by whatever name.
    pub fn is_one(&self, stat: &Stat) -> bool {
        self.identities.contains(&Identity::of(stat))
    }

    /// Whether a directory is hidden or in one that is, by whatever name.
    pub fn holds(&self, directory: impl AsFd, workspace: Identity) -> rustix::io::Result<bool> {
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
            if Identity::of(&stat) == workspace {
                return Ok(false);
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            above = Some(openat(here, "..", flags, Mode::empty())?);
        }
        Ok(true)
    }
}

//! Where a path lies in a session's policy. Compares texts only: a path from a session's output is never opened.

use std::path::{Component, Path, PathBuf};

use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::{ENTRY_BYTES_MAX, HOME_DIRECTORIES, WorkspaceAccess, expand_home};

use super::{Confined, ConfinedSession};

/// Directories that are private in a session at level `full`.
const PRIVATE: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm"];

/// Directories of the kernel. No option of a policy is about them.
const OF_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

impl ConfinedSession<'_> {
    /// A path from an error message as an absolute path without `.` and `..`.
    pub(super) fn absolute(&self, text: &str) -> Option<PathBuf> {
        if text.is_empty() || text.len() > ENTRY_BYTES_MAX {
            return None;
        }
        let path = match text == "~" || text.starts_with("~/") {
            true => expand_home(text, self.home)?,
            false => self.workspace.join(text),
        };
        let mut plain = PathBuf::new();
        for part in path.components() {
            match part {
                Component::CurDir => {}
                Component::ParentDir => drop(plain.pop()),
                part => plain.push(part),
            }
        }
        plain.is_absolute().then_some(plain)
    }

    fn expanded<'l>(&self, list: &'l [String]) -> impl Iterator<Item = (&'l str, PathBuf)> {
        let home = self.home.map(Path::to_owned);
        list.iter().filter_map(move |entry| {
            Some((entry.as_str(), self::plain(&expand_home(entry, home.as_deref())?)))
        })
    }

    /// The entry of the policy that hides a path.
    pub(super) fn hidden_by(&self, path: &Path) -> Option<&str> {
        let mut hidden = self.expanded(&self.policy.hidden);
        hidden.find(|(_, root)| path.starts_with(root)).map(|(entry, _)| entry)
    }

    /// The protected name that a path is below.
    pub(super) fn protected_by(&self, path: &Path) -> Option<&str> {
        let mut roots = vec![self.workspace.to_owned()];
        roots.extend(self.expanded(&self.policy.writable).map(|(_, root)| root));
        let names = &self.policy.protected;
        names.iter().map(String::as_str).find(|name| {
            roots
                .iter()
                .any(|root| path.strip_prefix(root).is_ok_and(|rest| rest.starts_with(name)))
        })
    }

    /// The directory of programs or startup files that holds a path, if it is in a home that the session writes. Such a
    /// directory is protected there, whatever names the policy lists.
    pub(super) fn protected_at_home(&self, path: &Path) -> Option<PathBuf> {
        let home = self.home?;
        let mut roots: Vec<PathBuf> =
            self.expanded(&self.policy.writable).map(|(_, root)| root).collect();
        if self.policy.workspace == WorkspaceAccess::Write {
            roots.push(self.workspace.to_owned());
        }
        // A policy that makes `/` writable does not protect these directories.
        let is_whole = roots.iter().any(|root| root.parent().is_none());
        if is_whole || !roots.iter().any(|root| home.starts_with(root)) {
            return None;
        }
        let mut directories = HOME_DIRECTORIES.iter().map(|name| home.join(name));
        directories.find(|directory| path.starts_with(directory))
    }

    /// Whether the workspace holds a path and may only be read.
    pub(super) fn in_read_only_workspace(&self, path: &Path) -> bool {
        self.policy.workspace == WorkspaceAccess::Read && path.starts_with(self.workspace)
    }
}

impl Confined<'_> {
    /// Whether the policy lets the session write a path, or no option of the policy is about the path.
    pub(super) fn may_write(&self, path: &Path) -> bool {
        let session = &self.session;
        let workspace = (session.policy.workspace == WorkspaceAccess::Write)
            .then(|| session.workspace.to_owned());
        self.is_apart(path)
            || session.expanded(&session.policy.writable).any(|(_, root)| path.starts_with(root))
            || workspace.is_some_and(|workspace| path.starts_with(workspace))
    }

    /// Whether the policy lets the session read a path, apart from hidden paths.
    pub(super) fn may_read(&self, path: &Path) -> bool {
        let session = &self.session;
        self.may_write(path)
            || path.starts_with(session.workspace)
            || session.expanded(&session.policy.readable).any(|(_, root)| path.starts_with(root))
    }

    /// Whether a path is in a directory of the kernel, a private directory, or one that the node made for the session.
    fn is_apart(&self, path: &Path) -> bool {
        let private = if self.isolation() == Isolation::Full { &PRIVATE[..] } else { &[] };
        let fixed = private.iter().chain(&OF_KERNEL).any(|root| path.starts_with(root));
        fixed || self.session.own.iter().any(|root| path.starts_with(root))
    }

    /// Whether a path is in the private `/tmp`, whose size the policy limits.
    pub(super) fn in_private_tmp(&self, path: &Path) -> bool {
        self.isolation() == Isolation::Full && path.starts_with("/tmp")
    }
}

/// Without a final slash, as [`Path::starts_with`] compares paths anyway.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

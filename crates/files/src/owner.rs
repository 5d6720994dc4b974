//! To whom new files and directories belong. A session with a user id of its own has the rights of the workspace's owner
//! there, and of no other user. So what a client makes for it belongs to that owner, not to the user of the node.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Stat, chownat};
use rustix::process::{Gid, Uid, getegid, geteuid};

/// To whom the new files and directories of a client belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewFileOwner {
    /// The user of the node.
    Node,
    /// The owner of the workspace's directory. The node is root.
    Workspace,
}

/// A user and a group that are not those of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileOwner {
    user: Uid,
    group: Gid,
}

impl FileOwner {
    /// The owner of new files in a workspace. `None` if they stay the node's, as the kernel makes them.
    pub fn of(wanted: NewFileOwner, workspace: &Stat) -> Option<Self> {
        let (user, group) = (Uid::from_raw(workspace.st_uid), Gid::from_raw(workspace.st_gid));
        let is_other = user != geteuid() || group != getegid();
        (wanted == NewFileOwner::Workspace && is_other).then_some(Self { user, group })
    }

    /// Gives away an open file or directory. The caller has just made it, and no session could put another in its place.
    pub fn give(self, file: impl AsFd) -> rustix::io::Result<()> {
        chownat(file, c"", Some(self.user), Some(self.group), AtFlags::EMPTY_PATH)
    }
}

/// Whether only the node's user can change what is in a directory. So nobody swaps what the node makes there.
pub(super) fn is_private(directory: &Stat) -> bool {
    const OTHERS: u32 = 0o077;
    directory.st_uid == geteuid().as_raw() && directory.st_mode & OTHERS == 0
}

//! The directories of a family (`windlass_protocol::family`): making them, finding a session's room
//! after forks, and removing what nobody works in.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use windlass_protocol::family;

/// Forks of one process, and of its fork, and so on: the kernel allows fewer.
const DEPTH_MAX: usize = 64;

/// Makes a session's first room; its path without links.
pub(crate) fn make(room: &Path) -> io::Result<PathBuf> {
    directory(room)?;
    room.canonicalize()
}

/// The room of whoever began with this one: each fork since has made the next.
pub(super) fn current(first: &Path) -> PathBuf {
    let mut room = first.to_owned();
    while family::next_room(&room).is_dir() {
        room = family::next_room(&room);
    }
    room
}

/// Makes the places of a fork. Rules are made on them, so they are there before it.
pub(super) fn prepare(room: &Path) -> io::Result<()> {
    // What a fork that failed has left.
    let _ = std::fs::remove_dir_all(family::place(room));
    directory(&family::room_of_twin(room))?;
    directory(&family::next_room(room))
}

/// Removes the places of a fork of which the worker has not heard.
pub(super) fn undo(room: &Path) {
    let _ = std::fs::remove_dir_all(family::place(room));
    let _ = std::fs::remove_dir(family::next_room(room));
}

/// Leaves word where a session's own workspace would be of where the copy is.
pub(super) fn link(workspace: &Path, copy: &Path) {
    let made = workspace.parent().map_or(Ok(()), directory);
    if let Err(error) = made.and_then(|()| std::os::unix::fs::symlink(copy, workspace)) {
        tracing::warn!(path = %workspace.display(), %error, "a twin's workspace will not be removed");
    }
}

/// Removes the copy that a link of [`link`] leads to, and the link.
pub(crate) fn remove_copy(workspace: &Path) {
    let Ok(copy) = workspace.read_link() else { return };
    if let Err(error) = std::fs::remove_dir_all(&copy)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %copy.display(), %error, "an old workspace cannot be removed");
    }
    let _ = std::fs::remove_file(workspace);
    // Up to the first that somebody still needs.
    for above in copy.ancestors().skip(1).take(2 * DEPTH_MAX) {
        if std::fs::remove_dir(above).is_err() {
            break;
        }
    }
}

/// Removes the rooms of a session that is over, as far as no twin's place is in them.
pub(crate) fn remove_empty(first: &Path) {
    let mut room = current(first);
    // What is not empty stays, and with it what it is in.
    while room.starts_with(first) && std::fs::remove_dir(&room).is_ok() && room.pop() {}
}

fn directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_moves_on_with_each_fork_and_empty_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let first = make(&dir.path().join("families/s")).unwrap();
        assert_eq!(current(&first), first);
        prepare(&first).unwrap();
        let copy = family::workspace(&first);
        std::fs::create_dir(&copy).unwrap();
        let second = current(&first);
        assert_eq!(second, first.join("o"));
        prepare(&second).unwrap();
        std::fs::remove_dir_all(family::place(&second)).unwrap();
        remove_empty(&first);
        assert!(copy.is_dir() && !second.exists());
        assert!(family::room_of_twin(&first).is_dir(), "it is another's");
        remove_empty(&family::room_of_twin(&first));
        let word = dir.path().join("workspaces/twin");
        link(&word, &copy);
        remove_copy(&word);
        assert!(!first.exists() && word.symlink_metadata().is_err());
    }
}

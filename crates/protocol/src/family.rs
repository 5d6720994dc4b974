//! The directories of a family: a session and its twins. Node and keeper must agree on these paths: the node
//! copies files there, and the keeper sets the Landlock rules for them.
//!
//! Each worker has a *room*: the directory for its next fork. A fork creates two directories in the room:
//! - `t`, the twin's directory, with the twin's workspace `t/w` and the twin's room `t/r`;
//! - `o`, the original's room for its next fork.
//!
//! Landlock rules can only be tightened. With this nesting, no directory is writable for both twins after the
//! fork, and a later twin's directories lie in one that all its ancestors could write.

use std::path::{Path, PathBuf};

/// The twin's directory in a room.
pub fn twin_dir(room: &Path) -> PathBuf {
    room.join("t")
}

/// The twin's workspace.
pub fn workspace(room: &Path) -> PathBuf {
    twin_dir(room).join("w")
}

/// The twin's own room, for forks of the twin.
pub fn room_of_twin(room: &Path) -> PathBuf {
    twin_dir(room).join("r")
}

/// The original's room after a fork.
pub fn next_room(room: &Path) -> PathBuf {
    room.join("o")
}

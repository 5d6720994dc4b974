//! The places of a family: a session and its twins. Node and keeper must agree on them, since the one
//! copies files there and the other says who may write where.
//!
//! Each worker has a *room*. A fork makes two directories in it: `t`, the twin's place, with its
//! workspace `t/w` and its own room `t/r`; and `o`, which is the original's room from then on. What
//! two twins may not share is so in no directory that both can write to, and what a later twin needs
//! lies in one that all its ancestors could: rules can only be added to rules.

use std::path::{Path, PathBuf};

/// The twin's place in a room.
pub fn twin_dir(room: &Path) -> PathBuf {
    room.join("t")
}

/// The twin's workspace.
pub fn workspace(room: &Path) -> PathBuf {
    twin_dir(room).join("w")
}

/// The room for twins of the twin.
pub fn room_of_twin(room: &Path) -> PathBuf {
    twin_dir(room).join("r")
}

/// The original's room after a fork.
pub fn next_room(room: &Path) -> PathBuf {
    room.join("o")
}

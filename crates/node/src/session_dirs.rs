//! The directories of a family, which is a session and its twins (`windlass_protocol::family`). Makes the
//! family directory, builds a twin's directories where no session can write, moves them into the family, and
//! removes directories that nobody uses.
//!
//! A *room* is the directory in which the next fork of a session puts the twin's directories. Each fork
//! gives the original a new room inside the old one.
//!
//! A session can write anything into its family directory. So all work is done by descriptors beneath the
//! state directory (`windlass_beneath`). The keeper tells which room is the current one; the node never
//! reads that from the disk.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use windlass_beneath::Directory;
use windlass_protocol::{SessionId, family};

use crate::config::Config;

/// Maximum number of forks of one session: more than the kernel allows a confined session.
const DEPTH_MAX: usize = 512;

/// Maximum number of family directories for the same session id.
const SAME_ID_MAX: usize = 1000;

/// Maximum number of attempts to move an obstacle out of a twin's way; a running session can put a new one
/// there.
const PLANTED_MAX: usize = 16;

/// Opens the state directory. No session can write in it.
pub(crate) fn state(config: &Config) -> io::Result<Directory> {
    Directory::trusted(&config.state_dir)
}

/// Makes a recorded path of the node relative to the state directory.
pub(crate) fn inside<'a>(config: &Config, path: &'a Path) -> io::Result<&'a Path> {
    let below = path.strip_prefix(&config.state_dir).map_err(|_| {
        let message = format!("{} is not in the node's state directory", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })?;
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if is_plain && below != Path::new("") {
        return Ok(below);
    }
    let message = format!("{} is not a plain path", path.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Makes a session's first room. A directory of an earlier session with this id is not reused, because twins
/// of that session may still use it.
pub(crate) fn make(config: &Config, id: &SessionId) -> io::Result<PathBuf> {
    let families = config.families_dir();
    let directory = state(config)?.make_directory(inside(config, &families)?, 0o700)?;
    for name in names_of(id) {
        // An empty directory belongs to a session that failed to start.
        let _ = directory.remove_directory(&name);
        match directory.create_directory(&name, 0o700) {
            Ok(_) => return Ok(families.join(name)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("there are too many directories of earlier sessions {id}")))
}

/// The names that a session's family directory may have.
fn names_of(id: &SessionId) -> impl Iterator<Item = OsString> {
    let first = std::iter::once(OsString::from(id.as_str()));
    first.chain((2..SAME_ID_MAX).map(move |number| format!("{id}~{number}").into()))
}

/// Whether `room`, as a keeper reports it, can be the current room: the first room, or a room that forks
/// make in it.
pub(crate) fn is_room_of(first: &Path, room: &Path) -> bool {
    let Ok(below) = room.strip_prefix(first) else { return false };
    let next = family::next_room(Path::new(""));
    below.components().count() <= DEPTH_MAX
        && below.components().all(|part| part.as_os_str() == next.as_os_str())
}

/// Why a twin's directories cannot be moved into the family.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("cannot use {path}: {cause}")]
    Room { path: PathBuf, cause: io::Error },
    #[error("{path} is in the way and cannot be moved away: {cause}")]
    Planted { path: PathBuf, cause: io::Error },
}

/// The directories of a twin while they are built. Dropping this removes what was not installed.
#[derive(Debug)]
pub(crate) struct StagedTwin {
    staging: Directory,
    directory: Directory,
    name: OsString,
}

impl StagedTwin {
    /// Makes the empty directories of a fork where no session can write.
    pub fn new(config: &Config, twin: &SessionId) -> io::Result<Self> {
        let staging =
            state(config)?.make_directory(inside(config, &config.staging_dir())?, 0o700)?;
        let name = OsString::from(twin.as_str());
        staging.remove_tree(&name)?;
        let directory = staging.create_directory(&name, 0o700)?;
        let staged = Self { staging, directory, name };
        let here = Path::new("");
        staged.directory.make_directory(family::workspace(here), 0o700)?;
        staged.directory.make_directory(family::room_of_twin(here), 0o700)?;
        staged.directory.make_directory(family::next_room(here), 0o700)?;
        Ok(staged)
    }

    /// The directory for the copy of the workspace.
    pub fn workspace(&self) -> io::Result<Directory> {
        self.directory.directory(family::workspace(Path::new("")))
    }

    /// Moves the directories into a room.
    pub fn install(self, config: &Config, room: &Path) -> Result<(), InstallError> {
        let failed = |cause| InstallError::Room { path: room.to_owned(), cause };
        let below = inside(config, room).map_err(failed)?;
        let into = state(config).and_then(|state| state.directory(below)).map_err(failed)?;
        let here = Path::new("");
        // The twin directory last: when it is there, the fork is complete.
        for part in [family::next_room(here), family::twin_dir(here)] {
            self.move_in(&part, &into).map_err(|cause| {
                let path = room.join(&part);
                InstallError::Planted { path, cause }
            })?;
        }
        Ok(())
    }

    fn move_in(&self, part: &Path, into: &Directory) -> io::Result<()> {
        let mut moved = self.directory.rename(part, into, part);
        for number in 0..PLANTED_MAX {
            match &moved {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                _ => break,
            }
            // The obstacle is moved to where no session can write, and is removed with the staging.
            let away = format!("{}-{number}", part.display());
            match into.rename(part, &self.directory, &away) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => moved = self.directory.rename(part, into, part),
            }
        }
        moved
    }
}

impl Drop for StagedTwin {
    fn drop(&mut self) {
        if let Err(error) = self.staging.remove_tree(&self.name) {
            let name = self.name.display();
            tracing::warn!(%name, %error, "cannot remove the staging directory of a fork");
        }
    }
}

/// Removes the incomplete directories that forks of an earlier node left.
pub(crate) fn sweep_staging(config: &Config) {
    let staging = config.staging_dir();
    let swept = state(config).and_then(|state| state.remove_tree(inside(config, &staging)?));
    if let Err(error) = swept {
        tracing::warn!(path = %staging.display(), %error, "cannot remove staging directories");
    }
}

/// Removes the directory of a twin that failed to start.
pub(crate) fn remove_twin_dir(config: &Config, room: &Path) {
    remove(config, &family::twin_dir(room));
}

/// Removes a directory of the node in which a session could write, with its content.
pub(crate) fn remove(config: &Config, path: &Path) {
    let removed = state(config).and_then(|state| state.remove_tree(inside(config, path)?));
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "cannot remove a session's directory");
    }
}

/// Makes the symlink from a session's entry in the workspaces directory to its real workspace.
pub(crate) fn link(config: &Config, id: &SessionId, workspace: &Path) -> io::Result<()> {
    let workspaces = config.workspaces_dir();
    let directory = state(config)?.make_directory(inside(config, &workspaces)?, 0o755)?;
    // An existing symlink belongs to a session that failed to start.
    let _ = directory.remove_file(id.as_str());
    directory.symlink(workspace, id.as_str())
}

/// Removes the symlink that [`link`] made.
pub(crate) fn unlink(config: &Config, id: &SessionId) {
    let path = config.workspace_of(id);
    let _ = state(config).and_then(|state| state.remove_file(inside(config, &path)?));
}

/// Removes the empty rooms of an ended session.
pub(crate) fn remove_empty(config: &Config, first: &Path) {
    let (Ok(state), Ok(first)) = (state(config), inside(config, first)) else { return };
    let mut room = first.to_owned();
    // Only empty directories are removed, so it does not matter who made them.
    while room.components().count() < DEPTH_MAX {
        let next = family::next_room(&room);
        match state.look(&next) {
            Ok(Some(_)) => room = next,
            _ => break,
        }
    }
    while room.starts_with(first) && state.remove_directory(&room).is_ok() && room.pop() {}
}

/// Whether a path of the node exists. If the kernel cannot tell, it counts as existing.
pub(crate) fn is_there(config: &Config, path: &Path) -> bool {
    let found = inside(config, path).and_then(|path| state(config)?.look(path));
    !matches!(found, Ok(None))
}

/// The session id in the name of a family directory.
fn id_of(name: &OsStr) -> Option<&str> {
    let name = name.to_str()?;
    Some(name.split_once('~').map_or(name, |(id, _)| id))
}

/// The family directory that contains a path, and the session id in its name, if it has one.
pub(crate) fn root_of(config: &Config, path: &Path) -> Option<(PathBuf, Option<SessionId>)> {
    if let Ok(below) = path.strip_prefix(config.families_dir()) {
        let name = below.components().next()?.as_os_str();
        let id = id_of(name).and_then(|id| SessionId::parse(id).ok());
        return Some((config.families_dir().join(name), id));
    }
    let below = path.strip_prefix(config.legacy_pool_dir()).ok()?;
    Some((config.legacy_pool_dir().join(below.components().next()?), None))
}

/// All symlinks of [`link`]: the session and the target.
pub(crate) fn links(config: &Config) -> io::Result<Vec<(SessionId, PathBuf)>> {
    let workspaces = config.workspaces_dir();
    let directory = match state(config)?.directory(inside(config, &workspaces)?) {
        // The node has not made a workspace yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        directory => directory?,
    };
    let names = directory.names()?.into_iter();
    let linked = names.filter_map(|name| Some((directory.read_link(&name).ok()?, name)));
    let known = linked
        .filter_map(|(path, name)| Some((SessionId::parse(name.into_string().ok()?).ok()?, path)));
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        let config = Config::new(dir.join("run"), dir.join("state"), PathBuf::new());
        std::fs::create_dir(&config.state_dir).unwrap();
        config
    }

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    fn fork(config: &Config, room: &Path, twin: &str) -> Result<(), InstallError> {
        StagedTwin::new(config, &id(twin)).unwrap().install(config, room)
    }

    #[test]
    fn each_fork_makes_a_new_room_and_empty_rooms_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let first = make(&config, &id("s")).unwrap();
        fork(&config, &first, "t1").unwrap();
        let (copy, second) = (family::workspace(&first), first.join("o"));
        fork(&config, &second, "t2").unwrap();
        remove_twin_dir(&config, &second);
        remove_empty(&config, &first);
        assert!(copy.is_dir() && !second.exists());
        assert!(family::room_of_twin(&first).is_dir(), "it belongs to the twin");
        remove_empty(&config, &family::room_of_twin(&first));
        assert_eq!(links(&config).unwrap(), []);
        link(&config, &id("t1"), &copy).unwrap();
        assert_eq!(links(&config).unwrap(), [(id("t1"), copy)]);
        assert_eq!(std::fs::read_dir(config.staging_dir()).unwrap().count(), 0);
    }

    #[test]
    fn only_rooms_that_forks_make_are_accepted() {
        let first = Path::new("/s/families/one");
        for (room, is) in [
            ("/s/families/one", true),
            ("/s/families/one/o/o", true),
            ("/s/families/one/t", false),
            ("/s/families/one/o/../..", false),
            ("/s/families/other/o", false),
            ("/home", false),
        ] {
            assert_eq!(is_room_of(first, Path::new(room)), is, "{room}");
        }
    }

    #[test]
    fn an_id_that_is_used_again_gets_another_family_directory() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let first = make(&config, &id("s")).unwrap();
        assert_eq!(make(&config, &id("s")).unwrap(), first, "the empty directory is reused");
        std::fs::write(first.join("left"), "").unwrap();
        let second = make(&config, &id("s")).unwrap();
        assert_ne!(second, first);
        assert_eq!(root_of(&config, &second.join("t/w")), Some((second, Some(id("s")))));
    }

    #[test]
    fn planted_files_are_moved_away_and_nothing_outside_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let outside = dir.path().join("outside");
        std::fs::create_dir_all(outside.join("t/keep")).unwrap();
        let first = make(&config, &id("s")).unwrap();
        std::os::unix::fs::symlink(&outside, first.join("o")).unwrap();
        std::fs::create_dir_all(first.join("t/w")).unwrap();
        std::fs::write(first.join("t/w/planted"), "").unwrap();
        fork(&config, &first, "t1").unwrap();
        assert!(!first.join("t/w/planted").exists());
        assert!(first.join("o").symlink_metadata().unwrap().is_dir());
        assert!(outside.join("t/keep").is_dir());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        // A symlink instead of a room.
        std::fs::remove_dir(first.join("o")).unwrap();
        std::os::unix::fs::symlink(&outside, first.join("o")).unwrap();
        let refused = fork(&config, &first.join("o"), "t2").unwrap_err();
        assert!(matches!(&refused, InstallError::Room { path, .. } if *path == first.join("o")));
        remove_twin_dir(&config, &first.join("o"));
        remove_empty(&config, &first);
        assert!(outside.join("t/keep").is_dir());
    }
}

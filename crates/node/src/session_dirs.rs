//! The directories of a family (`windlass_protocol::family`): making them, building a twin's place
//! where no session can write, moving it in, and removing what nobody works in.
//!
//! A session can write in its family's directory and may put anything there. So everything here is done
//! by descriptors beneath the state directory (`windlass_beneath`), and which room is the
//! current one is known from the keeper, never read from the disk.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use windlass_beneath::Directory;
use windlass_protocol::{SessionId, family};

use crate::config::Config;

/// Forks of one session: more than the kernel allows a confined one.
const DEPTH_MAX: usize = 512;

/// Family directories that can carry the same session id.
const SAME_ID_MAX: usize = 1000;

/// Times that something in the twin's way is moved away; a running thread can put it there again.
const PLANTED_MAX: usize = 16;

/// The state directory, which no session can write.
pub(crate) fn state(config: &Config) -> io::Result<Directory> {
    Directory::trusted(&config.state_dir)
}

/// A recorded path of the node's own, relative to the state directory.
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

/// Makes a session's first room. A directory that an earlier session of this id has left, and in which
/// twins of it may work, is not used again.
pub(crate) fn make(config: &Config, id: &SessionId) -> io::Result<PathBuf> {
    let families = config.rooms_dir();
    let directory = state(config)?.make_directory(inside(config, &families)?, 0o700)?;
    for name in names_of(id) {
        // An empty one is of a session that did not come to be.
        let _ = directory.remove_directory(&name);
        match directory.create_directory(&name, 0o700) {
            Ok(_) => return Ok(families.join(name)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many directories of earlier sessions with this id"))
}

/// The names that a session's family directory may have.
fn names_of(id: &SessionId) -> impl Iterator<Item = OsString> {
    let first = std::iter::once(OsString::from(id.as_str()));
    first.chain((2..SAME_ID_MAX).map(move |number| format!("{id}~{number}").into()))
}

/// Whether a keeper's word for the current room can be: the first one, or one of those that forks make
/// in it.
pub(crate) fn is_room_of(first: &Path, room: &Path) -> bool {
    let Ok(below) = room.strip_prefix(first) else { return false };
    let next = family::next_room(Path::new(""));
    below.components().count() <= DEPTH_MAX
        && below.components().all(|part| part.as_os_str() == next.as_os_str())
}

/// Why a twin's place cannot be moved into its family.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("{path} cannot be used: {cause}")]
    Room { path: PathBuf, cause: io::Error },
    #[error("{path} is in the way and cannot be moved away: {cause}")]
    Planted { path: PathBuf, cause: io::Error },
}

/// A twin's place while it is built. What is left of it is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Staged {
    staging: Directory,
    directory: Directory,
    name: OsString,
}

impl Staged {
    /// Makes the directories of a fork, empty, where no session can write.
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

    /// Where the copy of the workspace goes.
    pub fn workspace(&self) -> io::Result<Directory> {
        self.directory.directory(family::workspace(Path::new("")))
    }

    /// Moves all of it into a room, each directory whole.
    pub fn install(self, config: &Config, room: &Path) -> Result<(), InstallError> {
        let failed = |cause| InstallError::Room { path: room.to_owned(), cause };
        let below = inside(config, room).map_err(failed)?;
        let into = state(config).and_then(|state| state.directory(below)).map_err(failed)?;
        let here = Path::new("");
        // The twin's place last: with it the fork has its directories.
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
            // Whatever it is, it is moved to where no session can write, and goes with the rest.
            let away = format!("{}-{number}", part.display());
            match into.rename(part, &self.directory, &away) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => moved = self.directory.rename(part, into, part),
            }
        }
        moved
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Err(error) = self.staging.remove_tree(&self.name) {
            let name = self.name.display();
            tracing::warn!(%name, %error, "a fork's staging directory cannot be removed");
        }
    }
}

/// Removes what forks of an earlier node left half built.
pub(crate) fn sweep_staging(config: &Config) {
    let staging = config.staging_dir();
    let swept = state(config).and_then(|state| state.remove_tree(inside(config, &staging)?));
    if let Err(error) = swept {
        tracing::warn!(path = %staging.display(), %error, "staging directories cannot be removed");
    }
}

/// Removes the place of a twin that has not come to be.
pub(crate) fn remove_place(config: &Config, room: &Path) {
    remove(config, &family::twin_dir(room));
}

/// Removes one of the node's own directories, which a session could write, with all that is in it.
pub(crate) fn remove(config: &Config, path: &Path) {
    let removed = state(config).and_then(|state| state.remove_tree(inside(config, path)?));
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "a session's directory cannot be removed");
    }
}

/// Links a session's own workspace to where it really is.
pub(crate) fn link(config: &Config, id: &SessionId, workspace: &Path) -> io::Result<()> {
    let workspaces = config.workspaces_dir();
    let directory = state(config)?.make_directory(inside(config, &workspaces)?, 0o755)?;
    // A link that is there already is of a session that did not come to be.
    let _ = directory.remove_file(id.as_str());
    directory.symlink(workspace, id.as_str())
}

/// Removes a link of [`link`].
pub(crate) fn unlink(config: &Config, id: &SessionId) {
    let path = config.workspace_of(id);
    let _ = state(config).and_then(|state| state.remove_file(inside(config, &path)?));
}

/// Removes the rooms of a session that is over, as far as they are empty.
pub(crate) fn remove_empty(config: &Config, first: &Path) {
    let (Ok(state), Ok(first)) = (state(config), inside(config, first)) else { return };
    let mut room = first.to_owned();
    // Only empty directories go, so it does not matter who made them.
    while room.components().count() < DEPTH_MAX {
        let next = family::next_room(&room);
        match state.look(&next) {
            Ok(Some(_)) => room = next,
            _ => break,
        }
    }
    while room.starts_with(first) && state.remove_directory(&room).is_ok() && room.pop() {}
}

/// Whether something is at one of the node's own paths.
pub(crate) fn is_there(config: &Config, path: &Path) -> bool {
    let found = inside(config, path).and_then(|path| state(config)?.look(path));
    !matches!(found, Ok(None))
}

/// The session id that a family's directory was named after.
fn id_of(name: &OsStr) -> Option<&str> {
    let name = name.to_str()?;
    Some(name.split_once('~').map_or(name, |(id, _)| id))
}

/// The family directory that a path is in, and the id that it was named after where that is known.
pub(crate) fn root_of(config: &Config, path: &Path) -> Option<(PathBuf, Option<SessionId>)> {
    if let Ok(below) = path.strip_prefix(config.rooms_dir()) {
        let name = below.components().next()?.as_os_str();
        let id = id_of(name).and_then(|id| SessionId::parse(id).ok());
        return Some((config.rooms_dir().join(name), id));
    }
    let below = path.strip_prefix(config.places_dir()).ok()?;
    Some((config.places_dir().join(below.components().next()?), None))
}

/// The links of [`link`]: whose they are, and where they lead.
pub(crate) fn links(config: &Config) -> io::Result<Vec<(SessionId, PathBuf)>> {
    let workspaces = config.workspaces_dir();
    let directory = match state(config)?.directory(inside(config, &workspaces)?) {
        // No session has had a workspace of its own yet.
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
        Staged::new(config, &id(twin)).unwrap().install(config, room)
    }

    #[test]
    fn the_room_moves_on_with_each_fork_and_empty_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let first = make(&config, &id("s")).unwrap();
        fork(&config, &first, "t1").unwrap();
        let (copy, second) = (family::workspace(&first), first.join("o"));
        fork(&config, &second, "t2").unwrap();
        remove_place(&config, &second);
        remove_empty(&config, &first);
        assert!(copy.is_dir() && !second.exists());
        assert!(family::room_of_twin(&first).is_dir(), "it is another's");
        remove_empty(&config, &family::room_of_twin(&first));
        assert_eq!(links(&config).unwrap(), []);
        link(&config, &id("t1"), &copy).unwrap();
        assert_eq!(links(&config).unwrap(), [(id("t1"), copy)]);
        assert_eq!(std::fs::read_dir(config.staging_dir()).unwrap().count(), 0);
    }

    #[test]
    fn only_rooms_that_forks_make_are_rooms() {
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
        assert_eq!(make(&config, &id("s")).unwrap(), first, "nobody has used it");
        std::fs::write(first.join("left"), "").unwrap();
        let second = make(&config, &id("s")).unwrap();
        assert_ne!(second, first);
        assert_eq!(root_of(&config, &second.join("t/w")), Some((second, Some(id("s")))));
    }

    #[test]
    fn what_was_planted_is_moved_away_and_nothing_outside_is_touched() {
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
        // A link where a room should be.
        std::fs::remove_dir(first.join("o")).unwrap();
        std::os::unix::fs::symlink(&outside, first.join("o")).unwrap();
        let refused = fork(&config, &first.join("o"), "t2").unwrap_err();
        assert!(matches!(&refused, InstallError::Room { path, .. } if *path == first.join("o")));
        remove_place(&config, &first.join("o"));
        remove_empty(&config, &first);
        assert!(outside.join("t/keep").is_dir());
    }
}

//! Directories that are made before a session asks for them: a workspace, and a room for its twins.
//! A pooled worker is confined in them in advance. The session that takes them gets a link to them
//! at the usual path of its workspace; by that link they are found, and removed with the session.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use windlass_protocol::{Epoch, SessionId};
use windlass_sandbox::beneath::Directory;

use super::fork::rooms;
use crate::config::Config;
use crate::context::Context;

const WORKSPACE: &str = "workspace";
const ROOM: &str = "room";

/// Such directories. They go with this, unless a session has them.
#[derive(Debug)]
pub(crate) struct Place {
    pub workspace: PathBuf,
    pub room: PathBuf,
    /// The directory of all places, which no session can write.
    places: Directory,
    name: OsString,
    taken: bool,
}

impl Place {
    /// Makes them. No two of a machine have the same epoch and number.
    pub fn make(config: &Config, epoch: Epoch, number: u64) -> io::Result<Self> {
        let all = config.places_dir();
        let name = format!("{}-{number}", epoch.0);
        let directory = all.join(&name);
        let place = Self {
            workspace: directory.join(WORKSPACE),
            room: directory.join(ROOM),
            places: rooms::state(config)?.make_directory(rooms::inside(config, &all)?, 0o755)?,
            name: name.into(),
            taken: false,
        };
        let made = place.places.make_directory(&place.name, 0o755)?;
        made.create_directory(WORKSPACE, 0o755)?;
        made.create_directory(ROOM, 0o700)?;
        Ok(place)
    }

    /// Leaves word of it where the session's own workspace would be.
    pub fn link(&self, config: &Config, session: &SessionId) -> io::Result<()> {
        rooms::link(config, session, &self.workspace)
    }

    /// A session has it now.
    pub fn taken(&mut self) {
        self.taken = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.taken {
            remove(&self.places, &self.name);
        }
    }
}

/// The room for twins in one of the directories of all places.
pub(crate) fn room_in(directory: &Path) -> PathBuf {
    directory.join(ROOM)
}

/// Removes a place in which nobody has left anything.
fn remove(places: &Directory, name: &OsStr) {
    let directory = Path::new(name);
    for empty in [directory.join(WORKSPACE), directory.join(ROOM), directory.to_owned()] {
        let _ = places.remove_directory(empty);
    }
}

/// The directory of all places, if there is one.
fn all(config: &Config) -> io::Result<Directory> {
    let path = config.places_dir();
    rooms::state(config)?.directory(rooms::inside(config, &path)?)
}

/// Clears away what a session that has not come to be would have had.
pub(crate) fn give_back(config: &Config, session: &SessionId) {
    let link = config.workspace_of(session);
    let workspace =
        rooms::state(config).and_then(|state| state.read_link(rooms::inside(config, &link)?));
    let Ok(workspace) = workspace else { return };
    if let Some((directory, _)) = rooms::root_of(config, &workspace)
        && directory.starts_with(config.places_dir())
    {
        rooms::unlink(config, session);
        if let (Ok(places), Some(name)) = (all(config), directory.file_name()) {
            remove(&places, name);
        }
    }
}

/// Removes places that no session had taken when an earlier node died, and places of sessions that
/// never started.
pub(crate) fn sweep(context: &Context) {
    let config = &context.config;
    let Ok(places) = all(config) else { return };
    for (id, _) in rooms::links(config).unwrap_or_default() {
        if is_unknown(context, &id) {
            give_back(config, &id);
        }
    }
    // Without knowing who has a place, none is removed.
    let (Ok(links), Ok(names)) = (rooms::links(config), places.names()) else { return };
    let taken: HashSet<PathBuf> = links.into_iter().map(|(_, path)| path).collect();
    let this_node = format!("{}-", context.epoch.0);
    for name in names {
        let of_this_node = name.as_encoded_bytes().starts_with(this_node.as_bytes());
        if !of_this_node && !taken.contains(&config.places_dir().join(&name).join(WORKSPACE)) {
            remove(&places, &name);
        }
    }
}

fn is_unknown(context: &Context, id: &SessionId) -> bool {
    !context.knows(id) && matches!(context.journal.session(id), Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        let config = Config::new(dir.join("run"), dir.join("state"), PathBuf::new());
        std::fs::create_dir(&config.state_dir).unwrap();
        config
    }

    #[test]
    fn a_place_that_nobody_took_goes() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let place = Place::make(&config, Epoch(3), 7).unwrap();
        let (workspace, room) = (place.workspace.clone(), place.room.clone());
        assert!(workspace.is_dir() && room.is_dir());
        drop(place);
        assert_eq!(std::fs::read_dir(config.places_dir()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_never_a_session_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let id = SessionId::parse("one").unwrap();
        let mut place = Place::make(&config, Epoch(3), 7).unwrap();
        place.link(&config, &id).unwrap();
        place.taken();
        drop(place);
        give_back(&config, &id);
        assert!(config.workspace_of(&id).symlink_metadata().is_err());
        assert_eq!(std::fs::read_dir(config.places_dir()).unwrap().count(), 0);
    }
}

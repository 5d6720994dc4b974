//! Directories for a session that nobody has asked for yet: a workspace, and a room for its twins. A
//! worker can be confined in them before there is a session. Whoever gets them has a link to them where
//! a workspace of its own would be, by which they are found and removed with it.

use std::io;
use std::path::{Path, PathBuf};

use windlass_protocol::{Epoch, SessionId};

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
    directory: PathBuf,
    taken: bool,
}

impl Place {
    /// Makes them. No two of a machine have the same epoch and number.
    pub fn make(config: &Config, epoch: Epoch, number: u64) -> io::Result<Self> {
        let directory = config.places_dir().join(format!("{}-{number}", epoch.0));
        let (workspace, room) = (directory.join(WORKSPACE), directory.join(ROOM));
        let mut place = Self { workspace, room, directory, taken: false };
        std::fs::create_dir_all(&place.workspace)?;
        place.room = rooms::make(&place.room)?;
        Ok(place)
    }

    /// Leaves word of it where the session's own workspace would be.
    pub fn link(&self, config: &Config, session: &SessionId) -> io::Result<()> {
        std::fs::create_dir_all(config.workspaces_dir())?;
        std::os::unix::fs::symlink(&self.workspace, config.workspace_of(session))
    }

    /// A session has it now.
    pub fn taken(&mut self) {
        self.taken = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.taken {
            remove(&self.directory);
        }
    }
}

/// Removes a place in which nobody has left anything.
fn remove(directory: &Path) {
    let _ = std::fs::remove_dir(directory.join(WORKSPACE));
    let _ = std::fs::remove_dir(directory.join(ROOM));
    let _ = std::fs::remove_dir(directory);
}

/// Clears away what a session that has not come to be would have had.
pub(crate) fn give_back(config: &Config, session: &SessionId) {
    let link = config.workspace_of(session);
    if let Ok(workspace) = link.read_link()
        && workspace.starts_with(config.places_dir())
    {
        let _ = std::fs::remove_file(&link);
        workspace.parent().into_iter().for_each(remove);
    }
}

/// Removes places that were for nobody when an earlier node died, or for a session that has not come to
/// be.
pub(crate) fn sweep(context: &Context) {
    let config = &context.config;
    let Ok(places) = std::fs::read_dir(config.places_dir()) else { return };
    let mut taken = std::collections::HashSet::new();
    for link in std::fs::read_dir(config.workspaces_dir()).into_iter().flatten().flatten() {
        let Ok(workspace) = link.path().read_link() else { continue };
        let session = link.file_name().into_string().ok().and_then(|id| SessionId::parse(id).ok());
        match session {
            Some(id) if is_unknown(context, &id) => give_back(config, &id),
            _ => drop(taken.insert(workspace)),
        }
    }
    for place in places.flatten().map(|place| place.path()) {
        let of_this_node = place.file_name().is_some_and(|name| {
            name.as_encoded_bytes().starts_with(format!("{}-", context.epoch.0).as_bytes())
        });
        if !of_this_node && !taken.contains(&place.join(WORKSPACE)) {
            remove(&place);
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
        Config::new(dir.join("run"), dir.join("state"), PathBuf::new())
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
    fn a_place_stays_with_its_session_and_goes_with_its_workspace() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let id = SessionId::parse("one").unwrap();
        let mut place = Place::make(&config, Epoch(3), 7).unwrap();
        place.link(&config, &id).unwrap();
        place.taken();
        let (workspace, room) = (place.workspace.clone(), place.room.clone());
        drop(place);
        std::fs::write(workspace.join("work"), "done").unwrap();
        rooms::remove_empty(&room);
        rooms::remove_copy(&config.workspace_of(&id));
        assert!(!workspace.exists() && !config.places_dir().exists());
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

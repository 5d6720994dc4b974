//! Which directories belong to which session, and which of them a living session needs. Reads names and
//! links that only the node writes; never looks into what a session wrote.
//!
//! A twin reads modules, and directories that its copy was made without, in the workspace of the session
//! that it was forked from. So a workspace is needed as long as a session lives that descends from it.
//! Rooms are nested (`windlass_protocol::family`), so the paths say who descends from whom.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use windlass_protocol::{SessionId, family};
use windlass_sandbox::beneath::TreeMeter;

use super::DiskGround;
use crate::session::fork::rooms;

/// What a removal is decided by, taken at one moment.
#[derive(Debug)]
pub(super) struct Picture {
    /// Links in the directory of workspaces: whose, and where they lead.
    pub links: Vec<(SessionId, PathBuf)>,
    /// Directories of families, by the id that each is named after.
    families: HashMap<SessionId, Vec<PathBuf>>,
    /// Directories in which somebody lives, or is about to, by the family's directory.
    living: HashMap<PathBuf, Vec<PathBuf>>,
}

impl Picture {
    /// Gives `None` if the links to workspaces cannot be read. The caller then removes nothing, because any
    /// directory may be in use.
    pub fn take(ground: &DiskGround<'_>) -> Option<Self> {
        let config = ground.config;
        // Rooms first: a twin that comes to live meanwhile has its link already. A family in which
        // nobody lives now stays so, since only a living session is forked.
        let rooms = ground.claims.rooms();
        let links = rooms::links(config).ok()?;
        let known = links.iter().filter(|(id, _)| ground.claims.knows(id));
        let mut living: HashMap<PathBuf, Vec<PathBuf>> = HashMap::new();
        for path in rooms.into_iter().chain(known.map(|(_, path)| path.clone())) {
            if let Some((root, _)) = rooms::root_of(config, &path) {
                living.entry(root).or_default().push(path);
            }
        }
        let mut families: HashMap<SessionId, Vec<PathBuf>> = HashMap::new();
        for name in names(ground, &config.rooms_dir()) {
            let directory = config.rooms_dir().join(name);
            if let Some((_, Some(id))) = rooms::root_of(config, &directory) {
                families.entry(id).or_default().push(directory);
            }
        }
        Some(Self { links, families, living })
    }

    /// Directories of families that are named after a session.
    pub fn families_of(&self, id: &SessionId) -> &[PathBuf] {
        self.families.get(id).map_or(&[], Vec::as_slice)
    }

    /// Every directory of a family.
    pub fn families(&self) -> impl Iterator<Item = &PathBuf> {
        self.families.values().flatten()
    }

    /// Whether somebody lives at a path of a family, or beneath it.
    pub fn lives_in(&self, ground: &DiskGround<'_>, path: &Path) -> bool {
        let Some((root, _)) = rooms::root_of(ground.config, path) else { return true };
        let living = self.living.get(&root);
        living.is_some_and(|living| living.iter().any(|one| one.starts_with(path)))
    }
}

/// The place of the twin whose copy is at that path, if it is a copy.
pub(super) fn place_of_copy(ground: &DiskGround<'_>, copy: &Path) -> Option<PathBuf> {
    rooms::root_of(ground.config, copy)?;
    let place = copy.parent()?;
    let room = place.parent()?;
    (family::workspace(room) == copy).then(|| place.to_owned())
}

/// A directory that was made before its session, and the room in it.
pub(super) fn ready_made(ground: &DiskGround<'_>, path: &Path) -> Option<(PathBuf, PathBuf)> {
    let (root, _) = rooms::root_of(ground.config, path)?;
    let is_ready_made = root.starts_with(ground.config.places_dir());
    is_ready_made.then(|| (root.clone(), crate::session::places::room_in(&root)))
}

/// Names in one of the node's directories. One that is not there has none.
pub(super) fn names(ground: &DiskGround<'_>, directory: &Path) -> Vec<OsString> {
    let state = rooms::state(ground.config);
    let names = match directory == ground.config.state_dir {
        true => state.and_then(|state| state.names()),
        false => rooms::inside(ground.config, directory)
            .and_then(|below| state?.directory(below)?.names()),
    };
    names.unwrap_or_default()
}

/// What the node-made workspace of a session takes; a client's own directory does not count.
pub(super) fn workspace_bytes(
    ground: &DiskGround<'_>,
    id: &SessionId,
    meter: &mut TreeMeter,
) -> u64 {
    let own = ground.config.workspace_of(id);
    let Ok(state) = rooms::state(ground.config) else { return 0 };
    let linked = rooms::inside(ground.config, &own).and_then(|own| state.read_link(own));
    let path = linked.unwrap_or(own);
    let measured =
        rooms::inside(ground.config, &path).and_then(|path| state.measure_tree(path, meter));
    measured.map_or(0, |measured| measured.bytes)
}

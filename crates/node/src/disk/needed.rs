//! Which directories belong to which session, and which of them a living session needs. Reads names and
//! links that only the node writes; never looks into what a session wrote.
//!
//! A twin reads modules, and directories that its copy was made without, in the workspace of the session
//! that it was forked from. So a workspace is needed as long as a session lives that descends from it.
//! Rooms are nested (`windlass_protocol::family`), so the paths say who descends from whom.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use windlass_beneath::TreeMeter;
use windlass_journal::Journal;
use windlass_protocol::event::EndReason;
use windlass_protocol::{SessionId, family};

use super::DiskGround;
use crate::session::start::original_of;
use crate::session_dirs;

/// How many generations of originals are looked up for one twin. Where the kernel keeps twins apart, a family has at
/// most 16: each fork adds a Landlock layer.
const GENERATIONS_MAX: usize = 1000;

/// What a removal is decided by, taken at one moment.
#[derive(Debug)]
pub(super) struct Picture {
    /// Links in the directory of workspaces: whose, and where they lead.
    pub links: Vec<(SessionId, PathBuf)>,
    /// Directories of families, by the id that each is named after.
    families: HashMap<SessionId, Vec<PathBuf>>,
    /// Directories in which somebody lives, or is about to, by the family's directory.
    living: HashMap<PathBuf, Vec<PathBuf>>,
    /// Copies of twins that were lost. They stay as long as their sessions' journals.
    kept: Vec<PathBuf>,
}

impl Picture {
    /// Gives `None` if the links to workspaces cannot be read. The caller then removes nothing, because any
    /// directory may be in use. `due` are ended sessions that are about to be removed.
    pub fn take(ground: &DiskGround<'_>, due: &[SessionId]) -> Option<Self> {
        let config = ground.config;
        // Rooms first: a twin that comes to live meanwhile has its link already. A family in which
        // nobody lives now stays so, since only a living session is forked.
        let rooms = ground.claims.rooms();
        let links = session_dirs::links(config).ok()?;
        let known = links.iter().filter(|(id, _)| ground.claims.knows(id));
        let mut living: HashMap<PathBuf, Vec<PathBuf>> = HashMap::new();
        for path in rooms.into_iter().chain(known.map(|(_, path)| path.clone())) {
            if let Some((root, _)) = session_dirs::root_of(config, &path) {
                living.entry(root).or_default().push(path);
            }
        }
        let mut families: HashMap<SessionId, Vec<PathBuf>> = HashMap::new();
        for name in names(ground, &config.rooms_dir()) {
            let directory = config.rooms_dir().join(name);
            if let Some((_, Some(id))) = session_dirs::root_of(config, &directory) {
                families.entry(id).or_default().push(directory);
            }
        }
        let is_kept = |id: &SessionId| {
            !ground.claims.knows(id) && !due.contains(id) && copy_stays(ground.journal, id)
        };
        let kept = links.iter().filter(|(id, _)| is_kept(id)).map(|(_, path)| path.clone());
        let kept = kept.collect();
        Some(Self { links, families, living, kept })
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
        let Some((root, _)) = session_dirs::root_of(ground.config, path) else { return true };
        let living = self.living.get(&root);
        living.is_some_and(|living| living.iter().any(|one| one.starts_with(path)))
    }

    /// Whether a live session is at a path of a family or beneath it, or a copy that is kept for a lost twin.
    pub fn needs(&self, ground: &DiskGround<'_>, path: &Path) -> bool {
        self.lives_in(ground, path) || self.kept.iter().any(|copy| copy.starts_with(path))
    }
}

/// Whether a session that does not live is a twin whose copy stays. What cannot be known makes it stay.
fn copy_stays(journal: &Journal, id: &SessionId) -> bool {
    let facts = match journal.session(id) {
        Ok(Some(facts)) => facts,
        Ok(None) => return false,
        Err(_) => return true,
    };
    let Some(original) = original_of(&facts) else { return false };
    let made_at_ms = facts.created.created_at_ms;
    facts.ended.is_none_or(|end| is_kept_after(journal, end.reason, original, made_at_ms))
}

/// Whether a twin that was made at that time and ends for that reason leaves its copy of the workspace: it was lost,
/// and neither it nor a session that it descends from was closed.
pub(crate) fn is_kept_after(
    journal: &Journal,
    reason: EndReason,
    original: SessionId,
    mut made_at_ms: u64,
) -> bool {
    if is_given_up(reason) {
        return false;
    }
    let mut next = Some(original);
    for _ in 0..GENERATIONS_MAX {
        let Some(id) = next else { return true };
        // Of one that was closed and removed since, no twin was left.
        let Ok(Some(facts)) = journal.session(&id) else { return true };
        if facts.created.created_at_ms > made_at_ms {
            // A later session that has the same id.
            return true;
        }
        if facts.ended.as_ref().is_some_and(|ended| is_given_up(ended.reason)) {
            return false;
        }
        made_at_ms = facts.created.created_at_ms;
        next = original_of(&facts);
    }
    true
}

/// Whether somebody ended the session, or nobody wanted it any more.
fn is_given_up(reason: EndReason) -> bool {
    matches!(reason, EndReason::Closed | EndReason::Idle)
}

/// The place of the twin whose copy is at that path, if it is a copy.
pub(super) fn place_of_copy(ground: &DiskGround<'_>, copy: &Path) -> Option<PathBuf> {
    session_dirs::root_of(ground.config, copy)?;
    let place = copy.parent()?;
    let room = place.parent()?;
    (family::workspace(room) == copy).then(|| place.to_owned())
}

/// A directory that an earlier release made for a pooled worker, and the room in it.
pub(super) fn ready_made(ground: &DiskGround<'_>, path: &Path) -> Option<(PathBuf, PathBuf)> {
    let (root, _) = session_dirs::root_of(ground.config, path)?;
    let is_ready_made = root.starts_with(ground.config.places_dir());
    is_ready_made.then(|| (root.clone(), room_in(&root)))
}

/// The room for twins in one of the directories that an earlier release made for pooled workers.
pub(super) fn room_in(directory: &Path) -> PathBuf {
    directory.join("room")
}

/// Names in one of the node's directories. One that is not there has none.
pub(super) fn names(ground: &DiskGround<'_>, directory: &Path) -> Vec<OsString> {
    let state = session_dirs::state(ground.config);
    let names = match directory == ground.config.state_dir {
        true => state.and_then(|state| state.names()),
        false => session_dirs::inside(ground.config, directory)
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
    let Ok(state) = session_dirs::state(ground.config) else { return 0 };
    let linked = session_dirs::inside(ground.config, &own).and_then(|own| state.read_link(own));
    let path = linked.unwrap_or(own);
    let measured =
        session_dirs::inside(ground.config, &path).and_then(|path| state.measure_tree(path, meter));
    measured.map_or(0, |measured| measured.bytes)
}

//! Which directories belong to which session, and which of them a live session needs. Reads names and
//! symlinks that only the node writes; never reads what a session wrote.
//!
//! A twin reads modules, and directories that its copy leaves out, in the workspace of the session that
//! it was forked from. So a workspace is needed while a descendant of its session is live. Rooms are
//! nested (`windlass_protocol::family`), so the paths show which session descends from which.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use windlass_beneath::TreeMeter;
use windlass_journal::Journal;
use windlass_protocol::event::EndReason;
use windlass_protocol::{SessionId, family};

use super::DiskScope;
use crate::session::spec::original_of;
use crate::session_dirs;

/// Maximum number of generations of originals that are looked up for one twin. Where the kernel isolates
/// twins, a family has at most 16, because each fork adds a Landlock layer.
const GENERATIONS_MAX: usize = 1000;

/// The facts that a removal is based on, at one moment.
#[derive(Debug)]
pub(super) struct DiskSnapshot {
    /// Symlinks in the directory of workspaces: the session, and the target.
    pub links: Vec<(SessionId, PathBuf)>,
    /// Family directories, by the session id in their name.
    families: HashMap<SessionId, Vec<PathBuf>>,
    /// Directories of sessions that are live or are being created, by family directory.
    living: HashMap<PathBuf, Vec<PathBuf>>,
    /// Copies of lost twins. They stay as long as the journals of those twins.
    kept: Vec<PathBuf>,
}

impl DiskSnapshot {
    /// Returns `None` if the symlinks to workspaces cannot be read. The caller then removes nothing, because
    /// any directory may be in use. `due` are ended sessions that are about to be removed.
    pub fn take(scope: &DiskScope<'_>, due: &[SessionId]) -> Option<Self> {
        let config = scope.config;
        // Rooms are read before links: a twin that goes live in between has its link already. A family
        // without a live session stays so, because only a live session can be forked.
        let rooms = scope.claims.rooms();
        let links = session_dirs::links(config).ok()?;
        let known = links.iter().filter(|(id, _)| scope.claims.knows(id));
        let mut living: HashMap<PathBuf, Vec<PathBuf>> = HashMap::new();
        for path in rooms.into_iter().chain(known.map(|(_, path)| path.clone())) {
            if let Some((root, _)) = session_dirs::root_of(config, &path) {
                living.entry(root).or_default().push(path);
            }
        }
        let mut families: HashMap<SessionId, Vec<PathBuf>> = HashMap::new();
        for name in names(scope, &config.families_dir()) {
            let directory = config.families_dir().join(name);
            if let Some((_, Some(id))) = session_dirs::root_of(config, &directory) {
                families.entry(id).or_default().push(directory);
            }
        }
        let is_kept = |id: &SessionId| {
            !scope.claims.knows(id) && !due.contains(id) && copy_stays(scope.journal, id)
        };
        let kept = links.iter().filter(|(id, _)| is_kept(id)).map(|(_, path)| path.clone());
        let kept = kept.collect();
        Some(Self { links, families, living, kept })
    }

    /// Family directories that are named after a session.
    pub fn families_of(&self, id: &SessionId) -> &[PathBuf] {
        self.families.get(id).map_or(&[], Vec::as_slice)
    }

    /// All family directories.
    pub fn families(&self) -> impl Iterator<Item = &PathBuf> {
        self.families.values().flatten()
    }

    /// Whether a live session is at a path of a family, or beneath it.
    pub fn lives_in(&self, scope: &DiskScope<'_>, path: &Path) -> bool {
        let Some((root, _)) = session_dirs::root_of(scope.config, path) else { return true };
        let living = self.living.get(&root);
        living.is_some_and(|living| living.iter().any(|one| one.starts_with(path)))
    }

    /// Whether a live session, or the kept copy of a lost twin, is at a path of a family or beneath it.
    pub fn needs(&self, scope: &DiskScope<'_>, path: &Path) -> bool {
        self.lives_in(scope, path) || self.kept.iter().any(|copy| copy.starts_with(path))
    }
}

/// Whether a session that is not live is a twin whose copy stays. If the journal cannot tell, it stays.
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

/// Whether the copy of a twin stays after the twin ended for this reason. It stays if the twin was lost,
/// and neither the twin nor one of its ancestors was closed. `made_at_ms` is when the twin was made.
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
        // An ancestor without a journal was not closed: closing it would have removed this copy too.
        let Ok(Some(facts)) = journal.session(&id) else { return true };
        if facts.created.created_at_ms > made_at_ms {
            // A later session has reused the id.
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

/// Whether the session was closed, by a client or by its idle timeout.
fn is_given_up(reason: EndReason) -> bool {
    matches!(reason, EndReason::Closed | EndReason::Idle)
}

/// The twin directory that holds the copy at this path, if the path is a copy.
pub(super) fn twin_dir_of_copy(scope: &DiskScope<'_>, copy: &Path) -> Option<PathBuf> {
    session_dirs::root_of(scope.config, copy)?;
    let twin_dir = copy.parent()?;
    let room = twin_dir.parent()?;
    (family::workspace(room) == copy).then(|| twin_dir.to_owned())
}

/// The directory that an earlier release made for a pooled worker, and the room in it, if the path is in
/// such a directory.
pub(super) fn ready_made(scope: &DiskScope<'_>, path: &Path) -> Option<(PathBuf, PathBuf)> {
    let (root, _) = session_dirs::root_of(scope.config, path)?;
    let is_ready_made = root.starts_with(scope.config.legacy_pool_dir());
    is_ready_made.then(|| (root.clone(), room_in(&root)))
}

/// The room in a directory that an earlier release made for a pooled worker.
pub(super) fn room_in(directory: &Path) -> PathBuf {
    directory.join("room")
}

/// The names in one of the node's directories; empty if the directory does not exist.
pub(super) fn names(scope: &DiskScope<'_>, directory: &Path) -> Vec<OsString> {
    let state = session_dirs::state(scope.config);
    let names = match directory == scope.config.state_dir {
        true => state.and_then(|state| state.names()),
        false => session_dirs::inside(scope.config, directory)
            .and_then(|below| state?.directory(below)?.names()),
    };
    names.unwrap_or_default()
}

/// The size of a session's workspace. A workspace that the client provides counts as 0.
pub(super) fn workspace_bytes(scope: &DiskScope<'_>, id: &SessionId, meter: &mut TreeMeter) -> u64 {
    let own = scope.config.workspace_of(id);
    let Ok(state) = session_dirs::state(scope.config) else { return 0 };
    let linked = session_dirs::inside(scope.config, &own).and_then(|own| state.read_link(own));
    let path = linked.unwrap_or(own);
    let measured =
        session_dirs::inside(scope.config, &path).and_then(|path| state.measure_tree(path, meter));
    measured.map_or(0, |measured| measured.bytes)
}

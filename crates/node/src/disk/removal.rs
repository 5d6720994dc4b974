//! One removal, or the look that says what it would be. Decides by [`Picture`]; removes by descriptor
//! beneath the state directory. While something of a session goes, nobody can make a session of its id.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use windlass_beneath::{LinkedFiles, TreeMeter, Whole};
use windlass_journal::RemoveError;
use windlass_protocol::SessionId;
use windlass_protocol::disk::{DiskKind, PRUNED_NAMED_MAX, Pruned, PrunedItem};

use super::needed::{Picture, names, place_of_copy, ready_made};
use super::{DiskGround, ENTRIES_MAX};
use crate::session_dirs;

/// Failures that one answer names.
const FAILED_MAX: usize = 100;

/// Whether something goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PruneMode {
    Remove,
    /// Only measured.
    Look,
}

/// Of which families something is removed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Families<'a> {
    All,
    /// Of the one whose directory this is.
    In(&'a Path),
}

impl Families<'_> {
    fn include(self, path: &Path) -> bool {
        match self {
            Self::All => true,
            Self::In(root) => path.starts_with(root),
        }
    }
}

/// What an answer calls something that was removed.
#[derive(Debug, Clone, Copy)]
enum ItemName<'a> {
    After(&'a SessionId),
    ByPath,
}

/// What was removed so far.
#[derive(Debug)]
pub(super) struct Removal {
    act: PruneMode,
    meter: TreeMeter,
    bytes: u64,
    removed: Vec<PrunedItem>,
    more: u64,
    failed: Vec<String>,
    whole: Whole,
    /// What is gone, or would be: nothing counts twice.
    gone: HashSet<PathBuf>,
}

impl Removal {
    pub fn new(act: PruneMode, time: Duration) -> Self {
        Self {
            act,
            meter: TreeMeter::new(Instant::now() + time, ENTRIES_MAX, LinkedFiles::AtLastName),
            bytes: 0,
            removed: Vec::new(),
            more: 0,
            failed: Vec::new(),
            whole: Whole::Yes,
            gone: HashSet::new(),
        }
    }

    /// Removes what forks made and no living session needs: of all families, or of one.
    pub fn families(&mut self, ground: &DiskGround<'_>, picture: &Picture, which: Families<'_>) {
        for root in family_roots(ground, picture).into_iter().filter(|root| which.include(root)) {
            self.family(ground, picture, &root);
        }
        let mut copies: Vec<_> =
            picture.links.iter().filter(|(_, copy)| which.include(copy)).collect();
        // One that holds others comes before them.
        copies.sort_by_key(|(_, copy)| copy.components().count());
        for (id, copy) in copies {
            if let Some(place) = place_of_copy(ground, copy) {
                self.copy(ground, picture, id, &place);
            }
        }
    }

    /// Removes the directory of a family none of whose sessions is live or was lost.
    fn family(&mut self, ground: &DiskGround<'_>, picture: &Picture, root: &Path) {
        // The directory's name is the first session's id; ready-made ones are known by their links.
        let first = session_dirs::root_of(ground.config, root).and_then(|(_, first)| first);
        if picture.needs(ground, root) || first.as_ref().is_some_and(|id| !ground.claims.claim(id))
        {
            return;
        }
        self.take(ground, DiskKind::ForkCopies, root, ItemName::ByPath);
        if let Some(first) = first {
            ground.claims.release(&first);
        }
    }

    /// Removes the copied workspace of a twin that was closed, unless a twin forked from it is live or was lost.
    fn copy(&mut self, ground: &DiskGround<'_>, picture: &Picture, id: &SessionId, place: &Path) {
        if ground.claims.knows(id) || picture.needs(ground, place) || !ground.claims.claim(id) {
            return;
        }
        self.take(ground, DiskKind::ForkCopies, place, ItemName::After(id));
        self.take(
            ground,
            DiskKind::ForkCopies,
            &ground.config.workspace_of(id),
            ItemName::After(id),
        );
        ground.claims.release(id);
    }

    /// An ended session: its journal, and its workspace if the node made it and no twin needs it.
    pub fn session(&mut self, ground: &DiskGround<'_>, picture: &Picture, id: &SessionId) {
        if !ground.claims.claim(id) {
            return;
        }
        // The journal last: without it nobody would know of the rest.
        self.workspace(ground, picture, id);
        self.journal(ground, id);
        ground.claims.release(id);
    }

    fn workspace(&mut self, ground: &DiskGround<'_>, picture: &Picture, id: &SessionId) {
        let own = ground.config.workspace_of(id);
        let kind = match ground.journal.has_directory(id) {
            true => DiskKind::WorkspacesEnded,
            false => DiskKind::Leftovers,
        };
        let linked = picture.links.iter().find(|(of, _)| of == id).map(|(_, path)| path);
        if picture.families_of(id).iter().any(|root| picture.lives_in(ground, root)) {
            return;
        }
        if let Some(linked) = linked {
            let directory = match place_of_copy(ground, linked) {
                Some(place) => place,
                None => match ready_made(ground, linked) {
                    Some((directory, _)) => directory,
                    None => return,
                },
            };
            if picture.needs(ground, &directory) {
                return;
            }
            self.take(ground, kind, &directory, ItemName::After(id));
        }
        self.take(ground, kind, &own, ItemName::After(id));
    }

    fn journal(&mut self, ground: &DiskGround<'_>, id: &SessionId) {
        if !ground.journal.has_directory(id) || !ground.claims.has_all() {
            return;
        }
        let path = ground.config.journal_of(id);
        match self.act {
            PruneMode::Look => {
                self.take(ground, DiskKind::JournalsEnded, &path, ItemName::After(id))
            }
            PruneMode::Remove => match ground.journal.remove(id) {
                Ok(bytes) => self.note(DiskKind::JournalsEnded, id.to_string(), bytes),
                Err(RemoveError::InUse(_)) => {}
                Err(error) => self.failed(format!("the journal of session {id}: {error}")),
            },
        }
    }

    /// Directories of sessions that nobody knows, and what was half made.
    pub fn leftovers(&mut self, ground: &DiskGround<'_>, picture: &Picture) {
        let config = ground.config;
        // Without knowing which sessions there are, none is taken to be unknown.
        let Ok(known) = ground.journal.directories() else { return };
        for id in ids_in(ground, &config.workspaces_dir()) {
            if known.contains(&id) || ground.claims.knows(&id) {
                continue;
            }
            if !ground.claims.claim(&id) {
                continue;
            }
            // It may have come to be, and ended, since the list was made.
            if !ground.journal.has_directory(&id) {
                self.workspace(ground, picture, &id);
            }
            ground.claims.release(&id);
        }
        for id in ids_in(ground, &config.staging_dir()) {
            self.claimed(ground, &id, &config.staging_dir().join(id.as_str()));
        }
        for id in ids_in(ground, &config.tmp_dir()) {
            if !ground.claims.has_family(&id) {
                self.claimed(ground, &id, &config.tmp_of(&id));
            }
        }
        self.ready_made(ground, picture);
        self.programs(ground);
    }

    /// One leftover that is named after a session.
    fn claimed(&mut self, ground: &DiskGround<'_>, id: &SessionId, path: &Path) {
        if ground.claims.claim(id) {
            self.take(ground, DiskKind::Leftovers, path, ItemName::ByPath);
            ground.claims.release(id);
        }
    }

    /// Directories that an earlier release made for pooled workers, and that no session has.
    fn ready_made(&mut self, ground: &DiskGround<'_>, picture: &Picture) {
        let all = ground.config.places_dir();
        let roots =
            picture.links.iter().filter_map(|(_, path)| session_dirs::root_of(ground.config, path));
        let taken: HashSet<PathBuf> = roots.map(|(root, _)| root).collect();
        for name in names(ground, &all) {
            let directory = all.join(name);
            if !taken.contains(&directory) && !picture.lives_in(ground, &directory) {
                self.take(ground, DiskKind::Leftovers, &directory, ItemName::ByPath);
            }
        }
    }

    /// Worker programs of other releases, once no session of an earlier node lives.
    fn programs(&mut self, ground: &DiskGround<'_>) {
        let all = ground.config.programs_dir();
        let paths = names(ground, &all).into_iter().map(|name| all.join(name));
        let old: Vec<_> = paths.filter(|path| !ground.programs.contains(path)).collect();
        if !old.is_empty() && ground.claims.are_all_new() {
            old.iter()
                .for_each(|path| self.take(ground, DiskKind::Leftovers, path, ItemName::ByPath));
        }
    }

    /// Removes or measures one thing. The item is named after the session, or after its path.
    fn take(&mut self, ground: &DiskGround<'_>, kind: DiskKind, path: &Path, named: ItemName<'_>) {
        let is_gone = path.ancestors().any(|above| self.gone.contains(above));
        if is_gone || !ground.claims.has_all() {
            return;
        }
        let name = match named {
            ItemName::After(id) => id.to_string(),
            ItemName::ByPath => below(ground, path),
        };
        let state = session_dirs::state(ground.config);
        let inside = session_dirs::inside(ground.config, path);
        let taken = state.and_then(|state| match self.act {
            PruneMode::Remove => {
                state.remove_tree(inside?).map(|freed| (freed.bytes, freed.entries))
            }
            PruneMode::Look => {
                let found = state.measure_tree(inside?, &mut self.meter)?;
                if found.whole == Whole::No {
                    self.whole = Whole::No;
                }
                Ok((found.bytes, found.entries))
            }
        });
        match taken {
            Ok((_, 0)) => {}
            Ok((bytes, _)) => {
                self.gone.insert(path.to_owned());
                self.note(kind, name, bytes);
            }
            Err(error) => self.failed(format!("{}: {error}", path.display())),
        }
    }

    fn note(&mut self, kind: DiskKind, name: String, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        // What goes with a session in several steps is one thing.
        if let Some(last) =
            self.removed.last_mut().filter(|last| last.kind == kind && last.name == name)
        {
            last.bytes = last.bytes.saturating_add(bytes);
        } else if self.removed.len() < PRUNED_NAMED_MAX {
            self.removed.push(PrunedItem { kind, name, bytes });
        } else {
            self.more += 1;
        }
    }

    fn failed(&mut self, what: String) {
        if self.failed.len() < FAILED_MAX {
            self.failed.push(what);
        }
    }

    pub fn answer(self) -> Pruned {
        Pruned {
            dry_run: self.act == PruneMode::Look,
            bytes: self.bytes,
            removed: self.removed,
            more: self.more,
            failed: self.failed,
            complete: self.whole == Whole::Yes,
        }
    }

    pub fn log(self) {
        if !self.removed.is_empty() {
            let count = self.removed.len() as u64 + self.more;
            tracing::info!(count, bytes = self.bytes, "removed what is kept no longer");
        }
        for what in self.failed {
            tracing::warn!(what, "cannot be removed");
        }
    }
}

/// Directories in which families have their rooms.
fn family_roots(ground: &DiskGround<'_>, picture: &Picture) -> Vec<PathBuf> {
    // A ready-made directory holds the workspace as well, which follows the journal. The session that
    // has it is known by its link; without one it is kept ready, or is a leftover.
    let linked = picture
        .links
        .iter()
        .filter(|(id, path)| !ground.claims.knows(id) && place_of_copy(ground, path).is_none());
    let rooms = linked.filter_map(|(_, path)| ready_made(ground, path).map(|(_, room)| room));
    picture.families().cloned().chain(rooms).collect()
}

fn ids_in(ground: &DiskGround<'_>, directory: &Path) -> Vec<SessionId> {
    let names = names(ground, directory).into_iter();
    names.filter_map(|name| SessionId::parse(name.into_string().ok()?).ok()).collect()
}

fn below(ground: &DiskGround<'_>, path: &Path) -> String {
    path.strip_prefix(&ground.config.state_dir).unwrap_or(path).display().to_string()
}

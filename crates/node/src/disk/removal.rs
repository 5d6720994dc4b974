//! One removal, or its dry run. Decides by [`DiskSnapshot`]; removes by descriptor beneath the state
//! directory. While directories of a session are removed, no session of the same id can be created.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use windlass_beneath::{LinkedFiles, TreeMeter, Whole};
use windlass_journal::RemoveError;
use windlass_protocol::SessionId;
use windlass_protocol::disk::{DiskKind, PRUNED_NAMED_MAX, Pruned, PrunedItem};

use super::needed::{DiskSnapshot, names, ready_made, twin_dir_of_copy};
use super::{DiskScope, ENTRIES_MAX};
use crate::packages::{PackageEnvironments, UnusedFor};
use crate::session_dirs;

/// Maximum number of failures in one answer.
const FAILED_MAX: usize = 100;

/// Whether files are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PruneMode {
    Remove,
    /// Only measure what would be removed.
    DryRun,
}

/// Which families a removal covers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Families<'a> {
    All,
    /// The family of this directory.
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

/// How an answer names a removed item.
#[derive(Debug, Clone, Copy)]
enum ItemName<'a> {
    After(&'a SessionId),
    ByPath,
    /// By the path that it had before it was moved away.
    AtFirst(&'a Path),
}

/// A removal in progress: what was removed so far.
#[derive(Debug)]
pub(super) struct Removal {
    mode: PruneMode,
    meter: TreeMeter,
    bytes: u64,
    removed: Vec<PrunedItem>,
    more: u64,
    failed: Vec<String>,
    whole: Whole,
    /// Removed paths (or, in a dry run, measured paths), so that nothing counts twice.
    gone: HashSet<PathBuf>,
}

impl Removal {
    pub fn new(mode: PruneMode, time: Duration) -> Self {
        Self {
            mode,
            meter: TreeMeter::new(Instant::now() + time, ENTRIES_MAX, LinkedFiles::AtLastName),
            bytes: 0,
            removed: Vec::new(),
            more: 0,
            failed: Vec::new(),
            whole: Whole::Yes,
            gone: HashSet::new(),
        }
    }

    /// Removes the directories of forks that no live session needs.
    pub fn families(
        &mut self,
        scope: &DiskScope<'_>,
        snapshot: &DiskSnapshot,
        which: Families<'_>,
    ) {
        for root in family_roots(scope, snapshot).into_iter().filter(|root| which.include(root)) {
            self.family(scope, snapshot, &root);
        }
        let mut copies: Vec<_> =
            snapshot.links.iter().filter(|(_, copy)| which.include(copy)).collect();
        // Outer copies come before the copies inside them.
        copies.sort_by_key(|(_, copy)| copy.components().count());
        for (id, copy) in copies {
            if let Some(twin_dir) = twin_dir_of_copy(scope, copy) {
                self.copy(scope, snapshot, id, &twin_dir);
            }
        }
    }

    /// Removes a family directory, unless a session of the family is live or was lost.
    fn family(&mut self, scope: &DiskScope<'_>, snapshot: &DiskSnapshot, root: &Path) {
        // The directory is named after the first session. Ready-made directories are known by their links.
        let first = session_dirs::root_of(scope.config, root).and_then(|(_, first)| first);
        if snapshot.needs(scope, root) || first.as_ref().is_some_and(|id| !scope.claims.claim(id)) {
            return;
        }
        self.take(scope, DiskKind::ForkCopies, root, ItemName::ByPath);
        if let Some(first) = first {
            scope.claims.release(&first);
        }
    }

    /// Removes the copied workspace of a closed twin, unless a twin that was forked from it is live or was
    /// lost.
    fn copy(
        &mut self,
        scope: &DiskScope<'_>,
        snapshot: &DiskSnapshot,
        id: &SessionId,
        twin_dir: &Path,
    ) {
        if scope.claims.knows(id) || snapshot.needs(scope, twin_dir) || !scope.claims.claim(id) {
            return;
        }
        self.take(scope, DiskKind::ForkCopies, twin_dir, ItemName::After(id));
        self.take(scope, DiskKind::ForkCopies, &scope.config.workspace_of(id), ItemName::After(id));
        scope.claims.release(id);
    }

    /// Removes an ended session: its journal, and its workspace if the node made it and no twin needs it.
    pub fn session(&mut self, scope: &DiskScope<'_>, snapshot: &DiskSnapshot, id: &SessionId) {
        if !scope.claims.claim(id) {
            return;
        }
        // The journal last, because only the journal tells the next round about the rest.
        self.workspace(scope, snapshot, id);
        self.journal(scope, id);
        scope.claims.release(id);
    }

    fn workspace(&mut self, scope: &DiskScope<'_>, snapshot: &DiskSnapshot, id: &SessionId) {
        let own = scope.config.workspace_of(id);
        let kind = match scope.journal.has_directory(id) {
            true => DiskKind::WorkspacesEnded,
            false => DiskKind::Leftovers,
        };
        let linked = snapshot.links.iter().find(|(of, _)| of == id).map(|(_, path)| path);
        if snapshot.families_of(id).iter().any(|root| snapshot.lives_in(scope, root)) {
            return;
        }
        if let Some(linked) = linked {
            let directory = match twin_dir_of_copy(scope, linked) {
                Some(twin_dir) => twin_dir,
                None => match ready_made(scope, linked) {
                    Some((directory, _)) => directory,
                    None => return,
                },
            };
            if snapshot.needs(scope, &directory) {
                return;
            }
            self.take(scope, kind, &directory, ItemName::After(id));
        }
        self.take(scope, kind, &own, ItemName::After(id));
    }

    fn journal(&mut self, scope: &DiskScope<'_>, id: &SessionId) {
        if !scope.journal.has_directory(id) || !scope.claims.has_all() {
            return;
        }
        let path = scope.config.journal_of(id);
        match self.mode {
            PruneMode::DryRun => {
                self.take(scope, DiskKind::JournalsEnded, &path, ItemName::After(id))
            }
            PruneMode::Remove => match scope.journal.remove(id) {
                Ok(bytes) => self.note(DiskKind::JournalsEnded, id.to_string(), bytes),
                Err(RemoveError::InUse(_)) => {}
                Err(error) => self.failed(format!("the journal of session {id}: {error}")),
            },
        }
    }

    /// Removes the package environments without a name that no live session uses and that were last used this long ago.
    /// Removes none if this node does not have all live sessions.
    pub fn packages(
        &mut self,
        scope: &DiskScope<'_>,
        packages: &PackageEnvironments,
        unused: UnusedFor,
    ) {
        let in_use = || scope.claims.environments_in_use();
        for name in packages.unused(&in_use, unused) {
            let path = scope.config.packages_dir().join(&name);
            match self.mode {
                PruneMode::DryRun => self.take(scope, DiskKind::Packages, &path, ItemName::ByPath),
                PruneMode::Remove => match packages.move_unused_away(&name, &in_use) {
                    Ok(None) => {}
                    Ok(Some(moved)) => {
                        self.take(scope, DiskKind::Packages, &moved, ItemName::AtFirst(&path));
                    }
                    Err(failure) => self.failed(failure.message),
                },
            }
        }
    }

    /// Removes directories of unknown sessions, and incomplete directories.
    pub fn leftovers(&mut self, scope: &DiskScope<'_>, snapshot: &DiskSnapshot) {
        let config = scope.config;
        // Without the list of sessions, no session counts as unknown.
        let Ok(known) = scope.journal.directories() else { return };
        for id in ids_in(scope, &config.workspaces_dir()) {
            if known.contains(&id) || scope.claims.knows(&id) {
                continue;
            }
            if !scope.claims.claim(&id) {
                continue;
            }
            // The session may have been created and ended since the list was made.
            if !scope.journal.has_directory(&id) {
                self.workspace(scope, snapshot, &id);
            }
            scope.claims.release(&id);
        }
        for id in ids_in(scope, &config.staging_dir()) {
            self.claimed(scope, &id, &config.staging_dir().join(id.as_str()));
        }
        for id in ids_in(scope, &config.tmp_dir()) {
            if !scope.claims.has_family(&id) {
                self.claimed(scope, &id, &config.tmp_of(&id));
            }
        }
        self.ready_made(scope, snapshot);
        self.programs(scope);
    }

    /// Removes a leftover that is named after a session.
    fn claimed(&mut self, scope: &DiskScope<'_>, id: &SessionId, path: &Path) {
        if scope.claims.claim(id) {
            self.take(scope, DiskKind::Leftovers, path, ItemName::ByPath);
            scope.claims.release(id);
        }
    }

    /// Removes directories that an earlier release made for pooled workers and that no session uses.
    fn ready_made(&mut self, scope: &DiskScope<'_>, snapshot: &DiskSnapshot) {
        let all = scope.config.legacy_pool_dir();
        let roots =
            snapshot.links.iter().filter_map(|(_, path)| session_dirs::root_of(scope.config, path));
        let taken: HashSet<PathBuf> = roots.map(|(root, _)| root).collect();
        for name in names(scope, &all) {
            let directory = all.join(name);
            if !taken.contains(&directory) && !snapshot.lives_in(scope, &directory) {
                self.take(scope, DiskKind::Leftovers, &directory, ItemName::ByPath);
            }
        }
    }

    /// Removes worker programs of other releases when no session of an earlier node is live.
    fn programs(&mut self, scope: &DiskScope<'_>) {
        let all = scope.config.programs_dir();
        let paths = names(scope, &all).into_iter().map(|name| all.join(name));
        let old: Vec<_> = paths.filter(|path| !scope.programs.contains(path)).collect();
        if !old.is_empty() && scope.claims.are_all_new() {
            old.iter()
                .for_each(|path| self.take(scope, DiskKind::Leftovers, path, ItemName::ByPath));
        }
    }

    /// Removes one path, or only measures it in a dry run.
    fn take(&mut self, scope: &DiskScope<'_>, kind: DiskKind, path: &Path, named: ItemName<'_>) {
        let is_gone = path.ancestors().any(|above| self.gone.contains(above));
        if is_gone || !scope.claims.has_all() {
            return;
        }
        let name = match named {
            ItemName::After(id) => id.to_string(),
            ItemName::ByPath => below(scope, path),
            ItemName::AtFirst(path) => below(scope, path),
        };
        let state = session_dirs::state(scope.config);
        let inside = session_dirs::inside(scope.config, path);
        let taken = state.and_then(|state| match self.mode {
            PruneMode::Remove => {
                state.remove_tree(inside?).map(|freed| (freed.bytes, freed.entries))
            }
            PruneMode::DryRun => {
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
        // Several steps for one session count as one item.
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
            dry_run: self.mode == PruneMode::DryRun,
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
            tracing::info!(
                count,
                bytes = self.bytes,
                "removed old sessions, package environments and leftovers"
            );
        }
        for what in self.failed {
            tracing::warn!(what, "cannot remove a directory");
        }
    }
}

/// The directories that hold the rooms of families.
fn family_roots(scope: &DiskScope<'_>, snapshot: &DiskSnapshot) -> Vec<PathBuf> {
    // A ready-made directory also holds the workspace, which stays as long as the journal. Its session is
    // known by a link. A ready-made directory without a link is a leftover.
    let linked = snapshot
        .links
        .iter()
        .filter(|(id, path)| !scope.claims.knows(id) && twin_dir_of_copy(scope, path).is_none());
    let rooms = linked.filter_map(|(_, path)| ready_made(scope, path).map(|(_, room)| room));
    snapshot.families().cloned().chain(rooms).collect()
}

fn ids_in(scope: &DiskScope<'_>, directory: &Path) -> Vec<SessionId> {
    let names = names(scope, directory).into_iter();
    names.filter_map(|name| SessionId::parse(name.into_string().ok()?).ok()).collect()
}

fn below(scope: &DiskScope<'_>, path: &Path) -> String {
    path.strip_prefix(&scope.config.state_dir).unwrap_or(path).display().to_string()
}

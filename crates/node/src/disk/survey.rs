//! Measures the disk usage by kind. Reads everything below the state directory once and changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use windlass_beneath::{LinkedFiles, TreeMeter, TreeSize, Whole};
use windlass_protocol::SessionId;
use windlass_protocol::disk::{DiskKind, DiskShare, DiskUse};

use super::needed::{DiskSnapshot, names, ready_made, room_in, twin_dir_of_copy};
use super::{DiskScope, ENTRIES_MAX, LOOK_TIME};
use crate::session_dirs;

/// The prefix of the names of prepared journals and of half-removed journals.
const HIDDEN: &str = ".";

pub(super) fn survey(scope: &DiskScope<'_>) -> DiskUse {
    let config = scope.config;
    let meter = TreeMeter::new(Instant::now() + LOOK_TIME, ENTRIES_MAX, LinkedFiles::AtFirstName);
    let mut survey = Survey { scope, meter, shares: BTreeMap::new() };
    let snapshot = DiskSnapshot::take(scope, &[]);
    let known = scope.journal.directories();
    if let (Some(snapshot), Ok(known)) = (&snapshot, &known) {
        survey.journals();
        survey.workspaces(snapshot, known);
        survey.families(snapshot);
        survey.ready_made(snapshot, known);
    }
    for name in names(scope, &config.state_dir) {
        survey.top(&config.state_dir.join(name), snapshot.is_some() && known.is_ok());
    }
    let shares = survey.shares;
    let share = |kind| shares.get(&kind).copied().unwrap_or_default();
    let kinds = DiskKind::ALL.map(|kind| {
        let TreeSize { bytes, entries, .. } = share(kind);
        DiskShare { kind, bytes, entries }
    });
    DiskUse {
        state_dir: config.state_dir.display().to_string(),
        bytes: kinds.iter().map(|share| share.bytes).sum(),
        complete: DiskKind::ALL.iter().all(|kind| share(*kind).whole == Whole::Yes),
        kinds: kinds.into(),
        retain_age_s: config.retention.max_age.as_secs(),
        retain_bytes: config.retention.max_total_bytes,
    }
}

struct Survey<'a> {
    scope: &'a DiskScope<'a>,
    meter: TreeMeter,
    shares: BTreeMap<DiskKind, TreeSize>,
}

impl Survey<'_> {
    /// Adds the size of a path and everything beneath it.
    fn add(&mut self, kind: DiskKind, path: &Path) {
        let config = self.scope.config;
        let measured = session_dirs::state(config).and_then(|state| {
            state.measure_tree(session_dirs::inside(config, path)?, &mut self.meter)
        });
        let unread = TreeSize { whole: Whole::No, ..TreeSize::default() };
        *self.shares.entry(kind).or_default() += measured.unwrap_or(unread);
    }

    /// Adds an entry of the state directory. Directories that were measured by kind are added without their
    /// content; `measured_by_kind` says whether they were.
    fn top(&mut self, path: &Path, measured_by_kind: bool) {
        let config = self.scope.config;
        let sessions = config.journals_dir();
        let by_kind =
            [sessions, config.workspaces_dir(), config.families_dir(), config.legacy_pool_dir()];
        if by_kind.iter().any(|one| one == path) {
            if measured_by_kind {
                self.only(path);
            } else {
                self.add(DiskKind::Other, path);
            }
            return;
        }
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let kind = if path == config.programs_dir() {
            DiskKind::Environments
        } else if path == config.packages_dir() {
            DiskKind::Packages
        } else if path == config.staging_dir() {
            DiskKind::Leftovers
        } else if path == config.tmp_dir() {
            DiskKind::Temporary
        } else if name.starts_with("index") {
            DiskKind::Index
        } else if name.contains(".log") {
            DiskKind::Logs
        } else {
            DiskKind::Other
        };
        self.add(kind, path);
    }

    /// Adds a directory itself, without its content.
    fn only(&mut self, path: &Path) {
        let config = self.scope.config;
        let found = session_dirs::inside(config, path)
            .and_then(|path| session_dirs::state(config)?.look(path));
        if let Ok(Some(stat)) = found {
            let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            let itself = TreeSize { bytes, entries: 1, whole: Whole::Yes };
            *self.shares.entry(DiskKind::Other).or_default() += itself;
        }
    }

    fn journals(&mut self) {
        let all = self.scope.config.journals_dir();
        for name in names(self.scope, &all) {
            let text = name.to_string_lossy().into_owned();
            let kind = match SessionId::parse(text.clone()) {
                Ok(id) if self.scope.claims.knows(&id) => DiskKind::JournalsLive,
                Ok(_) => DiskKind::JournalsEnded,
                Err(_) if text.starts_with(HIDDEN) => DiskKind::Environments,
                Err(_) => DiskKind::Other,
            };
            self.add(kind, &all.join(name));
        }
    }

    fn workspaces(&mut self, snapshot: &DiskSnapshot, known: &BTreeSet<SessionId>) {
        let config = self.scope.config;
        let linked: HashMap<&SessionId, &PathBuf> =
            snapshot.links.iter().map(|(id, path)| (id, path)).collect();
        for name in names(self.scope, &config.workspaces_dir()) {
            let path = config.workspaces_dir().join(&name);
            let id = name.into_string().ok().and_then(|name| SessionId::parse(name).ok());
            let kind = match id {
                Some(id) if linked.get(&id).is_some_and(|to| self.is_copy(to)) => {
                    DiskKind::ForkCopies
                }
                Some(id) => self.kind_of(&id, known),
                None => DiskKind::Other,
            };
            self.add(kind, &path);
        }
    }

    fn is_copy(&self, path: &Path) -> bool {
        twin_dir_of_copy(self.scope, path).is_some()
    }

    fn kind_of(&self, id: &SessionId, known: &BTreeSet<SessionId>) -> DiskKind {
        if self.scope.claims.knows(id) {
            DiskKind::WorkspacesLive
        } else if known.contains(id) {
            DiskKind::WorkspacesEnded
        } else {
            DiskKind::Leftovers
        }
    }

    fn families(&mut self, snapshot: &DiskSnapshot) {
        let all = self.scope.config.families_dir();
        for name in names(self.scope, &all) {
            let path = all.join(name);
            let first =
                session_dirs::root_of(self.scope.config, &path).and_then(|(_, first)| first);
            let is_known = first.is_some_and(|id| self.scope.claims.knows(&id));
            let is_needed = is_known || snapshot.needs(self.scope, &path);
            self.add(if is_needed { DiskKind::ForkCopies } else { DiskKind::Leftovers }, &path);
        }
    }

    /// Adds the directories that an earlier release made for pooled workers.
    fn ready_made(&mut self, snapshot: &DiskSnapshot, known: &BTreeSet<SessionId>) {
        let all = self.scope.config.legacy_pool_dir();
        let mut owners: HashMap<PathBuf, &SessionId> = HashMap::new();
        for (id, path) in snapshot.links.iter().filter(|(_, path)| !self.is_copy(path)) {
            if let Some((directory, _)) = ready_made(self.scope, path) {
                owners.insert(directory, id);
            }
        }
        for name in names(self.scope, &all) {
            let directory = all.join(name);
            let Some(id) = owners.get(&directory) else {
                let kind = match snapshot.needs(self.scope, &directory) {
                    true => DiskKind::Environments,
                    false => DiskKind::Leftovers,
                };
                self.add(kind, &directory);
                continue;
            };
            let kind = self.kind_of(id, known);
            self.only(&directory);
            for inner in names(self.scope, &directory) {
                let path = directory.join(inner);
                let is_room = path == room_in(&directory);
                self.add(if is_room { DiskKind::ForkCopies } else { kind }, &path);
            }
        }
    }
}

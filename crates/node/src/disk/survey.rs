//! What is on the disk, by kind. Looks at everything below the state directory once and changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use windlass_beneath::{LinkedFiles, TreeMeter, TreeSize, Whole};
use windlass_protocol::SessionId;
use windlass_protocol::disk::{DiskKind, DiskShare, DiskUse};

use super::needed::{Picture, names, place_of_copy, ready_made, room_in};
use super::{DiskGround, ENTRIES_MAX, LOOK_TIME};
use crate::session_dirs;

/// How names of journals begin that are kept ready for sessions, or are half removed.
const HIDDEN: &str = ".";

pub(super) fn survey(ground: &DiskGround<'_>) -> DiskUse {
    let config = ground.config;
    let meter = TreeMeter::new(Instant::now() + LOOK_TIME, ENTRIES_MAX, LinkedFiles::AtFirstName);
    let mut survey = Survey { ground, meter, shares: BTreeMap::new() };
    let picture = Picture::take(ground, &[]);
    let known = ground.journal.directories();
    if let (Some(picture), Ok(known)) = (&picture, &known) {
        survey.journals();
        survey.workspaces(picture, known);
        survey.families(picture);
        survey.ready_made(picture, known);
    }
    for name in names(ground, &config.state_dir) {
        survey.top(&config.state_dir.join(name), picture.is_some() && known.is_ok());
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
        retain_age_s: config.keep_ended.as_secs(),
        retain_bytes: config.keep_bytes,
    }
}

struct Survey<'a> {
    ground: &'a DiskGround<'a>,
    meter: TreeMeter,
    shares: BTreeMap<DiskKind, TreeSize>,
}

impl Survey<'_> {
    /// Adds what is at a path, with everything beneath it.
    fn add(&mut self, kind: DiskKind, path: &Path) {
        let config = self.ground.config;
        let measured = session_dirs::state(config).and_then(|state| {
            state.measure_tree(session_dirs::inside(config, path)?, &mut self.meter)
        });
        let unread = TreeSize { whole: Whole::No, ..TreeSize::default() };
        *self.shares.entry(kind).or_default() += measured.unwrap_or(unread);
    }

    /// One entry of the state directory, but for those that were looked into.
    fn top(&mut self, path: &Path, have_others: bool) {
        let config = self.ground.config;
        let sessions = config.journals_dir();
        let looked_into =
            [sessions, config.workspaces_dir(), config.rooms_dir(), config.places_dir()];
        if looked_into.iter().any(|one| one == path) {
            if have_others {
                self.only(path);
            } else {
                self.add(DiskKind::Other, path);
            }
            return;
        }
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let kind = if path == config.programs_dir() {
            DiskKind::Environments
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

    /// The directory itself, without what is in it.
    fn only(&mut self, path: &Path) {
        let config = self.ground.config;
        let found = session_dirs::inside(config, path)
            .and_then(|path| session_dirs::state(config)?.look(path));
        if let Ok(Some(stat)) = found {
            let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            let itself = TreeSize { bytes, entries: 1, whole: Whole::Yes };
            *self.shares.entry(DiskKind::Other).or_default() += itself;
        }
    }

    fn journals(&mut self) {
        let all = self.ground.config.journals_dir();
        for name in names(self.ground, &all) {
            let text = name.to_string_lossy().into_owned();
            let kind = match SessionId::parse(text.clone()) {
                Ok(id) if self.ground.claims.knows(&id) => DiskKind::JournalsLive,
                Ok(_) => DiskKind::JournalsEnded,
                Err(_) if text.starts_with(HIDDEN) => DiskKind::Environments,
                Err(_) => DiskKind::Other,
            };
            self.add(kind, &all.join(name));
        }
    }

    fn workspaces(&mut self, picture: &Picture, known: &BTreeSet<SessionId>) {
        let config = self.ground.config;
        let linked: HashMap<&SessionId, &PathBuf> =
            picture.links.iter().map(|(id, path)| (id, path)).collect();
        for name in names(self.ground, &config.workspaces_dir()) {
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
        place_of_copy(self.ground, path).is_some()
    }

    fn kind_of(&self, id: &SessionId, known: &BTreeSet<SessionId>) -> DiskKind {
        if self.ground.claims.knows(id) {
            DiskKind::WorkspacesLive
        } else if known.contains(id) {
            DiskKind::WorkspacesEnded
        } else {
            DiskKind::Leftovers
        }
    }

    fn families(&mut self, picture: &Picture) {
        let all = self.ground.config.rooms_dir();
        for name in names(self.ground, &all) {
            let path = all.join(name);
            let first =
                session_dirs::root_of(self.ground.config, &path).and_then(|(_, first)| first);
            let is_known = first.is_some_and(|id| self.ground.claims.knows(&id));
            let is_needed = is_known || picture.needs(self.ground, &path);
            self.add(if is_needed { DiskKind::ForkCopies } else { DiskKind::Leftovers }, &path);
        }
    }

    /// Directories that an earlier release made for pooled workers.
    fn ready_made(&mut self, picture: &Picture, known: &BTreeSet<SessionId>) {
        let all = self.ground.config.places_dir();
        let mut owners: HashMap<PathBuf, &SessionId> = HashMap::new();
        for (id, path) in picture.links.iter().filter(|(_, path)| !self.is_copy(path)) {
            if let Some((directory, _)) = ready_made(self.ground, path) {
                owners.insert(directory, id);
            }
        }
        for name in names(self.ground, &all) {
            let directory = all.join(name);
            let Some(id) = owners.get(&directory) else {
                let kind = match picture.needs(self.ground, &directory) {
                    true => DiskKind::Environments,
                    false => DiskKind::Leftovers,
                };
                self.add(kind, &directory);
                continue;
            };
            let kind = self.kind_of(id, known);
            self.only(&directory);
            for inner in names(self.ground, &directory) {
                let path = directory.join(inner);
                let is_room = path == room_in(&directory);
                self.add(if is_room { DiskKind::ForkCopies } else { kind }, &path);
            }
        }
    }
}

//! What is removed and what stays, on real directories, with a fixed clock.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use windlass_journal::{JournalOptions, NewEvent, NewSession, SessionLog};
use windlass_protocol::ErrorCode;
use windlass_protocol::disk::DiskKind;
use windlass_protocol::event::{EndReason, EventKind};
use windlass_protocol::family;

use super::*;
use crate::packages::PackageEnvironments;
use crate::quotas::TenantQuota;
use crate::trust::Trust;

const DAY_MS: u64 = 86_400_000;

/// The current time of every test.
const NOW_MS: u64 = 1000 * DAY_MS;

/// The live sessions of a test.
#[derive(Default)]
struct Living {
    sessions: RefCell<Vec<(SessionId, PathBuf)>>,
    claimed: RefCell<BTreeSet<SessionId>>,
    /// The package environments that they use.
    environments: RefCell<HashSet<String>>,
}

impl SessionClaims for Living {
    fn has_all(&self) -> bool {
        !self.claimed.borrow().contains(&id("another-node"))
    }

    fn rooms(&self) -> Vec<PathBuf> {
        self.sessions.borrow().iter().map(|(_, room)| room.clone()).collect()
    }

    fn has_family(&self, first: &SessionId) -> bool {
        self.knows(first)
    }

    fn environments(&self) -> HashSet<String> {
        self.environments.borrow().clone()
    }

    fn knows(&self, id: &SessionId) -> bool {
        self.sessions.borrow().iter().any(|(one, _)| one == id)
    }

    fn claim(&self, id: &SessionId) -> bool {
        !self.knows(id) && self.claimed.borrow_mut().insert(id.clone())
    }

    fn release(&self, id: &SessionId) {
        assert!(self.claimed.borrow_mut().remove(id), "{id} was not claimed");
    }

    fn are_all_new(&self) -> bool {
        self.sessions.borrow().is_empty()
    }
}

struct Stage {
    dir: tempfile::TempDir,
    config: Config,
    journal: Journal,
    living: Living,
    state: DiskState,
}

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let config = Config::new(base.join("run"), base.join("state"), PathBuf::new());
        let journal = Journal::open(&config.state_dir, JournalOptions::default()).unwrap();
        Self { dir, config, journal, living: Living::default(), state: DiskState::default() }
    }

    fn scope(&self) -> DiskScope<'_> {
        DiskScope {
            config: &self.config,
            journal: &self.journal,
            claims: &self.living,
            programs: vec![self.config.programs_dir().join("python-now")],
        }
    }

    /// A session that ended `days` ago, with a workspace of `bytes`.
    fn ended(&self, name: &str, days: u64, bytes: usize) -> PathBuf {
        let workspace = self.config.workspace_of(&id(name));
        std::fs::create_dir_all(&workspace).unwrap();
        std::fs::write(workspace.join("file"), vec![1; bytes]).unwrap();
        self.record(name, Some(NOW_MS - days * DAY_MS));
        workspace
    }

    fn record(&self, name: &str, ended_at_ms: Option<u64>) {
        let mut log = self.begun(name, None);
        if let Some(at_ms) = ended_at_ms {
            log.append(vec![end(at_ms, EndReason::Closed)]).unwrap();
        }
    }

    /// Makes the journal of a session that was forked from `original`.
    fn begun(&self, name: &str, original: Option<&str>) -> SessionLog {
        let new = NewSession {
            id: id(name),
            created_at_ms: 1,
            workspace: String::new(),
            worker_kind: "python".to_owned(),
            spec: serde_json::json!({"forked_from": original}),
            quota_bytes: 0,
        };
        self.journal.create(new).unwrap()
    }

    /// A twin that has ended for this reason; returns its copy.
    fn ended_twin(&self, name: &str, original: &str, room: &Path, reason: EndReason) -> PathBuf {
        let (_, copy) = self.twin_of(name, Some(original), room);
        self.end_for(name, reason);
        copy
    }

    /// Ends a session and records the reason in its journal.
    fn end_for(&self, name: &str, reason: EndReason) {
        self.end(name);
        let mut log = self.journal.open_session(&id(name)).unwrap().0;
        log.append(vec![end(NOW_MS - DAY_MS, reason)]).unwrap();
    }

    /// A live session; returns its first room.
    fn live(&self, name: &str) -> PathBuf {
        let room = session_dirs::make(&self.config, &id(name)).unwrap();
        self.living.sessions.borrow_mut().push((id(name), room.clone()));
        std::fs::create_dir_all(self.config.workspace_of(&id(name))).unwrap();
        self.record(name, None);
        room
    }

    /// A live twin in a room. Returns the twin's room and its copy.
    fn twin(&self, name: &str, room: &Path) -> (PathBuf, PathBuf) {
        self.twin_of(name, None, room)
    }

    fn twin_of(&self, name: &str, original: Option<&str>, room: &Path) -> (PathBuf, PathBuf) {
        let (copy, inner) = (family::workspace(room), family::room_of_twin(room));
        for directory in [&copy, &inner, &family::next_room(room)] {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(copy.join("copied"), vec![1; 10_000]).unwrap();
        session_dirs::link(&self.config, &id(name), &copy).unwrap();
        self.living.sessions.borrow_mut().push((id(name), inner.clone()));
        self.begun(name, original);
        (inner, copy)
    }

    fn end(&self, name: &str) {
        self.living.sessions.borrow_mut().retain(|(one, _)| *one != id(name));
    }

    fn families(&self) {
        let scope = self.scope();
        let snapshot = DiskSnapshot::take(&scope, &[]).unwrap();
        let mut removal = Removal::new(PruneMode::Remove, LOOK_TIME);
        removal.families(&scope, &snapshot, Families::All);
        assert_eq!(removal.answer().failed, Vec::<String>::new());
    }

    /// Package environments that were last used long ago.
    fn packages(&self, names: &[&str]) -> PackageEnvironments {
        for name in names {
            let directory = self.config.packages_dir().join(name);
            std::fs::create_dir_all(&directory).unwrap();
            let record = serde_json::json!({
                "version": 1,
                "state": "ready",
                "packages": ["six"],
                "allow_source_builds": false,
                "python": "/usr/bin/python3",
                "created_at_ms": 1,
                "used_at_ms": 1,
            });
            std::fs::write(directory.join("environment.json"), record.to_string()).unwrap();
        }
        let trust = Trust::open(&self.config.state_dir, [], || Ok(Vec::new()));
        PackageEnvironments::load(Arc::new(self.config.clone()), Arc::new(trust))
    }

    /// Removes the package environments that were not used for a week. Returns the names of the removed ones.
    fn remove_packages(&self, packages: &PackageEnvironments) -> Vec<String> {
        let mut removal = Removal::new(PruneMode::Remove, LOOK_TIME);
        let at_least = Duration::from_millis(7 * DAY_MS);
        removal.packages(&self.scope(), packages, UnusedFor { at_least, now_ms: NOW_MS });
        removal.answer().removed.into_iter().map(|item| item.name).collect()
    }

    fn round(&self, max_age_days: u64, max_total_bytes: u64, mode: PruneMode) -> Pruned {
        let max_age = Duration::from_millis(max_age_days * DAY_MS);
        let limits = RetentionOptions { max_age, max_total_bytes };
        let scope = self.scope();
        round(&scope, &self.state, limits, mode, NOW_MS, LOOK_TIME).unwrap().answer()
    }
}

fn end(at_ms: u64, reason: EndReason) -> NewEvent {
    let kind = EventKind::SessionEnded { reason, message: None, receipt: None };
    NewEvent { at_ms, turn: None, link: None, kind, body: Bytes::new() }
}

fn names(pruned: &Pruned) -> Vec<(DiskKind, &str)> {
    pruned.removed.iter().map(|item| (item.kind, item.name.as_str())).collect()
}

#[test]
fn sessions_are_removed_by_age_and_by_the_size_of_their_workspaces() {
    let stage = Stage::new();
    let old = stage.ended("old", 9, 1000);
    let large = stage.ended("large", 3, 400_000);
    let young = stage.ended("young", 1, 1000);
    let (journals, workspaces) = (DiskKind::JournalsEnded, DiskKind::WorkspacesEnded);
    let pruned = stage.round(10, 1 << 30, PruneMode::Remove);
    assert_eq!(names(&pruned), []);
    let pruned = stage.round(7, 1 << 30, PruneMode::Remove);
    assert_eq!(names(&pruned), [(workspaces, "old"), (journals, "old")]);
    assert!(!old.exists() && large.exists());
    // The size of the large session was measured once and is remembered.
    let pruned = stage.round(7, 300_000, PruneMode::Remove);
    assert_eq!(names(&pruned), [(workspaces, "large"), (journals, "large")]);
    assert!(pruned.bytes > 400_000 && !large.exists() && young.exists());
    assert_eq!(stage.journal.directories().unwrap(), BTreeSet::from([id("young")]));
}

#[test]
fn large_sessions_of_a_tenant_evict_sessions_of_that_tenant() {
    let mut stage = Stage::new();
    stage.ended("old", 5, 100_000);
    stage.ended("large@acme", 2, 400_000);
    stage.ended("small@acme", 1, 100_000);
    let (journals, workspaces) = (DiskKind::JournalsEnded, DiskKind::WorkspacesEnded);
    let pruned = stage.round(7, 500_000, PruneMode::Remove);
    assert_eq!(names(&pruned), [(workspaces, "large@acme"), (journals, "large@acme")]);
    let quota = TenantQuota { disk_bytes: Some(50_000), ..TenantQuota::default() };
    stage.config.tenants.tables.insert("acme".to_owned(), quota);
    let pruned = stage.round(7, 500_000, PruneMode::Remove);
    assert_eq!(names(&pruned), [(workspaces, "small@acme"), (journals, "small@acme")]);
    assert_eq!(stage.journal.directories().unwrap(), BTreeSet::from([id("old")]));
}

#[test]
fn a_dry_run_reports_what_the_removal_frees_and_removes_nothing() {
    let stage = Stage::new();
    let workspace = stage.ended("done", 1, 100_000);
    std::fs::hard_link(workspace.join("file"), workspace.join("again")).unwrap();
    let outside = stage.dir.path().join("outside");
    std::fs::write(&outside, vec![1; 200_000]).unwrap();
    std::fs::hard_link(&outside, workspace.join("theirs")).unwrap();
    let room = stage.live("demo");
    stage.twin("twin", &room);
    stage.end("twin");
    let looked = stage.round(0, 0, PruneMode::DryRun);
    assert!(workspace.exists() && family::workspace(&room).exists());
    let removed = stage.round(0, 0, PruneMode::Remove);
    assert_eq!(names(&looked), names(&removed));
    assert_eq!(looked.bytes, removed.bytes);
    assert!(looked.dry_run && !removed.dry_run && looked.complete);
    assert!(removed.bytes < 200_000, "a file with another name elsewhere does not count as freed");
    assert!(outside.exists() && !workspace.exists());
    assert!(stage.config.workspace_of(&id("demo")).exists(), "it lives");
}

#[test]
fn a_twin_s_copy_is_removed_with_it_and_the_family_with_its_last_session() {
    let stage = Stage::new();
    let room = stage.live("demo");
    let (twin_room, copy) = stage.twin("twin", &room);
    let (_, inner_copy) = stage.twin("inner", &twin_room);
    let (_, other_copy) = stage.twin("other", &family::next_room(&room));
    stage.families();
    assert!(copy.exists() && inner_copy.exists() && other_copy.exists());
    stage.end("other");
    stage.families();
    assert!(!other_copy.exists() && copy.exists());
    // A twin of the twin is live, and reads directories that its own copy leaves out.
    stage.end("twin");
    stage.families();
    assert!(copy.exists() && inner_copy.exists());
    stage.end("inner");
    stage.families();
    assert!(!copy.exists() && room.exists(), "the first session lives");
    stage.end("demo");
    std::fs::write(room.join("planted"), "").unwrap();
    stage.families();
    assert!(!room.exists());
    assert_eq!(session_dirs::links(&stage.config).unwrap(), []);
}

#[test]
fn a_lost_twin_s_copy_stays_until_its_journal_goes_or_its_original_is_closed() {
    use EndReason::{Closed, Idle, KeeperLost, NodeGone, WorkerExited};
    for (reason, of_original, stays) in [
        (KeeperLost, None, true),
        (NodeGone, None, true),
        (WorkerExited, Some(KeeperLost), true),
        (KeeperLost, Some(KeeperLost), true),
        (Closed, None, false),
        (Idle, None, false),
        (KeeperLost, Some(Closed), false),
        (KeeperLost, Some(Idle), false),
    ] {
        let stage = Stage::new();
        let room = stage.live("demo");
        let copy = stage.ended_twin("twin", "demo", &room, reason);
        if let Some(reason) = of_original {
            stage.end_for("demo", reason);
        }
        stage.families();
        assert_eq!(copy.exists(), stays, "{reason:?} {of_original:?}");
        stage.round(2, 1 << 30, PruneMode::Remove);
        assert_eq!(copy.exists(), stays, "{reason:?} {of_original:?}");
        let pruned = stage.round(0, 1 << 30, PruneMode::Remove);
        assert_eq!(pruned.failed, Vec::<String>::new());
        assert!(!copy.exists() && !stage.journal.has_directory(&id("twin")));
        assert_eq!(session_dirs::links(&stage.config).unwrap(), []);
    }
}

#[test]
fn a_twin_s_copy_stays_as_long_as_its_end_is_not_recorded() {
    let stage = Stage::new();
    let room = stage.live("demo");
    let (_, copy) = stage.twin_of("twin", Some("demo"), &room);
    // As if its keeper was gone when a node started, and the disk was full.
    stage.end("twin");
    stage.families();
    assert!(copy.exists());
    stage.end_for("twin", EndReason::Closed);
    stage.families();
    assert!(!copy.exists());
}

#[test]
fn a_lost_twin_s_copy_keeps_the_copies_that_contain_it() {
    let stage = Stage::new();
    let room = stage.live("demo");
    let (twin_room, copy) = stage.twin_of("twin", Some("demo"), &room);
    let inner_copy = stage.ended_twin("inner", "twin", &twin_room, EndReason::KeeperLost);
    stage.end_for("twin", EndReason::WallTime);
    stage.families();
    assert!(inner_copy.exists() && copy.exists());
    stage.round(0, 1 << 30, PruneMode::Remove);
    stage.families();
    assert!(!inner_copy.exists() && !copy.exists());
}

#[test]
fn a_workspace_stays_while_a_twin_of_its_session_lives() {
    let stage = Stage::new();
    let room = stage.live("demo");
    stage.twin("twin", &room);
    stage.end("demo");
    let workspace = stage.config.workspace_of(&id("demo"));
    let scope = stage.scope();
    let snapshot = DiskSnapshot::take(&scope, &[]).unwrap();
    let mut removal = Removal::new(PruneMode::Remove, LOOK_TIME);
    removal.session(&scope, &snapshot, &id("demo"));
    removal.leftovers(&scope, &snapshot);
    assert!(!stage.journal.has_directory(&id("demo")) && workspace.exists());
    stage.end("twin");
    // Without a journal the workspace is a leftover as soon as no session needs it.
    stage.round(100, 1 << 30, PruneMode::Remove);
    assert!(!workspace.exists() && !room.exists());
}

#[test]
fn leftovers_are_removed_and_directories_of_sessions_and_of_this_node_stay() {
    let stage = Stage::new();
    stage.live("demo");
    let at = |path: &str| stage.config.state_dir.join(path);
    let (gone, kept) = (
        [
            "workspaces/nobody",
            "staging/nobody",
            "tmp/nobody",
            "families/nobody/t/w",
            "places/3-1/workspace",
            "workers/python-before",
        ],
        ["workspaces/demo", "tmp/demo", "families/demo", "workers/python-now"],
    );
    for path in gone.iter().chain(&kept) {
        std::fs::create_dir_all(at(path).join("deep")).unwrap();
    }
    stage.round(100, 1 << 30, PruneMode::Remove);
    for path in kept {
        assert!(at(path).exists(), "{path}");
    }
    for path in &gone[..5] {
        assert!(!at(path).exists(), "{path}");
    }
    assert!(at(gone[5]).exists(), "a session of an earlier node may work with it");
    stage.end("demo");
    stage.round(100, 1 << 30, PruneMode::Remove);
    assert!(!at(gone[5]).exists());
}

#[test]
fn a_node_that_released_sessions_to_another_removes_nothing() {
    let stage = Stage::new();
    let workspace = stage.ended("done", 9, 1000);
    let room = stage.live("demo");
    let (_, copy) = stage.twin("twin", &room);
    std::fs::create_dir_all(stage.config.tmp_of(&id("demo"))).unwrap();
    stage.end("demo");
    stage.end("twin");
    stage.living.claimed.borrow_mut().insert(id("another-node"));
    assert_eq!(names(&stage.round(0, 0, PruneMode::Remove)), []);
    assert!(workspace.exists() && copy.exists() && stage.config.tmp_of(&id("demo")).exists());
}

#[test]
fn a_node_that_released_sessions_to_another_removes_no_package_environments() {
    let stage = Stage::new();
    let packages = stage.packages(&["with-old", "with-used", "named"]);
    stage.living.environments.borrow_mut().insert("with-used".to_owned());
    stage.living.claimed.borrow_mut().insert(id("another-node"));
    assert_eq!(stage.remove_packages(&packages), Vec::<String>::new());
    let removed = packages.remove("named", &|| stage.living.environments_in_use());
    assert_eq!(removed.unwrap_err().code, ErrorCode::SessionBusy);
    assert!(stage.config.packages_dir().join("with-old/environment.json").exists());
    stage.living.claimed.borrow_mut().clear();
    assert_eq!(stage.remove_packages(&packages), ["packages/with-old"]);
    assert!(!stage.config.packages_dir().join("with-old").exists());
}

#[test]
fn a_package_environment_counts_as_used_until_its_last_session_ends() {
    let stage = Stage::new();
    let packages = stage.packages(&["with-old", "with-used"]);
    let in_use = HashSet::from(["with-used".to_owned(), "with-unknown".to_owned()]);
    packages.note_uses(&in_use, NOW_MS - DAY_MS);
    // The session has ended since then.
    assert_eq!(stage.remove_packages(&packages), ["packages/with-old"]);
    // The next node knows it too.
    let packages = stage.packages(&[]);
    assert_eq!(packages.look("with-used").unwrap().used_at_ms, NOW_MS - DAY_MS);
    assert_eq!(packages.look("with-unknown").unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_ready_made_directory_stays_as_long_as_its_session() {
    let stage = Stage::new();
    let directory = stage.config.legacy_pool_dir().join("7-3");
    let (workspace, room) = (directory.join("workspace"), directory.join("room"));
    std::fs::create_dir_all(&workspace).unwrap();
    std::fs::create_dir_all(&room).unwrap();
    session_dirs::link(&stage.config, &id("one"), &workspace).unwrap();
    stage.living.sessions.borrow_mut().push((id("one"), room.clone()));
    stage.record("one", Some(NOW_MS - DAY_MS));
    let (_, copy) = stage.twin("twin", &room);
    stage.end("one");
    stage.round(100, 1 << 30, PruneMode::Remove);
    assert!(copy.exists());
    stage.end("twin");
    stage.families();
    assert!(!room.exists() && workspace.exists(), "it is kept as long as its journal");
    stage.round(0, 1 << 30, PruneMode::Remove);
    assert!(!directory.exists());
    assert!(stage.config.workspace_of(&id("one")).symlink_metadata().is_err());
}

#[test]
fn a_symlink_instead_of_a_directory_is_removed_and_not_followed() {
    let stage = Stage::new();
    let outside = stage.dir.path().join("outside");
    std::fs::create_dir_all(outside.join("w")).unwrap();
    std::fs::write(outside.join("w/precious"), "").unwrap();
    let room = stage.live("demo");
    let (_, copy) = stage.twin("twin", &room);
    let place = copy.parent().unwrap();
    std::fs::rename(place, room.join("away")).unwrap();
    symlink(&outside, place).unwrap();
    symlink(&outside, stage.config.workspace_of(&id("demo")).join("link")).unwrap();
    stage.end("twin");
    stage.families();
    assert!(outside.join("w/precious").exists());
    let used = survey::survey(&stage.scope());
    assert!(used.complete);
    stage.end("demo");
    stage.round(0, 0, PruneMode::Remove);
    assert!(!room.exists() && outside.join("w/precious").exists());
}

#[test]
fn every_file_is_counted_once() {
    let stage = Stage::new();
    stage.ended("done", 1, 50_000);
    let room = stage.live("demo");
    stage.twin("twin", &room);
    std::fs::write(stage.config.workspace_of(&id("demo")).join("file"), vec![1; 70_000]).unwrap();
    std::fs::write(stage.config.state_dir.join("keepers.log"), vec![1; 5000]).unwrap();
    // Another thread writes the index.
    stage.journal.flush_index().unwrap();
    let used = survey::survey(&stage.scope());
    let share = |kind| used.kinds.iter().find(|share| share.kind == kind).unwrap().bytes;
    assert!((50_000..80_000).contains(&share(DiskKind::WorkspacesEnded)));
    assert!((70_000..100_000).contains(&share(DiskKind::WorkspacesLive)));
    assert!((10_000..60_000).contains(&share(DiskKind::ForkCopies)));
    assert!(share(DiskKind::JournalsEnded) > 0 && share(DiskKind::Logs) >= 5000);
    assert_eq!(share(DiskKind::Leftovers), 0);
    assert!(share(DiskKind::Index) > 0);
    let counted = std::process::Command::new("du")
        .arg("-sB1")
        .arg(&stage.config.state_dir)
        .output()
        .unwrap()
        .stdout;
    let counted: u64 =
        String::from_utf8(counted).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let itself = std::fs::metadata(&stage.config.state_dir).unwrap();
    let itself = std::os::unix::fs::MetadataExt::blocks(&itself) * 512;
    assert_eq!(used.bytes, counted - itself);
}

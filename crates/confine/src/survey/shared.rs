//! The part of a survey that does not depend on the session's own directories, and its cache. A cached survey
//! serves later sessions until one of the files that it read is replaced. Checking that takes a tenth of the
//! time of a new survey.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use windlass_protocol::policy::{Policy, expand_home};

use super::{DirectoryEntry, SYSTEM, SurveyInput, needed, opened, real, root_links, with_kind};
use crate::file_fingerprint::FileFingerprint;
use crate::plan::PathKind;

/// Maximum number of cached surveys; the oldest is dropped first.
const CACHED_MAX: usize = 8;

/// A directory that changed within this time may change again and keep the same timestamp, so a survey of it
/// is not reused.
const SETTLED: Duration = Duration::from_millis(100);

/// The shared part of a survey, with the evidence that tells whether it is still true.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SharedSurvey {
    pub(super) hidden: BTreeMap<PathBuf, PathKind>,
    pub(super) system: BTreeMap<PathBuf, PathKind>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    pub(super) node_files: Vec<PathBuf>,
    pub(super) needed: Vec<PathBuf>,
    pub(super) opened: BTreeMap<PathBuf, BTreeMap<PathBuf, DirectoryEntry>>,
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    evidence: Evidence,
}

/// Which files a survey read, and how each one can be recognized again.
#[derive(Debug, Default, PartialEq, Eq)]
struct Evidence {
    /// Each path with the file behind it, symlinks followed; `None` where no file exists.
    files: Vec<(PathBuf, Option<FileFingerprint>)>,
    /// Directories whose entries were listed.
    listed: Vec<(PathBuf, Option<ListedDirectory>)>,
    /// No listed directory changed within [`SETTLED`] before the survey.
    settled: bool,
}

/// The state of a listed directory. It changes when an entry is added or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedDirectory {
    fingerprint: FileFingerprint,
    changed: (i64, i64),
}

impl SharedSurvey {
    /// Reads the files that the policy and the input name.
    pub(super) fn read(policy: &Policy, input: &SurveyInput) -> Self {
        let began = SystemTime::now();
        let home = input.home.as_deref();
        let named = |paths: &[String]| -> Vec<PathBuf> {
            paths.iter().filter_map(|path| expand_home(path, home)).collect()
        };
        let existing = |paths: &[PathBuf]| -> Vec<PathBuf> {
            paths.iter().filter_map(|path| real(path)).collect()
        };
        let (readable, writable) = (named(&policy.readable), named(&policy.writable));
        let mut hidden = named(&policy.hidden);
        hidden.extend(input.hidden.iter().cloned());
        let needed = needed(policy, input);
        let system = SYSTEM.map(PathBuf::from);
        // The evidence is taken first: a file that appears or disappears during the survey counts as a
        // change.
        let names = [&readable, &writable, &hidden, &needed].into_iter().flatten();
        let names = names.chain(&input.node_files);
        let names: BTreeSet<&Path> =
            names.chain(&system).map(PathBuf::as_path).chain(home).collect();
        let evidence = Evidence::of_files(&names);
        let mut shared = Self {
            hidden: hidden.iter().filter_map(|path| with_kind(path)).collect(),
            system: system.iter().filter_map(|path| with_kind(path)).collect(),
            readable: existing(&readable),
            writable: existing(&writable),
            node_files: existing(&input.node_files),
            needed: existing(&needed),
            opened: opened(policy, home),
            links: root_links(policy),
            evidence,
        };
        let listed = shared.opened.keys().map(PathBuf::as_path).chain([Path::new("/")]);
        shared.evidence.add_listed(listed, began);
        shared
    }

    /// Whether a new survey would give the same result.
    pub fn holds(&self) -> bool {
        self.evidence.holds()
    }

    /// Whether [`SharedSurvey::holds`] notices when this path gets another file.
    pub(crate) fn covers(&self, path: &Path) -> bool {
        let Evidence { files, listed, .. } = &self.evidence;
        files.iter().any(|(known, _)| known == path)
            || path.parent().is_some_and(|above| listed.iter().any(|(known, _)| known == above))
    }
}

impl Evidence {
    fn of_files(names: &BTreeSet<&Path>) -> Self {
        let mut files = Vec::new();
        for name in names {
            let fingerprint = fingerprint(name);
            // The target is checked too: the target and the symlink could both be moved.
            let target = real(name).filter(|real| real != name).map(|real| (real, fingerprint));
            files.push(((*name).to_owned(), fingerprint));
            files.extend(target);
        }
        Self { files, ..Self::default() }
    }

    /// Adds the directories that the survey listed. `began` is when the survey began.
    fn add_listed<'a>(&mut self, listed: impl Iterator<Item = &'a Path>, began: SystemTime) {
        self.listed = listed.map(|path| (path.to_owned(), ListedDirectory::now(path))).collect();
        let before = began.checked_sub(SETTLED);
        let before = before.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let before = before
            .map_or((0, 0), |time| (time.as_secs().cast_signed(), i64::from(time.subsec_nanos())));
        let is_settled =
            |listed: &Option<ListedDirectory>| listed.is_some_and(|one| one.changed < before);
        self.settled = self.listed.iter().all(|(_, listed)| is_settled(listed));
    }

    fn holds(&self) -> bool {
        self.settled
            && self.files.iter().all(|(path, was)| fingerprint(path) == *was)
            && self.listed.iter().all(|(path, was)| ListedDirectory::now(path) == *was)
    }
}

impl ListedDirectory {
    fn now(path: &Path) -> Option<Self> {
        let file = path.metadata().ok()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(Self { fingerprint: FileFingerprint::of(&file), changed })
    }
}

fn fingerprint(path: &Path) -> Option<FileFingerprint> {
    path.metadata().ok().map(|file| FileFingerprint::of(&file))
}

/// Shared surveys of earlier sessions.
#[derive(Debug, Default)]
pub struct SurveyCache(Mutex<Vec<CachedSurvey>>);

/// A shared survey, with the inputs that it was made from.
#[derive(Debug)]
struct CachedSurvey {
    policy: Policy,
    node_files: Vec<PathBuf>,
    needed: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    home: Option<PathBuf>,
    survey: Arc<SharedSurvey>,
}

impl CachedSurvey {
    fn is_for(&self, policy: &Policy, input: &SurveyInput) -> bool {
        self.policy == *policy
            && self.node_files == input.node_files
            && self.needed == input.needed
            && self.hidden == input.hidden
            && self.home == input.home
    }
}

impl SurveyCache {
    /// The shared survey for this policy and input: cached, or made now.
    pub(super) fn survey(&self, policy: &Policy, input: &SurveyInput) -> Arc<SharedSurvey> {
        let found = {
            let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let cached = cache.iter().find(|cached| cached.is_for(policy, input));
            cached.map(|cached| cached.survey.clone())
        };
        if let Some(shared) = found.filter(|shared| shared.holds()) {
            return shared;
        }
        let shared = Arc::new(SharedSurvey::read(policy, input));
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|cached| !cached.is_for(policy, input));
        if cache.len() >= CACHED_MAX {
            cache.remove(0);
        }
        cache.push(CachedSurvey {
            policy: policy.clone(),
            node_files: input.node_files.clone(),
            needed: input.needed.clone(),
            hidden: input.hidden.clone(),
            home: input.home.clone(),
            survey: shared.clone(),
        });
        shared
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use windlass_protocol::policy::Preset;

    use super::*;

    /// A home directory for tests.
    struct HomeFixture {
        _dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl HomeFixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            std::fs::create_dir_all(root.join("home/.config")).unwrap();
            std::fs::create_dir(root.join("keys")).unwrap();
            symlink(root.join("keys"), root.join("home/.ssh")).unwrap();
            Self { _dir: dir, root }
        }

        /// A survey of the home after its directories have settled.
        fn look(&self) -> SharedSurvey {
            let input =
                SurveyInput { home: Some(self.root.join("home")), ..SurveyInput::default() };
            let policy = Policy::of(Preset::Workspace);
            loop {
                let shared = SharedSurvey::read(&policy, &input);
                if shared.evidence.settled {
                    return shared;
                }
            }
        }
    }

    #[test]
    fn a_survey_holds_until_one_of_its_files_changes() {
        let home = HomeFixture::new();
        let at = |name: &str| home.root.join("home").join(name);
        let shared = home.look();
        assert!(shared.hidden.contains_key(&home.root.join("keys")));
        assert!(shared.holds());
        let changes: [&dyn Fn(); 5] = [
            &|| std::fs::write(at(".netrc"), "a new secret").unwrap(),
            &|| std::fs::write(at("notes"), "beside hidden paths").unwrap(),
            &|| std::fs::remove_file(at(".netrc")).unwrap(),
            &|| std::fs::create_dir(at(".aws")).unwrap(),
            &|| {
                // The same directory under another name.
                std::fs::rename(home.root.join("keys"), home.root.join("moved")).unwrap();
                std::fs::remove_file(at(".ssh")).unwrap();
                symlink(home.root.join("moved"), at(".ssh")).unwrap();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let shared = home.look();
            change();
            assert!(!shared.holds(), "change {number}");
        }
        assert!(home.look().hidden.contains_key(&home.root.join("moved")));
    }

    #[test]
    fn a_survey_of_a_directory_that_just_changed_is_not_reused() {
        let home = HomeFixture::new();
        std::fs::write(home.root.join("home/new"), "").unwrap();
        let input = SurveyInput { home: Some(home.root.join("home")), ..SurveyInput::default() };
        assert!(!SharedSurvey::read(&Policy::of(Preset::Workspace), &input).holds());
    }

    #[test]
    fn equal_inputs_share_one_cached_survey() {
        let home = HomeFixture::new();
        let _settled = home.look();
        let input = SurveyInput { home: Some(home.root.join("home")), ..SurveyInput::default() };
        let (cache, policy) = (SurveyCache::default(), Policy::of(Preset::Workspace));
        let first = cache.survey(&policy, &input);
        assert!(Arc::ptr_eq(&first, &cache.survey(&policy, &input)));
        let other = Policy { hidden: vec!["~/other".to_owned()], ..policy.clone() };
        assert!(!Arc::ptr_eq(&first, &cache.survey(&other, &input)));
        std::fs::write(home.root.join("home/new"), "").unwrap();
        assert!(!Arc::ptr_eq(&first, &cache.survey(&policy, &input)));
        for number in 0..2 * CACHED_MAX {
            let other = Policy { hidden: vec![format!("~/{number}")], ..policy.clone() };
            cache.survey(&other, &input);
        }
        assert!(cache.0.lock().unwrap().len() <= CACHED_MAX);
    }
}

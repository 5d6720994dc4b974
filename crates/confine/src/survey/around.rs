//! The part of a survey that does not depend on a session's own directories. It is cached for the
//! next sessions until a file that was looked at is replaced: checking that takes a tenth of the
//! time of a new survey.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use windlass_protocol::policy::{Policy, expand_home};

use super::{Entry, SYSTEM, Site, needed, opened, real, root_links, with_kind};
use crate::plan::Kind;
use crate::which::Which;

/// Surroundings that are kept: of the policies and interpreters that were last asked for.
const KEPT_MAX: usize = 8;

/// A directory that was changed so short a time ago may be changed again, and have the same time.
const SETTLED: Duration = Duration::from_millis(100);

/// What was found, and by what it is known that it is so still.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Around {
    pub(super) hidden: BTreeMap<PathBuf, Kind>,
    pub(super) system: BTreeMap<PathBuf, Kind>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    pub(super) program: Option<PathBuf>,
    pub(super) needed: Vec<PathBuf>,
    pub(super) opened: BTreeMap<PathBuf, BTreeMap<PathBuf, Entry>>,
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    evidence: Evidence,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Evidence {
    /// What each name stands for, links followed; nothing where there is nothing.
    files: Vec<(PathBuf, Option<Which>)>,
    /// Directories whose entries are known.
    listed: Vec<(PathBuf, Option<Listed>)>,
    settled: bool,
}

/// A directory that has got or lost no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listed {
    which: Which,
    changed: (i64, i64),
}

impl Around {
    pub(super) fn look(policy: &Policy, site: &Site) -> Self {
        let began = SystemTime::now();
        let home = site.home.as_deref();
        let named = |paths: &[String]| -> Vec<PathBuf> {
            paths.iter().filter_map(|path| expand_home(path, home)).collect()
        };
        let existing = |paths: &[PathBuf]| -> Vec<PathBuf> {
            paths.iter().filter_map(|path| real(path)).collect()
        };
        let (readable, writable) = (named(&policy.readable), named(&policy.writable));
        let mut hidden = named(&policy.hidden);
        hidden.extend(site.hidden.iter().cloned());
        let needed = needed(policy, site);
        let system = SYSTEM.map(PathBuf::from);
        // Before anything is looked for: what comes or goes meanwhile is a change.
        let names = [&readable, &writable, &hidden, &needed].into_iter().flatten();
        let names = names.chain(&site.program);
        let names: BTreeSet<&Path> =
            names.chain(&system).map(PathBuf::as_path).chain(home).collect();
        let evidence = Evidence::of_files(&names);
        let mut around = Self {
            hidden: hidden.iter().filter_map(|path| with_kind(path)).collect(),
            system: system.iter().filter_map(|path| with_kind(path)).collect(),
            readable: existing(&readable),
            writable: existing(&writable),
            program: site.program.as_deref().and_then(real),
            needed: existing(&needed),
            opened: opened(policy, home),
            links: root_links(policy),
            evidence,
        };
        let listed = around.opened.keys().map(PathBuf::as_path).chain([Path::new("/")]);
        around.evidence.add_listed(listed, began);
        around
    }

    /// Whether it would be found so now.
    pub fn holds(&self) -> bool {
        self.evidence.holds()
    }

    /// Whether it would no longer hold if another file had this path.
    pub(crate) fn speaks_of(&self, path: &Path) -> bool {
        let Evidence { files, listed, .. } = &self.evidence;
        files.iter().any(|(known, _)| known == path)
            || path.parent().is_some_and(|above| listed.iter().any(|(known, _)| known == above))
    }
}

impl Evidence {
    fn of_files(names: &BTreeSet<&Path>) -> Self {
        let mut files = Vec::new();
        for name in names {
            let which = which(name);
            // What it stands for could be moved, and a link with it.
            let stands_for = real(name).filter(|real| real != name).map(|real| (real, which));
            files.push(((*name).to_owned(), which));
            files.extend(stands_for);
        }
        Self { files, ..Self::default() }
    }

    /// Directories that were listed, not before `began`.
    fn add_listed<'a>(&mut self, listed: impl Iterator<Item = &'a Path>, began: SystemTime) {
        self.listed = listed.map(|path| (path.to_owned(), Listed::now(path))).collect();
        let before = began.checked_sub(SETTLED);
        let before = before.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let before = before
            .map_or((0, 0), |time| (time.as_secs().cast_signed(), i64::from(time.subsec_nanos())));
        let is_settled = |listed: &Option<Listed>| listed.is_some_and(|one| one.changed < before);
        self.settled = self.listed.iter().all(|(_, listed)| is_settled(listed));
    }

    fn holds(&self) -> bool {
        self.settled
            && self.files.iter().all(|(path, was)| which(path) == *was)
            && self.listed.iter().all(|(path, was)| Listed::now(path) == *was)
    }
}

impl Listed {
    fn now(path: &Path) -> Option<Self> {
        let file = path.metadata().ok()?;
        Some(Self { which: Which::of(&file), changed: (file.ctime(), file.ctime_nsec()) })
    }
}

fn which(path: &Path) -> Option<Which> {
    path.metadata().ok().map(|file| Which::of(&file))
}

/// Surroundings that were found before.
#[derive(Debug, Default)]
pub struct Kept(Mutex<Vec<Known>>);

/// For whom, and what was found.
#[derive(Debug)]
struct Known {
    policy: Policy,
    program: Option<PathBuf>,
    needed: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    home: Option<PathBuf>,
    around: Arc<Around>,
}

impl Known {
    fn is_for(&self, policy: &Policy, site: &Site) -> bool {
        self.policy == *policy
            && self.program == site.program
            && self.needed == site.needed
            && self.hidden == site.hidden
            && self.home == site.home
    }
}

impl Kept {
    /// What lies around sessions with this policy, at this site.
    pub(super) fn around(&self, policy: &Policy, site: &Site) -> Arc<Around> {
        let found = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = kept.iter().find(|known| known.is_for(policy, site));
            known.map(|known| known.around.clone())
        };
        if let Some(around) = found.filter(|around| around.holds()) {
            return around;
        }
        let around = Arc::new(Around::look(policy, site));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|known| !known.is_for(policy, site));
        if kept.len() >= KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Known {
            policy: policy.clone(),
            program: site.program.clone(),
            needed: site.needed.clone(),
            hidden: site.hidden.clone(),
            home: site.home.clone(),
            around: around.clone(),
        });
        around
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use windlass_protocol::policy::Preset;

    use super::*;

    /// A home in which nothing was changed for a while.
    struct Home {
        _dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl Home {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            std::fs::create_dir_all(root.join("home/.config")).unwrap();
            std::fs::create_dir(root.join("keys")).unwrap();
            symlink(root.join("keys"), root.join("home/.ssh")).unwrap();
            Self { _dir: dir, root }
        }

        /// What is there, looked at when it has settled.
        fn look(&self) -> Around {
            let site = Site { home: Some(self.root.join("home")), ..Site::default() };
            let policy = Policy::of(Preset::Workspace);
            loop {
                let around = Around::look(&policy, &site);
                if around.evidence.settled {
                    return around;
                }
            }
        }
    }

    #[test]
    fn it_holds_until_something_of_it_changes() {
        let home = Home::new();
        let at = |name: &str| home.root.join("home").join(name);
        let around = home.look();
        assert!(around.hidden.contains_key(&home.root.join("keys")));
        assert!(around.holds());
        let changes: [&dyn Fn(); 5] = [
            &|| std::fs::write(at(".netrc"), "a secret that was not there").unwrap(),
            &|| std::fs::write(at("notes"), "what is beside hidden paths").unwrap(),
            &|| std::fs::remove_file(at(".netrc")).unwrap(),
            &|| std::fs::create_dir(at(".aws")).unwrap(),
            &|| {
                // The same directory, by another name.
                std::fs::rename(home.root.join("keys"), home.root.join("moved")).unwrap();
                std::fs::remove_file(at(".ssh")).unwrap();
                symlink(home.root.join("moved"), at(".ssh")).unwrap();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let around = home.look();
            change();
            assert!(!around.holds(), "change {number}");
        }
        assert!(home.look().hidden.contains_key(&home.root.join("moved")));
    }

    #[test]
    fn what_has_just_changed_is_looked_at_again() {
        let home = Home::new();
        std::fs::write(home.root.join("home/new"), "").unwrap();
        let site = Site { home: Some(home.root.join("home")), ..Site::default() };
        assert!(!Around::look(&Policy::of(Preset::Workspace), &site).holds());
    }

    #[test]
    fn it_is_found_once_for_all_who_ask_the_same() {
        let home = Home::new();
        let _settled = home.look();
        let site = Site { home: Some(home.root.join("home")), ..Site::default() };
        let (kept, policy) = (Kept::default(), Policy::of(Preset::Workspace));
        let first = kept.around(&policy, &site);
        assert!(Arc::ptr_eq(&first, &kept.around(&policy, &site)));
        let other = Policy { hidden: vec!["~/other".to_owned()], ..policy.clone() };
        assert!(!Arc::ptr_eq(&first, &kept.around(&other, &site)));
        std::fs::write(home.root.join("home/new"), "").unwrap();
        assert!(!Arc::ptr_eq(&first, &kept.around(&policy, &site)));
        for number in 0..2 * KEPT_MAX {
            let other = Policy { hidden: vec![format!("~/{number}")], ..policy.clone() };
            kept.around(&other, &site);
        }
        assert!(kept.0.lock().unwrap().len() <= KEPT_MAX);
    }
}

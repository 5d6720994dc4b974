//! The protected names in the directories that a session can write: which exist, which are links and
//! where those lead, which are missing. Only looks; the node makes placeholders for what is missing
//! before the session starts, so that there is something to mount on.
//!
//! A home directory is held more strictly than others: all its names that begin with a dot, and the
//! directories of programs on PATH that lie in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use windlass_protocol::policy::{HOME_DIRECTORIES, Policy, TRUSTED_AT_HOME, WorkspaceAccess};

use super::Site;
use crate::plan::Kind;
use windlass_beneath::DIRECTORY;

/// Links that are followed from one protected name, as the kernel does.
const LINKS_MAX: usize = 40;

/// Names of one home that are held one by one. A home with more is reported as not held.
const HOME_NAMES_MAX: usize = 512;

/// Placeholders of one session. Where more would be needed (a policy with many writable directories),
/// missing names are reported as not held.
const PLACEHOLDERS_MAX: usize = 512;

const GIT: &str = ".git";

/// A directory without this is no repository.
const HEAD: &str = "HEAD";

/// What makes git run programs, in a directory that is a repository itself.
const BARE_SETTINGS: [&str; 3] = ["commondir", "config", "hooks"];

/// What is read of a file that names a directory.
const LINE_BYTES_MAX: u64 = 8192;

/// What is at a protected path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protected {
    Real(Kind),
    /// A symbolic link: held itself. What it leads to is a protected path of its own.
    Link,
    /// Nothing yet: the node makes this placeholder before the session starts.
    Missing(Placeholder),
}

/// What stands at a missing name while a session lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placeholder {
    /// An empty directory: git does not see it and removes it where it has a file to put there, and
    /// whoever copies or searches the workspace finds nothing in it.
    Directory,
    /// A link that leads nowhere: whoever reads it is told that there is no such file. A shell goes on
    /// to its next startup file then, which it would not do after any other answer.
    Link,
}

/// The protected names of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub protected: BTreeMap<PathBuf, Protected>,
    /// Why some of them cannot be held.
    pub unheld: Option<String>,
}

impl Names {
    /// Missing names, each with its placeholder.
    pub fn missing(&self) -> impl Iterator<Item = (&PathBuf, Placeholder)> {
        self.protected.iter().filter_map(|(path, found)| match found {
            Protected::Missing(placeholder) => Some((path, *placeholder)),
            Protected::Real(_) | Protected::Link => None,
        })
    }

    /// No placeholder can be made: missing names are not held.
    pub fn without_missing(&mut self, why: String) {
        self.protected.retain(|_, found| !matches!(found, Protected::Missing(_)));
        self.unheld.get_or_insert(why);
    }
}

/// Looks at the protected names in a workspace and in other writable roots, whose paths are real.
pub(super) fn look(policy: &Policy, site: &Site, workspace: &Path, writable: &[PathBuf]) -> Names {
    let whole = writable.iter().any(|root| root == Path::new("/"));
    let mut roots = BTreeSet::new();
    if policy.workspace == WorkspaceAccess::Write {
        roots.insert(workspace.to_owned());
    }
    // A policy that makes the whole machine writable leaves the names in `/` and in homes open.
    roots.extend(writable.iter().filter(|root| root.parent().is_some()).cloned());
    let mut look = Look { policy, roots: &roots, found: Names::default() };
    if policy.workspace == WorkspaceAccess::Read {
        look.directory(workspace, Whose::Anybody);
    }
    for root in &roots {
        if site.workspace_is_new && root == workspace {
            continue;
        }
        let is_home = site.homes.contains(root) && !whole;
        look.directory(root, if is_home { Whose::Home } else { Whose::Anybody });
        if whole {
            continue;
        }
        for home in site.homes.iter().filter(|home| *home != root && home.starts_with(root)) {
            look.directory(home, Whose::Home);
        }
        look.startup_root(root, site);
        for programs in site.programs.iter().filter(|programs| programs.starts_with(root)) {
            look.programs(programs, root, site);
        }
    }
    let mut found = look.found;
    if found.missing().count() > PLACEHOLDERS_MAX {
        found.without_missing(format!(
            "more than {PLACEHOLDERS_MAX} protected names are missing in the writable directories"
        ));
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Anybody,
    Home,
}

struct Look<'a> {
    policy: &'a Policy,
    /// Directories that the session can write.
    roots: &'a BTreeSet<PathBuf>,
    found: Names,
}

impl Look<'_> {
    fn directory(&mut self, directory: &Path, whose: Whose) {
        let opened = openat(CWD, directory, DIRECTORY, Mode::empty()).ok();
        for name in &self.policy.protected {
            let missing = match (whose, TRUSTED_AT_HOME.contains(&name.as_str())) {
                (Whose::Home, true) => Some(Placeholder::Link),
                (Whose::Anybody, true) => None,
                _ => Some(Placeholder::Directory),
            };
            // Most names are missing, and the kernel finds that out faster from an open directory.
            match opened.as_ref().and_then(|opened| missing_part(opened, name)) {
                Some(part) => self.absent(directory.join(part), missing),
                None => self.walk(directory, OsStr::new(name), missing),
            }
        }
        if self.policy.protected.iter().any(|name| name == GIT) {
            self.repository(directory);
        }
        if whose == Whose::Home {
            self.home(directory);
        }
    }

    /// What git takes for a repository although it is not named `.git`: where a file of that name leads,
    /// and without a repository at that name the directory itself, once it has a `HEAD`.
    fn repository(&mut self, directory: &Path) {
        let git = directory.join(GIT);
        if git.is_file() {
            let Some(named) = first_line(&git, "gitdir:") else { return };
            self.walk(directory, named.as_os_str(), Some(Placeholder::Directory));
            // The directory of a working tree made by `git worktree` names the repository with the settings.
            if let Ok(inner) = directory.join(named).canonicalize()
                && let Some(common) = first_line(&inner.join("commondir"), "")
            {
                self.walk(&inner, common.as_os_str(), Some(Placeholder::Directory));
            }
            return;
        }
        if git.join(HEAD).symlink_metadata().is_ok() {
            return;
        }
        let is_bare = directory.join(HEAD).symlink_metadata().is_ok();
        self.walk(directory, OsStr::new(HEAD), Some(Placeholder::Directory));
        for name in BARE_SETTINGS.iter().filter(|_| is_bare) {
            self.walk(directory, OsStr::new(name), Some(Placeholder::Directory));
        }
    }

    fn home(&mut self, home: &Path) {
        for name in HOME_DIRECTORIES {
            self.walk(home, OsStr::new(name), Some(Placeholder::Directory));
        }
        let Ok(entries) = std::fs::read_dir(home) else { return };
        let is_dotted = |name: &OsString| name.as_encoded_bytes().starts_with(b".");
        let names = entries.flatten().map(|entry| entry.file_name()).filter(is_dotted);
        let names: Vec<OsString> = names.take(HOME_NAMES_MAX + 1).collect();
        if names.len() > HOME_NAMES_MAX {
            self.unheld(format!(
                "the home {} has more than {HOME_NAMES_MAX} names that begin with a dot",
                home.display()
            ));
        }
        for name in names.iter().take(HOME_NAMES_MAX) {
            self.walk(home, name, None);
        }
    }

    /// A writable root at which, or below which, a home keeps programs or startup files.
    fn startup_root(&mut self, root: &Path, site: &Site) {
        let is_part =
            |home: &PathBuf| HOME_DIRECTORIES.iter().any(|name| root.starts_with(home.join(name)));
        if site.homes.iter().any(is_part) {
            self.unheld(format!(
                "{} is a directory from which shells run programs and startup files",
                root.display()
            ));
        }
    }

    /// A directory of programs on PATH, at or below a writable root.
    fn programs(&mut self, programs: &Path, root: &Path, site: &Site) {
        let Ok(below) = programs.strip_prefix(root) else { return };
        if below.as_os_str().is_empty() {
            self.unheld(format!("{} is a directory of programs on PATH", root.display()));
            return;
        }
        // Elsewhere than in a home it is a tool's environment, which may be made anew.
        let in_home = site.homes.iter().any(|home| programs.starts_with(home));
        let missing = in_home.then_some(Placeholder::Directory);
        self.walk(root, below.as_os_str(), missing);
    }

    /// Finds out what is at a name in a real directory. Every link on the way that lies in a writable
    /// root is protected, and so is what is found at the end, or would have to be made.
    fn walk(&mut self, directory: &Path, name: &OsStr, missing: Option<Placeholder>) {
        let mut at = directory.to_owned();
        let mut left: VecDeque<OsString> = parts(Path::new(name));
        let (mut links, mut kind) = (0, Kind::Directory);
        while let Some(part) = left.pop_front() {
            match part.as_encoded_bytes() {
                b"/" => at = PathBuf::from("/"),
                b".." => {
                    at.pop();
                }
                _ => {
                    let next = at.join(&part);
                    let about = match next.symlink_metadata() {
                        Ok(about) => about,
                        Err(error) if error.kind() == ErrorKind::NotFound => {
                            // What a dangling link leads to could be made where it leads.
                            let at_end = Some(Placeholder::Directory);
                            return self.absent(next, if links > 0 { at_end } else { missing });
                        }
                        Err(error) => {
                            self.unheld(format!("{} cannot be looked at: {error}", next.display()));
                            return;
                        }
                    };
                    if !about.is_symlink() {
                        kind = if about.is_dir() { Kind::Directory } else { Kind::File };
                        at = next;
                        continue;
                    }
                    links += 1;
                    let Ok(target) = next.read_link() else { return };
                    if links > LINKS_MAX {
                        return;
                    }
                    if self.is_writable(&next) || links == 1 {
                        self.found.protected.insert(next, Protected::Link);
                    }
                    let mut target = parts(&target);
                    target.append(&mut left);
                    left = target;
                }
            }
        }
        self.reached(at, kind, links > 0, directory);
    }

    fn absent(&mut self, path: PathBuf, placeholder: Option<Placeholder>) {
        if let Some(placeholder) = placeholder
            && self.is_writable(&path)
        {
            self.found.protected.entry(path).or_insert(Protected::Missing(placeholder));
        }
    }

    fn reached(&mut self, path: PathBuf, kind: Kind, by_link: bool, directory: &Path) {
        if by_link && !self.is_writable(&path) {
            return;
        }
        if self.roots.iter().any(|root| root.starts_with(&path)) {
            // The kernel would make the whole root read-only with it.
            self.unheld(format!(
                "a protected name in {} is a link to {}, which the session can write",
                directory.display(),
                path.display()
            ));
            return;
        }
        self.found.protected.insert(path, Protected::Real(kind));
    }

    fn is_writable(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| path.starts_with(root))
    }

    fn unheld(&mut self, why: String) {
        self.found.unheld.get_or_insert(why);
    }
}

/// The first part of `name`, if nothing in the directory has it.
fn missing_part(directory: &OwnedFd, name: &str) -> Option<OsString> {
    let Some(Component::Normal(part)) = Path::new(name).components().next() else { return None };
    match statat(directory, part, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Some(part.to_owned()),
        _ => None,
    }
}

/// The path in the first line of a small file, after `start`.
fn first_line(file: &Path, start: &str) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).ok()?;
    opened.take(LINE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let path = line.strip_prefix(start.as_bytes())?.trim_ascii();
    (!path.is_empty()).then(|| OsStr::from_bytes(path).into())
}

/// The components of a path, from the first to the last.
fn parts(path: &Path) -> VecDeque<OsString> {
    let part = |component: Component<'_>| match component {
        Component::CurDir | Component::Prefix(_) => None,
        Component::RootDir => Some("/".into()),
        Component::ParentDir => Some("..".into()),
        Component::Normal(name) => Some(name.to_owned()),
    };
    path.components().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use windlass_protocol::policy::{Preset, TRUSTED_ANYWHERE};

    use super::*;

    struct Scene {
        _dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            std::fs::create_dir_all(root.join("work/docs")).unwrap();
            Self { _dir: dir, root }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.root.join("work").join(name)
        }

        fn look(&self, site: &Site) -> Names {
            look(&Policy::of(Preset::Workspace), site, &self.root.join("work"), &[])
        }

        fn look_at_home(&self, programs: &[&str]) -> Names {
            let homes = vec![self.root.join("work")];
            let programs = programs.iter().map(|name| self.at(name)).collect();
            self.look(&Site { homes, programs, ..Site::default() })
        }
    }

    #[test]
    fn missing_names_get_placeholders_and_those_of_shells_only_in_a_home() {
        let scene = Scene::new();
        std::fs::create_dir(scene.at(".git")).unwrap();
        std::fs::write(scene.at(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        let names = scene.look(&Site::default());
        assert_eq!(names.unheld, None);
        assert_eq!(names.protected.len(), TRUSTED_ANYWHERE.len());
        let found = |names: &Names, name: &str| names.protected.get(&scene.at(name)).copied();
        assert_eq!(found(&names, ".git"), Some(Protected::Real(Kind::Directory)));
        assert_eq!(found(&names, ".claude"), Some(Protected::Missing(Placeholder::Directory)));
        assert_eq!(found(&names, "AGENTS.md"), Some(Protected::Missing(Placeholder::Directory)));
        assert_eq!(found(&names, ".bashrc"), None);
        std::fs::create_dir(scene.at(".oh-my-zsh")).unwrap();
        let names = scene.look_at_home(&[]);
        assert_eq!(found(&names, ".bashrc"), Some(Protected::Missing(Placeholder::Link)));
        assert_eq!(found(&names, "bin"), Some(Protected::Missing(Placeholder::Directory)));
        assert_eq!(found(&names, ".oh-my-zsh"), Some(Protected::Real(Kind::Directory)));
        assert_eq!(found(&names, "docs"), None);
    }

    #[test]
    fn whatever_git_takes_for_a_repository_is_held() {
        let missing = Some(Protected::Missing(Placeholder::Directory));
        let real = |kind| Some(Protected::Real(kind));
        let found = |scene: &Scene, name: &str| {
            scene.look(&Site::default()).protected.get(&scene.at(name)).copied()
        };
        let scene = Scene::new();
        // An empty `.git` is none: git goes on to the directory itself.
        std::fs::create_dir(scene.at(".git")).unwrap();
        assert_eq!(found(&scene, "HEAD"), missing);
        assert_eq!(found(&scene, "config"), None);
        std::fs::write(scene.at("HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(scene.at("config"), "").unwrap();
        assert_eq!(found(&scene, "HEAD"), real(Kind::File));
        assert_eq!(found(&scene, "config"), real(Kind::File));
        assert_eq!(found(&scene, "commondir"), missing);

        let scene = Scene::new();
        std::fs::write(scene.at(".git"), "gitdir: docs/git\n").unwrap();
        assert_eq!(found(&scene, "docs/git"), missing);
        std::fs::create_dir(scene.at("docs/git")).unwrap();
        std::fs::create_dir(scene.at("shared")).unwrap();
        std::fs::write(scene.at("docs/git/commondir"), "../../shared\n").unwrap();
        assert_eq!(found(&scene, "docs/git"), real(Kind::Directory));
        assert_eq!(found(&scene, "shared"), real(Kind::Directory));
        assert_eq!(found(&scene, "HEAD"), None);
    }

    #[test]
    fn a_workspace_that_was_just_made_or_is_only_read_has_no_missing_names() {
        let scene = Scene::new();
        let new = Site { workspace_is_new: true, ..Site::default() };
        assert_eq!(scene.look(&new), Names::default());
        let read = Policy::of(Preset::ReadOnly);
        let work = scene.root.join("work");
        assert_eq!(look(&read, &Site::default(), &work, &[]), Names::default());
    }

    #[test]
    fn links_are_followed_to_their_end_within_what_can_be_written() {
        let scene = Scene::new();
        std::fs::write(scene.at("docs/agents.md"), "").unwrap();
        std::fs::create_dir(scene.root.join("outside")).unwrap();
        for (name, target) in [
            ("d", "docs"),
            ("AGENTS.md", "d/agents.md"),
            ("CLAUDE.md", "./AGENTS.md"),
            ("GEMINI.md", "docs/../missing/file"),
            (".claude", "../outside"),
            (".codex", "../outside/missing"),
            (".gemini", ".gemini"),
        ] {
            symlink(target, scene.at(name)).unwrap();
        }
        let names = scene.look(&Site::default());
        assert_eq!(names.unheld, None);
        let there: Vec<(String, Protected)> = names
            .protected
            .iter()
            .filter(|(path, _)| path.symlink_metadata().is_ok() || path.ends_with("missing"))
            .map(|(path, found)| {
                (path.strip_prefix(&scene.root).unwrap().display().to_string(), *found)
            })
            .collect();
        let link = |name: &str| (format!("work/{name}"), Protected::Link);
        let expected = [
            link(".claude"),
            link(".codex"),
            link(".gemini"),
            link("AGENTS.md"),
            link("CLAUDE.md"),
            link("GEMINI.md"),
            link("d"),
            ("work/docs/agents.md".to_owned(), Protected::Real(Kind::File)),
            ("work/missing".to_owned(), Protected::Missing(Placeholder::Directory)),
        ];
        assert_eq!(there, expected);
    }

    #[test]
    fn what_cannot_be_held_is_said() {
        let scene = Scene::new();
        symlink(".", scene.at(".claude")).unwrap();
        assert!(scene.look(&Site::default()).unheld.unwrap().contains("is a link to"));
        std::fs::remove_file(scene.at(".claude")).unwrap();
        assert_eq!(scene.look_at_home(&["docs"]).unheld, None);
        assert!(scene.look_at_home(&[""]).unheld.unwrap().contains("PATH"));
        let homes = vec![scene.root.clone()];
        std::fs::rename(scene.root.join("work"), scene.root.join("bin")).unwrap();
        let bin = scene.root.join("bin");
        let site = Site { homes, ..Site::default() };
        let names = look(&Policy::of(Preset::Workspace), &site, &bin, &[]);
        assert!(names.unheld.unwrap().contains("startup files"));
    }

    #[test]
    fn programs_on_the_path_are_protected_and_in_a_home_also_where_they_are_missing() {
        let scene = Scene::new();
        let found = |names: &Names, name: &str| names.protected.get(&scene.at(name)).copied();
        let names = scene.look_at_home(&["docs", "go/bin"]);
        assert_eq!(found(&names, "docs"), Some(Protected::Real(Kind::Directory)));
        assert_eq!(found(&names, "go"), Some(Protected::Missing(Placeholder::Directory)));
        let programs = vec![scene.at("docs"), scene.at(".venv/bin")];
        let names = scene.look(&Site { programs, ..Site::default() });
        assert_eq!(found(&names, "docs"), Some(Protected::Real(Kind::Directory)));
        assert_eq!(found(&names, ".venv"), None);
    }
}

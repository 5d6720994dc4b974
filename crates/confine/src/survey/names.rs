//! Finds the protected names in the directories that a session can write: which exist, which are symlinks and
//! where they lead, which are missing. This module only reads. Before the session starts, the node makes
//! placeholders for missing names, so that the view has a file to mount on.
//!
//! A home directory has more protected names than other directories: every name that begins with a dot, and
//! the directories of programs on PATH inside the home.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use windlass_protocol::policy::{
    ENVIRONMENTS, HOME_DIRECTORIES, Policy, TRUSTED_AT_HOME, WorkspaceAccess,
};

use super::SurveyInput;
use crate::plan::PathKind;
use windlass_beneath::{DIRECTORY, READ};

/// Maximum number of symlinks that are followed from one protected name; the kernel has the same limit.
const LINKS_MAX: usize = 40;

/// Maximum number of protected dot names in one home, beside the names that the policy and Windlass list. A home with
/// more is reported as not protected.
const HOME_NAMES_MAX: usize = 512;

/// Maximum number of placeholders of one session. If a session needs more (its policy has many writable
/// directories), missing names are reported as not protected.
const PLACEHOLDERS_MAX: usize = 512;

const GIT: &str = ".git";

/// Git takes a directory for a repository only if it contains this file.
const HEAD: &str = "HEAD";

/// Files of a bare repository that can make git run programs.
const BARE_SETTINGS: [&str; 3] = ["commondir", "config", "hooks"];

/// Maximum number of bytes that are read from a file that names a directory (`.git`, `commondir`).
const LINE_BYTES_MAX: u64 = 8192;

/// What exists at a protected path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtectedEntry {
    Real(PathKind),
    /// A symlink, which is protected itself. Its target is a separate protected path.
    Link,
    /// Nothing. The node makes this placeholder before the session starts.
    Missing(Placeholder),
}

/// What the node puts at a missing name while a session lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placeholder {
    /// An empty directory. Git ignores it, and replaces it when a checkout needs the name. Programs that copy
    /// or search the workspace find no files in it.
    Directory,
    /// A dangling symlink: opening it fails with ENOENT. A shell then continues with its next startup file,
    /// which it does after no other error.
    Link,
}

/// The protected names of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedNames {
    pub protected: BTreeMap<PathBuf, ProtectedEntry>,
    /// Why some of the names cannot be protected.
    pub unheld: Option<String>,
}

impl ProtectedNames {
    /// The missing names, each with its placeholder.
    pub fn missing(&self) -> impl Iterator<Item = (&PathBuf, Placeholder)> {
        self.protected.iter().filter_map(|(path, found)| match found {
            ProtectedEntry::Missing(placeholder) => Some((path, *placeholder)),
            ProtectedEntry::Real(_) | ProtectedEntry::Link => None,
        })
    }

    /// Drops the missing names, because no placeholder can be made for them.
    pub fn without_missing(&mut self, why: String) {
        self.protected.retain(|_, found| !matches!(found, ProtectedEntry::Missing(_)));
        self.unheld.get_or_insert(why);
    }
}

/// Finds the protected names in a workspace and in the other writable roots. All paths are real paths.
pub(super) fn find(
    policy: &Policy,
    input: &SurveyInput,
    workspace: &Path,
    writable: &[PathBuf],
) -> ProtectedNames {
    let whole = writable.iter().any(|root| root == Path::new("/"));
    let mut roots = BTreeSet::new();
    if policy.workspace == WorkspaceAccess::Write {
        roots.insert(workspace.to_owned());
    }
    // A policy that makes `/` writable does not protect the names in `/` and in homes.
    roots.extend(writable.iter().filter(|root| root.parent().is_some()).cloned());
    let mut search = NameSearch { policy, roots: &roots, found: ProtectedNames::default() };
    if policy.workspace == WorkspaceAccess::Read {
        search.directory(workspace, DirectoryRole::Ordinary);
    }
    for root in &roots {
        if input.workspace_is_new && root == workspace {
            continue;
        }
        let is_home = input.homes.contains(root) && !whole;
        search.directory(root, if is_home { DirectoryRole::Home } else { DirectoryRole::Ordinary });
        if whole {
            continue;
        }
        for home in input.homes.iter().filter(|home| *home != root && home.starts_with(root)) {
            search.directory(home, DirectoryRole::Home);
        }
        search.startup_root(root, input);
        for programs in input.programs.iter().filter(|programs| programs.starts_with(root)) {
            search.programs(programs, root, input);
        }
    }
    let mut found = search.found;
    if found.missing().count() > PLACEHOLDERS_MAX {
        found.without_missing(format!(
            "more than {PLACEHOLDERS_MAX} protected names are missing in the writable directories"
        ));
    }
    found
}

/// Decides which names of a directory are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectoryRole {
    Ordinary,
    Home,
}

struct NameSearch<'a> {
    policy: &'a Policy,
    /// Directories that the session can write.
    roots: &'a BTreeSet<PathBuf>,
    found: ProtectedNames,
}

impl NameSearch<'_> {
    fn directory(&mut self, directory: &Path, role: DirectoryRole) {
        let opened = openat(CWD, directory, DIRECTORY, Mode::empty()).ok();
        for name in &self.policy.protected {
            let missing = match (role, TRUSTED_AT_HOME.contains(&name.as_str())) {
                (DirectoryRole::Home, true) => Some(Placeholder::Link),
                (DirectoryRole::Ordinary, true) => None,
                _ if ENVIRONMENTS.contains(&name.as_str()) => None,
                _ => Some(Placeholder::Directory),
            };
            // Most names are missing. A lookup relative to an open directory finds that out faster.
            match opened.as_ref().and_then(|opened| missing_part(opened, name)) {
                Some(part) => self.absent(directory.join(part), missing),
                None => self.walk(directory, OsStr::new(name), missing),
            }
        }
        if self.policy.protected.iter().any(|name| name == GIT) {
            self.repository(directory);
        }
        if role == DirectoryRole::Home {
            self.home(directory);
        }
    }

    /// Protects what git takes for a repository although it is not named `.git`: the directory that a file
    /// named `.git` points to; and if `.git` is not a repository, the directory itself, once it contains a
    /// `HEAD`.
    fn repository(&mut self, directory: &Path) {
        let git = directory.join(GIT);
        if git.is_file() {
            let Some(named) = first_line(&git, "gitdir:") else { return };
            self.walk(directory, named.as_os_str(), Some(Placeholder::Directory));
            // In a working tree made by `git worktree`, `commondir` names the repository that holds the
            // settings.
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
        // The other names are protected already. They do not count, because placeholders have these names too.
        let listed = || {
            let by_policy = self.policy.protected.iter().map(String::as_str);
            by_policy.chain(HOME_DIRECTORIES.iter().copied())
        };
        let is_dotted = |name: &OsString| {
            name.as_encoded_bytes().starts_with(b".") && !listed().any(|listed| *name == listed)
        };
        let names = entries.flatten().map(|entry| entry.file_name()).filter(is_dotted);
        let names: Vec<OsString> = names.take(HOME_NAMES_MAX + 1).collect();
        if names.len() > HOME_NAMES_MAX {
            self.unheld(format!(
                "the home {} has more than {HOME_NAMES_MAX} further names that begin with a dot",
                home.display()
            ));
        }
        for name in names.iter().take(HOME_NAMES_MAX) {
            self.walk(home, name, None);
        }
    }

    /// Reports a writable root that lies in a home's directory of programs or startup files.
    fn startup_root(&mut self, root: &Path, input: &SurveyInput) {
        let is_part =
            |home: &PathBuf| HOME_DIRECTORIES.iter().any(|name| root.starts_with(home.join(name)));
        if input.homes.iter().any(is_part) {
            self.unheld(format!(
                "{} is a directory from which shells run programs and startup files",
                root.display()
            ));
        }
    }

    /// Protects a directory on PATH that is a writable root or lies below one.
    fn programs(&mut self, programs: &Path, root: &Path, input: &SurveyInput) {
        let Ok(below) = programs.strip_prefix(root) else { return };
        if below.as_os_str().is_empty() {
            self.unheld(format!("{} is a directory of programs on PATH", root.display()));
            return;
        }
        // Outside a home the directory is part of a tool's environment, which the session may create.
        let in_home = input.homes.iter().any(|home| programs.starts_with(home));
        let missing = in_home.then_some(Placeholder::Directory);
        self.walk(root, below.as_os_str(), missing);
    }

    /// Resolves a name in a real directory. Protects each symlink on the way that lies in a writable root,
    /// and the path at the end, whether it exists or is missing.
    fn walk(&mut self, directory: &Path, name: &OsStr, missing: Option<Placeholder>) {
        let mut at = directory.to_owned();
        let mut left: VecDeque<OsString> = parts(Path::new(name));
        let (mut links, mut kind) = (0, PathKind::Directory);
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
                            // The session could create the target of a dangling symlink.
                            let at_end = Some(Placeholder::Directory);
                            return self.absent(next, if links > 0 { at_end } else { missing });
                        }
                        Err(error) => {
                            self.unheld(format!("cannot read {}: {error}", next.display()));
                            return;
                        }
                    };
                    if !about.is_symlink() {
                        kind = if about.is_dir() { PathKind::Directory } else { PathKind::File };
                        at = next;
                        continue;
                    }
                    links += 1;
                    let Ok(target) = next.read_link() else { return };
                    if links > LINKS_MAX {
                        return;
                    }
                    if self.is_writable(&next) || links == 1 {
                        self.found.protected.insert(next, ProtectedEntry::Link);
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
            self.found.protected.entry(path).or_insert(ProtectedEntry::Missing(placeholder));
        }
    }

    fn reached(&mut self, path: PathBuf, kind: PathKind, by_link: bool, directory: &Path) {
        if by_link && !self.is_writable(&path) {
            return;
        }
        if self.roots.iter().any(|root| root.starts_with(&path)) {
            // Mounting this path read-only would make the whole root read-only.
            self.unheld(format!(
                "a protected name in {} is a link to {}, which the session can write",
                directory.display(),
                path.display()
            ));
            return;
        }
        self.found.protected.insert(path, ProtectedEntry::Real(kind));
    }

    fn is_writable(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| path.starts_with(root))
    }

    fn unheld(&mut self, why: String) {
        self.found.unheld.get_or_insert(why);
    }
}

/// The first component of `name`, if the directory has no such entry.
fn missing_part(directory: &OwnedFd, name: &str) -> Option<OsString> {
    let Some(Component::Normal(part)) = Path::new(name).components().next() else { return None };
    match statat(directory, part, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Some(part.to_owned()),
        _ => None,
    }
}

/// The path in the first line of a regular file, after the prefix `start`. Symlinks are followed.
fn first_line(file: &Path, start: &str) -> Option<PathBuf> {
    // A session may have made this entry. A device is not opened, because that can have side effects. A pipe that takes
    // the file's place after that does not block.
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let opened = openat(CWD, file, READ.difference(OFlags::NOFOLLOW), Mode::empty()).ok()?;
    if windlass_beneath::kind(&fstat(&opened).ok()?) != FileType::RegularFile {
        return None;
    }
    let mut bytes = Vec::new();
    std::fs::File::from(opened).take(LINE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let path = line.strip_prefix(start.as_bytes())?.trim_ascii();
    (!path.is_empty()).then(|| OsStr::from_bytes(path).into())
}

/// The components of a path, in order.
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

    struct WorkspaceFixture {
        _dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl WorkspaceFixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            std::fs::create_dir_all(root.join("work/docs")).unwrap();
            Self { _dir: dir, root }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.root.join("work").join(name)
        }

        fn look(&self, input: &SurveyInput) -> ProtectedNames {
            find(&Policy::of(Preset::Workspace), input, &self.root.join("work"), &[])
        }

        fn look_at_home(&self, programs: &[&str]) -> ProtectedNames {
            let homes = vec![self.root.join("work")];
            let programs = programs.iter().map(|name| self.at(name)).collect();
            self.look(&SurveyInput { homes, programs, ..SurveyInput::default() })
        }
    }

    #[test]
    fn missing_names_get_placeholders_and_shell_files_only_in_a_home() {
        let scene = WorkspaceFixture::new();
        std::fs::create_dir(scene.at(".git")).unwrap();
        std::fs::write(scene.at(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        let names = scene.look(&SurveyInput::default());
        assert_eq!(names.unheld, None);
        assert_eq!(names.protected.len(), TRUSTED_ANYWHERE.len());
        let found =
            |names: &ProtectedNames, name: &str| names.protected.get(&scene.at(name)).copied();
        assert_eq!(found(&names, ".git"), Some(ProtectedEntry::Real(PathKind::Directory)));
        assert_eq!(found(&names, ".claude"), Some(ProtectedEntry::Missing(Placeholder::Directory)));
        assert_eq!(
            found(&names, "AGENTS.md"),
            Some(ProtectedEntry::Missing(Placeholder::Directory))
        );
        assert_eq!(found(&names, ".bashrc"), None);
        assert_eq!(found(&names, ".venv"), None);
        std::fs::create_dir(scene.at(".venv")).unwrap();
        let names = scene.look(&SurveyInput::default());
        assert_eq!(found(&names, ".venv"), Some(ProtectedEntry::Real(PathKind::Directory)));
        std::fs::create_dir(scene.at(".oh-my-zsh")).unwrap();
        let names = scene.look_at_home(&[]);
        assert_eq!(found(&names, ".bashrc"), Some(ProtectedEntry::Missing(Placeholder::Link)));
        assert_eq!(found(&names, "bin"), Some(ProtectedEntry::Missing(Placeholder::Directory)));
        assert_eq!(found(&names, ".oh-my-zsh"), Some(ProtectedEntry::Real(PathKind::Directory)));
        assert_eq!(found(&names, "docs"), None);
    }

    #[test]
    fn every_directory_that_git_takes_for_a_repository_is_protected() {
        let missing = Some(ProtectedEntry::Missing(Placeholder::Directory));
        let real = |kind| Some(ProtectedEntry::Real(kind));
        let found = |scene: &WorkspaceFixture, name: &str| {
            scene.look(&SurveyInput::default()).protected.get(&scene.at(name)).copied()
        };
        let scene = WorkspaceFixture::new();
        // An empty `.git` is not a repository: git then looks at the directory itself.
        std::fs::create_dir(scene.at(".git")).unwrap();
        assert_eq!(found(&scene, "HEAD"), missing);
        assert_eq!(found(&scene, "config"), None);
        std::fs::write(scene.at("HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(scene.at("config"), "").unwrap();
        assert_eq!(found(&scene, "HEAD"), real(PathKind::File));
        assert_eq!(found(&scene, "config"), real(PathKind::File));
        assert_eq!(found(&scene, "commondir"), missing);

        let scene = WorkspaceFixture::new();
        std::fs::write(scene.at(".git"), "gitdir: docs/git\n").unwrap();
        assert_eq!(found(&scene, "docs/git"), missing);
        std::fs::create_dir(scene.at("docs/git")).unwrap();
        std::fs::create_dir(scene.at("shared")).unwrap();
        std::fs::write(scene.at("docs/git/commondir"), "../../shared\n").unwrap();
        assert_eq!(found(&scene, "docs/git"), real(PathKind::Directory));
        assert_eq!(found(&scene, "shared"), real(PathKind::Directory));
        assert_eq!(found(&scene, "HEAD"), None);
        // If `commondir` is a pipe, the search does not wait for a writer, and finds no directory there.
        std::fs::remove_file(scene.at("docs/git/commondir")).unwrap();
        rustix::fs::mkfifoat(CWD, scene.at("docs/git/commondir"), Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(found(&scene, "docs/git"), real(PathKind::Directory));
        assert_eq!(found(&scene, "shared"), None);
    }

    #[test]
    fn a_workspace_that_was_just_made_or_is_only_read_has_no_missing_names() {
        let scene = WorkspaceFixture::new();
        let new = SurveyInput { workspace_is_new: true, ..SurveyInput::default() };
        assert_eq!(scene.look(&new), ProtectedNames::default());
        let read = Policy::of(Preset::ReadOnly);
        let work = scene.root.join("work");
        assert_eq!(find(&read, &SurveyInput::default(), &work, &[]), ProtectedNames::default());
    }

    #[test]
    fn symlinks_are_followed_within_the_writable_roots() {
        let scene = WorkspaceFixture::new();
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
        let names = scene.look(&SurveyInput::default());
        assert_eq!(names.unheld, None);
        let there: Vec<(String, ProtectedEntry)> = names
            .protected
            .iter()
            .filter(|(path, _)| path.symlink_metadata().is_ok() || path.ends_with("missing"))
            .map(|(path, found)| {
                (path.strip_prefix(&scene.root).unwrap().display().to_string(), *found)
            })
            .collect();
        let link = |name: &str| (format!("work/{name}"), ProtectedEntry::Link);
        let expected = [
            link(".claude"),
            link(".codex"),
            link(".gemini"),
            link("AGENTS.md"),
            link("CLAUDE.md"),
            link("GEMINI.md"),
            link("d"),
            ("work/docs/agents.md".to_owned(), ProtectedEntry::Real(PathKind::File)),
            ("work/missing".to_owned(), ProtectedEntry::Missing(Placeholder::Directory)),
        ];
        assert_eq!(there, expected);
    }

    #[test]
    fn a_name_that_cannot_be_protected_is_reported() {
        let scene = WorkspaceFixture::new();
        symlink(".", scene.at(".claude")).unwrap();
        assert!(scene.look(&SurveyInput::default()).unheld.unwrap().contains("is a link to"));
        std::fs::remove_file(scene.at(".claude")).unwrap();
        assert_eq!(scene.look_at_home(&["docs"]).unheld, None);
        assert!(scene.look_at_home(&[""]).unheld.unwrap().contains("PATH"));
        let homes = vec![scene.root.clone()];
        std::fs::rename(scene.root.join("work"), scene.root.join("bin")).unwrap();
        let bin = scene.root.join("bin");
        let input = SurveyInput { homes, ..SurveyInput::default() };
        let names = find(&Policy::of(Preset::Workspace), &input, &bin, &[]);
        assert!(names.unheld.unwrap().contains("startup files"));
    }

    #[test]
    fn a_home_with_too_many_dot_names_is_reported_and_listed_names_do_not_count() {
        let scene = WorkspaceFixture::new();
        let make = |name: &str| std::fs::write(scene.at(name), "").unwrap();
        (0..HOME_NAMES_MAX).for_each(|number| make(&format!(".name-{number}")));
        [".git", ".bashrc", ".config"].into_iter().for_each(make);
        assert_eq!(scene.look_at_home(&[]).unheld, None);
        make(".one-more");
        assert!(scene.look_at_home(&[]).unheld.unwrap().contains("begin with a dot"));
    }

    #[test]
    fn directories_on_path_are_protected_and_in_a_home_also_when_missing() {
        let scene = WorkspaceFixture::new();
        let found =
            |names: &ProtectedNames, name: &str| names.protected.get(&scene.at(name)).copied();
        let names = scene.look_at_home(&["docs", "go/bin"]);
        assert_eq!(found(&names, "docs"), Some(ProtectedEntry::Real(PathKind::Directory)));
        assert_eq!(found(&names, "go"), Some(ProtectedEntry::Missing(Placeholder::Directory)));
        let programs = vec![scene.at("docs"), scene.at(".venv/bin")];
        let names = scene.look(&SurveyInput { programs, ..SurveyInput::default() });
        assert_eq!(found(&names, "docs"), Some(ProtectedEntry::Real(PathKind::Directory)));
        assert_eq!(found(&names, ".venv"), None);
    }
}

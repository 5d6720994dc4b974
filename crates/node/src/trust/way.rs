//! The way from a path to what it stands for: every directory in which a name is looked up, with
//! symbolic links followed one at a time. The kernel's links in `/proc` are refused: what they stand
//! for depends on who asks, so they would name another file to the node than to a session.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Links that are followed for one path, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    pub real: PathBuf,
    /// In which names were looked up. They are free of links.
    pub directories: BTreeSet<PathBuf>,
    /// Those of them that hold a link which was followed.
    pub with_links: BTreeSet<PathBuf>,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WayError {
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
    #[error("{0} is a link of the kernel's, which leads elsewhere for each process")]
    Magic(PathBuf),
    #[error("{0} leads through more than {LINKS_MAX} symbolic links")]
    TooManyLinks(PathBuf),
    #[error("{path} cannot be looked at: {why}")]
    Look { path: PathBuf, why: String },
}

/// Follows `path` to its end, which exists.
pub(crate) fn resolve(path: &Path) -> Result<Way, WayError> {
    let (mut directories, mut with_links) = (BTreeSet::new(), BTreeSet::new());
    let real = follow(path, &mut directories, &mut with_links)?;
    Ok(Way { real, directories, with_links })
}

/// The same; `directories` gets those that were looked into, also on a way that ends too early.
pub(super) fn walk(path: &Path, directories: &mut BTreeSet<PathBuf>) -> Result<PathBuf, WayError> {
    follow(path, directories, &mut BTreeSet::new())
}

fn follow(
    path: &Path,
    directories: &mut BTreeSet<PathBuf>,
    with_links: &mut BTreeSet<PathBuf>,
) -> Result<PathBuf, WayError> {
    if !path.is_absolute() {
        return Err(WayError::Relative(path.to_owned()));
    }
    let mut real = PathBuf::from("/");
    let mut links = 0;
    // The next part is the last.
    let mut left = parts(path);
    while let Some(part) = left.pop() {
        if part == OsStr::new("..") {
            real.pop();
            continue;
        }
        let next = real.join(&part);
        let looked =
            |error: io::Error| WayError::Look { path: next.clone(), why: error.kind().to_string() };
        if !directories.contains(&real) {
            directories.insert(real.clone());
        }
        let found = std::fs::symlink_metadata(&next).map_err(looked)?;
        if !found.is_symlink() {
            real = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(WayError::TooManyLinks(path.to_owned()));
        }
        if is_procfs(&real).map_err(looked)? {
            return Err(WayError::Magic(next));
        }
        with_links.insert(real.clone());
        let target = std::fs::read_link(&next).map_err(looked)?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        left.extend(parts(&target));
    }
    Ok(real)
}

/// The names in a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

fn is_procfs(directory: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statfs(directory)?.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_directory_on_the_way_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        for name in ["a/b", "c/d", "e"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        std::fs::write(at("e/python"), "").unwrap();
        symlink("../../c/link", at("a/b/python")).unwrap();
        symlink(at("e/python"), at("c/link")).unwrap();
        let way = resolve(&at("a/b/./python")).unwrap();
        assert_eq!(way.real, at("e/python"));
        for name in ["a/b", "c", "e"] {
            assert!(way.directories.contains(&at(name)), "{name}: {way:?}");
        }
        assert!(!way.directories.contains(&at("c/d")));
    }

    #[test]
    fn what_leads_elsewhere_for_each_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for (name, target) in [("cwd", "/proc/self/cwd/etc"), ("fd", "/dev/fd/0")] {
            symlink(target, root.join(name)).unwrap();
            let refused = resolve(&root.join(name));
            assert!(matches!(refused, Err(WayError::Magic(_))), "{name}: {refused:?}");
        }
        symlink("loop", root.join("loop")).unwrap();
        let refused = resolve(&root.join("loop"));
        assert!(matches!(refused, Err(WayError::TooManyLinks(_))), "{refused:?}");
        assert!(matches!(resolve(Path::new("bin/python")), Err(WayError::Relative(_))));
        let missing = resolve(&root.join("none/python"));
        assert!(matches!(missing, Err(WayError::Look { .. })), "{missing:?}");
    }
}

//! Resolves a path and lists every directory in which a part is looked up, following symlinks one at a time.
//! The magic links of `/proc` are refused: their target depends on the process that reads them, so they would
//! mean another file for the node than for a session.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symlinks that are followed for one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// A path, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvedPath {
    pub real: PathBuf,
    /// The directories in which parts were looked up. These paths contain no symlinks.
    pub directories: BTreeSet<PathBuf>,
    /// Those directories that contain a symlink which was followed.
    pub with_links: BTreeSet<PathBuf>,
}

/// Why a path cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
    #[error("{0} is a magic link of the kernel, whose target differs between processes")]
    Magic(PathBuf),
    #[error("{0} leads through more than {LINKS_MAX} symbolic links")]
    TooManyLinks(PathBuf),
    #[error("cannot read {path}: {why}")]
    Look { path: PathBuf, why: String },
}

/// Resolves `path`, which must exist.
pub(crate) fn resolve(path: &Path) -> Result<ResolvedPath, ResolveError> {
    let (mut directories, mut with_links) = (BTreeSet::new(), BTreeSet::new());
    let real = follow(path, &mut directories, &mut with_links)?;
    Ok(ResolvedPath { real, directories, with_links })
}

/// Resolves `path`. `directories` gets the directories in which parts were looked up, also on an error.
pub(super) fn walk(
    path: &Path,
    directories: &mut BTreeSet<PathBuf>,
) -> Result<PathBuf, ResolveError> {
    follow(path, directories, &mut BTreeSet::new())
}

fn follow(
    path: &Path,
    directories: &mut BTreeSet<PathBuf>,
    with_links: &mut BTreeSet<PathBuf>,
) -> Result<PathBuf, ResolveError> {
    if !path.is_absolute() {
        return Err(ResolveError::Relative(path.to_owned()));
    }
    let mut real = PathBuf::from("/");
    let mut links = 0;
    // A stack: the next part is at the end.
    let mut left = parts(path);
    while let Some(part) = left.pop() {
        if part == OsStr::new("..") {
            real.pop();
            continue;
        }
        let next = real.join(&part);
        let looked = |error: io::Error| ResolveError::Look {
            path: next.clone(),
            why: error.kind().to_string(),
        };
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
            return Err(ResolveError::TooManyLinks(path.to_owned()));
        }
        if is_procfs(&real).map_err(looked)? {
            return Err(ResolveError::Magic(next));
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

/// The parts of a path, last part first.
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
    fn every_directory_on_the_path_is_listed() {
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
    fn magic_links_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for (name, target) in [("cwd", "/proc/self/cwd/etc"), ("fd", "/dev/fd/0")] {
            symlink(target, root.join(name)).unwrap();
            let refused = resolve(&root.join(name));
            assert!(matches!(refused, Err(ResolveError::Magic(_))), "{name}: {refused:?}");
        }
        symlink("loop", root.join("loop")).unwrap();
        let refused = resolve(&root.join("loop"));
        assert!(matches!(refused, Err(ResolveError::TooManyLinks(_))), "{refused:?}");
        assert!(matches!(resolve(Path::new("bin/python")), Err(ResolveError::Relative(_))));
        let missing = resolve(&root.join("none/python"));
        assert!(matches!(missing, Err(ResolveError::Look { .. })), "{missing:?}");
    }
}

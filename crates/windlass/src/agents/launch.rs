//! What a client is told to run: this program, by a path that still holds after an upgrade.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::places::is_executable;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot tell where this program is: {0}; name it with --command PATH")]
    Unknown(std::io::Error),
    #[error("{0:?} is not UTF-8, and configuration files are; name another with --command PATH")]
    NotText(PathBuf),
}

/// The command of our entry: the one asked for, or this program.
pub fn command(asked: Option<&Path>) -> Result<String, LaunchError> {
    let path = match asked {
        // A bare name is looked up by the client, in its PATH.
        Some(name) if name.components().count() == 1 && !name.is_absolute() => name.to_owned(),
        Some(path) => std::path::absolute(path).map_err(LaunchError::Unknown)?,
        None => this_program()?,
    };
    path.into_os_string().into_string().map_err(|text| LaunchError::NotText(text.into()))
}

/// The path that it was started by, rather than what that leads to: package managers link a lasting
/// name to a directory that carries the version.
fn this_program() -> Result<PathBuf, LaunchError> {
    let real = std::env::current_exe().map_err(LaunchError::Unknown)?;
    let called = std::env::args_os().next().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(started_as(&called, &path).filter(|by| leads_to(by, &real)).unwrap_or(real))
}

fn started_as(called: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if called.is_empty() {
        return None;
    }
    if Path::new(called).components().count() > 1 {
        return std::path::absolute(called).ok();
    }
    let found = std::env::split_paths(path).map(|directory| directory.join(called));
    found.into_iter().find(|path| path.is_absolute() && is_executable(path))
}

fn leads_to(path: &Path, real: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path == real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_left_to_the_clients_path_and_a_path_is_made_absolute() {
        assert_eq!(command(Some(Path::new("windlass"))).unwrap(), "windlass");
        assert_eq!(command(Some(Path::new("/opt/windlass"))).unwrap(), "/opt/windlass");
        let here = std::env::current_dir().unwrap();
        let expected = here.join("bin/windlass").display().to_string();
        assert_eq!(command(Some(Path::new("bin/windlass"))).unwrap(), expected);
        assert_eq!(
            command(Some(Path::new("./windlass"))).unwrap(),
            here.join("windlass").display().to_string()
        );
    }

    #[test]
    fn a_link_that_it_was_started_by_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let real = std::env::current_exe().unwrap();
        let link = directory.path().join("windlass");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let started = started_as(OsStr::new("windlass"), directory.path().as_os_str()).unwrap();
        assert_eq!(started, link);
        assert!(leads_to(&started, &real.canonicalize().unwrap()));
        assert_eq!(started_as(OsStr::new("nothing"), directory.path().as_os_str()), None);
    }
}

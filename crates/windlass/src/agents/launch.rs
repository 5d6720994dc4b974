//! The command that a client runs: the path of this program, in a form that stays valid after an upgrade.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::config_paths::is_executable;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot find the path of the windlass program: {0}; set it with --command PATH")]
    Unknown(std::io::Error),
    #[error("{0:?} is not UTF-8, as configuration files require; set a path with --command PATH")]
    NotText(PathBuf),
}

/// The command of the Windlass entry: the requested one, or this program.
pub fn command(requested: Option<&Path>) -> Result<String, LaunchError> {
    let path = match requested {
        // The client looks up a bare name in its PATH.
        Some(name) if name.components().count() == 1 && !name.is_absolute() => name.to_owned(),
        Some(path) => std::path::absolute(path).map_err(LaunchError::Unknown)?,
        None => this_program()?,
    };
    path.into_os_string().into_string().map_err(|text| LaunchError::NotText(text.into()))
}

/// The path that this program was started by, not its resolved path: package managers link a stable name to
/// a directory with the version in its name.
fn this_program() -> Result<PathBuf, LaunchError> {
    let real = std::env::current_exe().map_err(LaunchError::Unknown)?;
    let called = std::env::args_os().next().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(started_as(&called, &path).filter(|by| resolves_to(by, &real)).unwrap_or(real))
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

fn resolves_to(path: &Path, real: &Path) -> bool {
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
    fn the_symlink_that_started_the_program_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let real = std::env::current_exe().unwrap();
        let link = directory.path().join("windlass");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let started = started_as(OsStr::new("windlass"), directory.path().as_os_str()).unwrap();
        assert_eq!(started, link);
        assert!(resolves_to(&started, &real.canonicalize().unwrap()));
        assert_eq!(started_as(OsStr::new("nothing"), directory.path().as_os_str()), None);
    }
}

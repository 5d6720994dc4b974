//! Finds interpreters: by name on PATH, or by path. Never runs a program.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use windlass_protocol::ErrorCode;

use crate::failure::Failure;
use crate::trust::way::{self, ResolveError, ResolvedPath};
use crate::trust::{CodeDirs, Trust};

/// An interpreter that was found.
#[derive(Debug)]
pub(super) struct FoundProgram {
    pub path: PathBuf,
    pub way: ResolvedPath,
}

/// Finds the program that a session names by path or name, or else `usual` on PATH.
pub(super) fn find(
    named: Option<&str>,
    usual: &str,
    path: Option<&String>,
) -> Result<FoundProgram, Failure> {
    let found = match named {
        None => on_path(usual, path)?,
        Some(named) if !named.contains('/') => on_path(named, path)?,
        Some(named) if !Path::new(named).is_absolute() => {
            return Err(cannot_run(Path::new(named), "the path is not absolute"));
        }
        Some(named) if !Path::new(named).is_file() => {
            return Err(cannot_run(Path::new(named), "there is no such file"));
        }
        Some(named) => PathBuf::from(named),
    };
    let way = way::resolve(&found).map_err(|error| unresolved(&found, &error))?;
    Ok(FoundProgram { path: found, way })
}

impl FoundProgram {
    /// What a session may read of this program, besides the policy's readable paths: its installation. A
    /// program that a session could have changed adds nothing.
    pub fn needed(&self, trust: &Trust) -> Vec<PathBuf> {
        self.is_trusted(trust).then(|| prefix_of(&self.way.real)).into_iter().collect()
    }

    /// Whether no session could have changed this program.
    pub fn is_trusted(&self, trust: &Trust) -> bool {
        let directories = self.way.directories.clone();
        trust.check(&CodeDirs { directories, ..CodeDirs::default() }).is_ok()
    }
}

/// The prefix with `bin` and `lib` that a program is installed in, or the program alone if it has no such
/// prefix.
pub(super) fn prefix_of(real: &Path) -> PathBuf {
    let installed = real
        .parent()
        .filter(|bin| bin.ends_with("bin"))
        .and_then(Path::parent)
        .filter(|prefix| prefix.join("lib").is_dir());
    installed.unwrap_or(real).to_owned()
}

pub(super) fn cannot_run(interpreter: &Path, why: &str) -> Failure {
    let message = format!("cannot run the interpreter {}: {why}", interpreter.display());
    Failure::new(ErrorCode::WorkerFailed, message)
}

pub(super) fn unresolved(interpreter: &Path, error: &ResolveError) -> Failure {
    let why = format!("{error}; remove the symlink, or name another interpreter");
    let failure = cannot_run(interpreter, &why);
    Failure::of_node(failure.code, failure.message)
}

pub(super) fn on_path(name: &str, path: Option<&String>) -> Result<PathBuf, Failure> {
    // Skip empty and relative entries: they depend on the node's working directory.
    path.into_iter()
        .flat_map(std::env::split_paths)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| cannot_run(Path::new(name), "it is not on PATH"))
}

pub(super) fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && &start == b"#!"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_entries_of_path_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("python3"), "").unwrap();
        let absolute = dir.path().display().to_string();
        let relative = format!(":.:../../../../../../../..{absolute}");
        assert!(on_path("python3", Some(&relative)).is_err());
        let found = on_path("python3", Some(&format!("{relative}:{absolute}"))).unwrap();
        assert_eq!(found, dir.path().join("python3"));
    }

    #[test]
    fn a_program_is_found_by_path_or_by_name() {
        let path = "/usr/bin:/bin".to_owned();
        assert!(find(None, "sh", Some(&path)).unwrap().way.real.is_absolute());
        for (named, why) in
            [("none-such", "not on PATH"), ("./sh", "not absolute"), ("/no/sh", "no such file")]
        {
            let failure = find(Some(named), "sh", Some(&path)).unwrap_err();
            assert!(failure.message.contains(why), "{}", failure.message);
        }
    }
}

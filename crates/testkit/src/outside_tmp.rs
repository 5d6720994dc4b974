//! Directories for test files that sessions must be able to see.

use std::path::{Path, PathBuf};

/// Variable with a directory that an ordinary user who runs the tests can write.
const PLACE: &str = "WINDLASS_TEST_PLACE";

/// Directories that are private in a session: it does not see the machine's files there.
const PRIVATE: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// A new directory outside of the [`PRIVATE`] directories, even if the sources are below `/tmp`. `target` is
/// `env!("CARGO_TARGET_TMPDIR")` of the test.
///
/// # Panics
/// When the directory cannot be created.
pub fn outside_of_tmp(target: &str) -> tempfile::TempDir {
    let named = std::env::var_os(PLACE).map(PathBuf::from);
    let is_seen = |path: &PathBuf| !PRIVATE.iter().any(|private| path.starts_with(private));
    let parent = named.or_else(|| Some(PathBuf::from(target)).filter(is_seen));
    let parent = parent.as_deref().unwrap_or(Path::new("/srv"));
    let created = tempfile::Builder::new().prefix("wl-").tempdir_in(parent);
    created.unwrap_or_else(|error| panic!("no directory in {}: {error}", parent.display()))
}

//! Where a test's files lie when a session is to see them.

use std::path::{Path, PathBuf};

/// Names a directory in which an ordinary user who runs these tests may make some.
const PLACE: &str = "WINDLASS_TEST_PLACE";

/// Where sessions have files of their own, and so do not see the machine's.
const PRIVATE: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// A directory that no session has one of its own over, also where the sources lie below `/tmp`.
/// `target` is `env!("CARGO_TARGET_TMPDIR")` of the test.
///
/// # Panics
/// When none can be made.
pub fn outside_of_tmp(target: &str) -> tempfile::TempDir {
    let named = std::env::var_os(PLACE).map(PathBuf::from);
    let is_seen = |path: &PathBuf| !PRIVATE.iter().any(|private| path.starts_with(private));
    let place = named.or_else(|| Some(PathBuf::from(target)).filter(is_seen));
    let place = place.as_deref().unwrap_or(Path::new("/srv"));
    let made = tempfile::Builder::new().prefix("wl-").tempdir_in(place);
    made.unwrap_or_else(|error| panic!("no directory in {}: {error}", place.display()))
}

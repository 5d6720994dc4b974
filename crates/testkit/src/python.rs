//! Which Python the tests' sessions run.

use std::path::PathBuf;

/// A real CPython: `WINDLASS_TEST_PYTHON`, or the system's. Never one found on PATH, which may be
/// a shim that only starts another.
pub fn python() -> PathBuf {
    std::env::var_os("WINDLASS_TEST_PYTHON")
        .map_or_else(|| PathBuf::from("/usr/bin/python3"), PathBuf::from)
}

//! Decides which directories a copy leaves out by default: caches, installed packages and virtual
//! environments, which can be recreated. Decides by the directory's name and by marker files in it. A session
//! that fakes a marker only changes its own copy.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, fstat, openat};

use super::{READ, kind};

/// What a copy does with directories that can be recreated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipRule {
    /// They are copied like all others.
    CopyAll,
    LeaveOut,
}

/// Why a directory can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignorable {
    /// A Python virtual environment, or a directory of several.
    Environment,
    /// Packages that an installer has installed.
    Packages,
    /// A cache: the program that wrote it can write it again.
    Cache,
}

/// A file in the root of every virtual environment.
const VENV_MARK: &str = "pyvenv.cfg";

/// A file that marks a directory as a cache, if it begins with the signature.
const CACHE_MARK: &str = "CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

const BY_NAME: [(&str, Ignorable); 8] = [
    (".venv", Ignorable::Environment),
    (".tox", Ignorable::Environment),
    (".nox", Ignorable::Environment),
    ("node_modules", Ignorable::Packages),
    ("__pycache__", Ignorable::Cache),
    (".mypy_cache", Ignorable::Cache),
    (".pytest_cache", Ignorable::Cache),
    (".ruff_cache", Ignorable::Cache),
];

/// Whether a directory can be left out, and why.
pub(super) fn judge(name: &OsStr, directory: BorrowedFd<'_>) -> Option<Ignorable> {
    let named = BY_NAME.iter().find(|(known, _)| name == *known).map(|(_, why)| *why);
    named.or_else(|| {
        if mark(directory, VENV_MARK).is_some() {
            return Some(Ignorable::Environment);
        }
        let mut begin = Vec::new();
        let file = std::fs::File::from(mark(directory, CACHE_MARK)?);
        file.take(CACHE_SIGNATURE.len() as u64).read_to_end(&mut begin).ok()?;
        (begin == CACHE_SIGNATURE).then_some(Ignorable::Cache)
    })
}

/// Opens a regular file of that name. A symlink is not followed, and a pipe does not block.
fn mark(directory: BorrowedFd<'_>, name: &str) -> Option<OwnedFd> {
    let file = openat(directory, name, READ, Mode::empty()).ok()?;
    (kind(&fstat(&file).ok()?) == FileType::RegularFile).then_some(file)
}

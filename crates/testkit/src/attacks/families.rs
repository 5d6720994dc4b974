//! Searches for the stage's secret in a directory that the node fills: no copy by the node may contain a
//! hidden secret.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum number of entries to search.
const ENTRIES_MAX: usize = 20_000;

/// Maximum number of bytes to search in a file.
const BYTES_MAX: u64 = 64 * 1024;

/// The first file below `root` that contains `secret`. Follows no symlinks.
pub(super) fn holding(root: &Path, secret: &str) -> Option<PathBuf> {
    let mut waiting = vec![root.to_owned()];
    let mut left = ENTRIES_MAX;
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() && holds(&entry.path(), secret) {
                return Some(entry.path());
            }
        }
    }
    None
}

fn holds(path: &Path, secret: &str) -> bool {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).map(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
    read.is_ok() && bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
}

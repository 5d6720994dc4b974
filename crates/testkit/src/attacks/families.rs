//! Looks for the stage's secret below a directory that the node fills: nothing that the node copied may
//! hold what is hidden.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Entries that are looked at.
const ENTRIES_MAX: usize = 20_000;

/// Bytes of a file that are looked at.
const BYTES_MAX: u64 = 64 * 1024;

/// The first file below `root` that holds `secret`. Follows no link.
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

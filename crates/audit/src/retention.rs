//! For how long a log is kept, and which files are removed: whole files, oldest first, and never the one that records are appended to.

use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use crate::files::LogFile;

/// Whether a log is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditOptions {
    pub enabled: bool,
    /// Files whose last record is older are removed.
    pub max_age: Duration,
    /// Maximum size of all files together.
    pub max_total_bytes: u64,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            max_age: Duration::from_secs(90 * 24 * 3600),
            max_total_bytes: 256 * 1024 * 1024,
        }
    }
}

/// A file that is no longer kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpiredFile {
    pub file: LogFile,
    pub bytes: u64,
    /// The number of its last record.
    pub through: u64,
}

/// A file with what decides whether it is kept.
#[derive(Debug, Clone)]
pub(crate) struct FileAge {
    pub file: LogFile,
    pub bytes: u64,
    /// Since its last record was written.
    pub age: Duration,
}

/// Measures files.
pub(crate) fn measure(files: Vec<LogFile>, now: SystemTime) -> io::Result<Vec<FileAge>> {
    let measured = files.into_iter().map(|file| {
        let about = fs::symlink_metadata(&file.path)?;
        // A file from the future is new.
        let age = now.duration_since(about.modified()?).unwrap_or_default();
        Ok(FileAge { file, bytes: about.len(), age })
    });
    measured.collect()
}

/// The files to remove, oldest first. `files` are all files, oldest first; the last one is in use.
pub(crate) fn expired(
    files: &[FileAge],
    max_age: Duration,
    max_total_bytes: u64,
) -> Vec<ExpiredFile> {
    let mut total: u64 = files.iter().map(|file| file.bytes).sum();
    let mut expired = Vec::new();
    for (one, next) in files.iter().zip(files.iter().skip(1)) {
        if one.age <= max_age && total <= max_total_bytes {
            break;
        }
        total = total.saturating_sub(one.bytes);
        let through = next.file.first.saturating_sub(1);
        expired.push(ExpiredFile { file: one.file.clone(), bytes: one.bytes, through });
    }
    expired
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_go_first_and_the_last_file_stays() {
        const DAY: Duration = Duration::from_secs(86_400);
        let file = |first: u64, days: u32| FileAge {
            file: LogFile { path: format!("audit-{first}.jsonl").into(), first },
            bytes: 10,
            age: days * DAY,
        };
        let files = [file(1, 5), file(4, 3), file(9, 2), file(11, 9)];
        for (max_days, max_bytes, removed) in [
            (90, 40, vec![]),
            (90, 39, vec![1]),
            (90, 20, vec![1, 4]),
            (90, 0, vec![1, 4, 9]),
            (4, 40, vec![1]),
            // A younger file before an older one stays, and so does what follows it.
            (2, 40, vec![1, 4]),
            (1, 40, vec![1, 4, 9]),
        ] {
            let found = expired(&files, max_days * DAY, max_bytes);
            let firsts: Vec<u64> = found.iter().map(|one| one.file.first).collect();
            assert_eq!(firsts, removed, "{max_days} days, {max_bytes} bytes");
        }
        assert_eq!(expired(&files, 4 * DAY, 40)[0].through, 3);
    }
}

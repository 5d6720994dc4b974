//! Worker programs on disk. The binary contains them and writes them under a name with a hash of their
//! content, so nodes of different releases never share a file.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// One file of a worker program.
pub(super) type EmbeddedFile = (&'static str, &'static [u8]);

/// Writes `files` into `dir/NAME-HASH/` unless they are there, and returns that directory.
pub(super) fn lay_out(dir: &Path, name: &str, files: &[EmbeddedFile]) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let root = dir.join(format!("{name}-{:016x}", hasher.finish()));
    for (path, content) in files {
        let path = root.join(path);
        if std::fs::read(&path).is_ok_and(|there| there == *content) {
            continue;
        }
        std::fs::create_dir_all(path.parent().unwrap_or(&root))?;
        // A worker that starts meanwhile sees the old file or the new one, never a partial one.
        let partial = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&partial, content)?;
        std::fs::rename(&partial, &path)?;
    }
    Ok(root)
}

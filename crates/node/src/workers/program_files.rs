//! Worker programs on disk. The binary contains them and writes them under a name with a hash of their
//! content, so nodes of different releases never share a file.

use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// One file of a worker program.
pub(super) type EmbeddedFile = (&'static str, &'static [u8]);

/// The program with the workers that are written in Rust.
const RUST_PROGRAM: EmbeddedFile =
    ("windlass-worker", include_bytes!(concat!(env!("OUT_DIR"), "/windlass-worker")));

/// The files of the workers that are written in JavaScript.
const JAVASCRIPT: &[EmbeddedFile] = include!(concat!(env!("OUT_DIR"), "/javascript_files.rs"));

/// The permissions of the program: everybody can run it.
const PROGRAM_MODE: u32 = 0o755;

/// The workers that are written in Rust, on disk.
#[derive(Debug, Clone)]
pub(super) struct RustWorkers {
    pub root: PathBuf,
}

impl RustWorkers {
    /// The command of one of the workers.
    pub fn command(&self, worker: &str) -> Vec<String> {
        let program = self.root.join(RUST_PROGRAM.0).display().to_string();
        vec![program, worker.to_owned()]
    }
}

/// Writes the workers that are written in Rust below `dir`.
pub(super) fn rust_workers(dir: &Path) -> io::Result<RustWorkers> {
    let root = lay_out(dir, "rust", &[RUST_PROGRAM])?;
    let program = root.join(RUST_PROGRAM.0);
    if std::fs::metadata(&program)?.permissions().mode() & 0o111 != 0o111 {
        std::fs::set_permissions(&program, Permissions::from_mode(PROGRAM_MODE))?;
    }
    Ok(RustWorkers { root })
}

/// Writes the workers that are written in JavaScript below `dir`.
pub(super) fn javascript(dir: &Path) -> io::Result<PathBuf> {
    lay_out(dir, "javascript", JAVASCRIPT)
}

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

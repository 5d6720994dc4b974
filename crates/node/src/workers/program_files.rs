//! Worker programs on disk. The binary contains them and writes them under a name with a hash of their
//! content, so nodes of different releases never share a file.

use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::failure::Failure;

/// One file of a worker program.
pub(super) type EmbeddedFile = (&'static str, &'static [u8]);

/// The program with the workers that are written in Rust.
const RUST_PROGRAM: EmbeddedFile =
    ("windlass-worker", include_bytes!(concat!(env!("OUT_DIR"), "/windlass-worker")));

/// The files of the workers that are written in JavaScript.
const JAVASCRIPT: &[EmbeddedFile] = include!(concat!(env!("OUT_DIR"), "/javascript_files.rs"));

/// The permissions of the program: everybody can run it.
const PROGRAM_MODE: u32 = 0o755;

/// A worker program that is written to disk when a session first needs it.
#[derive(Debug, Clone)]
pub(super) struct LazyProgram {
    files: &'static [EmbeddedFile],
    /// The file that is executable.
    executable: Option<&'static str>,
    root: PathBuf,
    written: Arc<Mutex<bool>>,
}

impl LazyProgram {
    /// The workers that are written in Rust.
    pub fn rust(dir: &Path) -> Self {
        Self::new(dir, "rust", &[RUST_PROGRAM], Some(RUST_PROGRAM.0))
    }

    /// The workers that are written in JavaScript.
    pub fn javascript(dir: &Path) -> Self {
        Self::new(dir, "javascript", JAVASCRIPT, None)
    }

    fn new(
        dir: &Path,
        name: &str,
        files: &'static [EmbeddedFile],
        executable: Option<&'static str>,
    ) -> Self {
        Self { files, executable, root: root_of(dir, name, files), written: Arc::default() }
    }

    /// The directory of the program, whether or not it is written.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the program. Writes the files at the first call.
    pub fn write(&self) -> Result<&Path, Failure> {
        let mut written = self.written.lock().expect("no holder of this lock can panic");
        if !*written {
            self.write_files().map_err(|error| {
                let root = self.root.display();
                let what = format_args!("cannot write the worker program {root}");
                Failure::while_making(what, &error)
            })?;
            *written = true;
        }
        Ok(&self.root)
    }

    /// The command of one of the workers that are written in Rust.
    pub fn command(&self, worker: &str) -> Result<Vec<String>, Failure> {
        let program = self.write()?.join(RUST_PROGRAM.0).display().to_string();
        Ok(vec![program, worker.to_owned()])
    }

    fn write_files(&self) -> io::Result<()> {
        write_into(&self.root, self.files)?;
        if let Some(executable) = self.executable {
            let program = self.root.join(executable);
            if std::fs::metadata(&program)?.permissions().mode() & 0o111 != 0o111 {
                std::fs::set_permissions(&program, Permissions::from_mode(PROGRAM_MODE))?;
            }
        }
        Ok(())
    }
}

/// Writes `files` into `dir/NAME-HASH/` unless they are there, and returns that directory.
pub(super) fn lay_out(dir: &Path, name: &str, files: &[EmbeddedFile]) -> io::Result<PathBuf> {
    let root = root_of(dir, name, files);
    write_into(&root, files)?;
    Ok(root)
}

fn root_of(dir: &Path, name: &str, files: &[EmbeddedFile]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    dir.join(format!("{name}-{:016x}", hasher.finish()))
}

fn write_into(root: &Path, files: &[EmbeddedFile]) -> io::Result<()> {
    for (path, content) in files {
        let path = root.join(path);
        if std::fs::read(&path).is_ok_and(|there| there == *content) {
            continue;
        }
        std::fs::create_dir_all(path.parent().unwrap_or(root))?;
        // A worker that starts meanwhile sees the old file or the new one, never a partial one.
        let partial = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&partial, content)?;
        std::fs::rename(&partial, &path)?;
    }
    Ok(())
}

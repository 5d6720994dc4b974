//! A directory that only this worker's user can read, for sockets and files that the worker shares with the process
//! that it runs.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

/// Maximum bytes of the directory's path. A unix socket's path has at most 107 bytes, and the names in the
/// directory are short.
const PATH_BYTES_MAX: usize = 90;

/// Directories besides TMPDIR in which a session may be able to make sockets: the private directories of a
/// confined session.
const OTHERS: [&str; 4] = ["/tmp", "/run", "/var/tmp", "/dev/shm"];

/// The directory of one worker.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    has_sockets: bool,
}

impl PrivateDir {
    /// Makes the directory in TMPDIR, or in another directory for temporary files if this session cannot make a
    /// unix socket there.
    pub fn create(worker: &str) -> io::Result<Self> {
        let name = format!("windlass-{worker}-{}", random_hex(8)?);
        let mut without_sockets = Err(io::ErrorKind::NotFound.into());
        let parents = std::iter::once(env::temp_dir()).chain(OTHERS.map(PathBuf::from));
        for path in parents.map(|parent| parent.join(&name)) {
            let made = DirBuilder::new().mode(0o700).create(&path);
            if made.is_ok() && can_make_sockets(&path) {
                if let Ok(other) = without_sockets {
                    Self::remove(&other);
                }
                return Ok(Self { path, has_sockets: true });
            }
            without_sockets = match (without_sockets, made) {
                (Err(_), made) => made.map(|()| Self { path, has_sockets: false }),
                (kept, Ok(())) => {
                    let _ = fs::remove_dir(&path);
                    kept
                }
                (kept, Err(_)) => kept,
            };
        }
        without_sockets
    }

    /// Whether unix sockets can be made in the directory.
    pub fn has_sockets(&self) -> bool {
        self.has_sockets
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a new file that only this user can read.
    pub fn write_new(&self, name: &str, text: &[u8]) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text)?;
        Ok(path)
    }

    /// Removes the directory and everything in it.
    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn can_make_sockets(directory: &Path) -> bool {
    let path = directory.join("try");
    let made = directory.as_os_str().len() <= PATH_BYTES_MAX && UnixListener::bind(&path).is_ok();
    let _ = fs::remove_file(&path);
    made
}

/// Random bytes as hexadecimal text.
pub fn random_hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        filled += getrandom(&mut random[filled..], GetRandomFlags::empty())?;
    }
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

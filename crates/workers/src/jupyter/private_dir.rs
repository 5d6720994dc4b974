//! A directory that only this worker's user can read: connection file, sockets of the kernel, tool socket.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

/// Maximum bytes of the directory's path. A unix socket's path has at most 107 bytes, and the names in the
/// directory are short.
const PATH_BYTES_MAX: usize = 90;

/// The directory of one kernel.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
}

impl PrivateDir {
    /// Makes the directory in TMPDIR, or in `/tmp` if the path of TMPDIR is too long for a socket.
    pub fn create() -> io::Result<Self> {
        let name = format!("windlass-jupyter-{}", random_hex(8)?);
        let mut path = env::temp_dir().join(&name);
        if path.as_os_str().len() > PATH_BYTES_MAX {
            path = Path::new("/tmp").join(&name);
        }
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
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

/// Random bytes as hexadecimal text.
pub fn random_hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        filled += getrandom(&mut random[filled..], GetRandomFlags::empty())?;
    }
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

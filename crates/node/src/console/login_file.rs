//! The file `console.json` in the state directory: the port of the console, the secret that signs its logins, and the
//! logins. So logins and their address survive a restart of the node.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::logins::ActiveLogin;

/// The version of the file. A file of another version is not used: its logins end.
const VERSION: u32 = 1;

/// What the file holds.
#[derive(Serialize, Deserialize)]
pub(super) struct LoginRecords {
    version: u32,
    pub port: Option<u16>,
    pub secret: String,
    pub logins: Vec<ActiveLogin>,
}

impl LoginRecords {
    pub fn new(port: Option<u16>, secret: String, logins: Vec<ActiveLogin>) -> Self {
        Self { version: VERSION, port, secret, logins }
    }

    /// `None` if there is no file.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let records: Self = serde_json::from_slice(&bytes)?;
        if records.version != VERSION {
            let version = records.version;
            return Err(io::Error::other(format!("version {version} is not {VERSION}")));
        }
        Ok(Some(records))
    }

    /// Replaces the file in one step. After a crash of the machine the file can be damaged: then all logins have ended.
    fn write(&self, path: &Path) -> io::Result<()> {
        let fresh = path.with_extension("json.new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(fresh, path)
    }
}

/// What the file should hold, as it was at one moment.
pub(super) struct LoginSnapshot {
    /// Later snapshots have higher numbers. The first number is 1.
    pub number: u64,
    pub records: LoginRecords,
}

/// Writes the file, for threads that may wait for the disk.
pub(super) struct LoginFile {
    path: PathBuf,
    /// The number of the snapshot that the file holds; 0 if this node has written none.
    written: Mutex<u64>,
}

impl LoginFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path, written: Mutex::new(0) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None` if there is no file.
    pub fn read(&self) -> io::Result<Option<LoginRecords>> {
        LoginRecords::read(&self.path)
    }

    /// Writes the snapshot, unless the file holds a later one.
    pub fn write(&self, snapshot: &LoginSnapshot) -> io::Result<()> {
        let mut written = self.lock();
        if snapshot.number > *written {
            snapshot.records.write(&self.path)?;
            *written = snapshot.number;
        }
        Ok(())
    }

    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Waits for the write in progress. No write begins while the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, u64> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_snapshot_does_not_replace_a_later_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = LoginFile::new(dir.path().join("console.json"));
        for (number, port, expected) in [(2, 20, 20), (1, 10, 20), (2, 11, 20), (3, 30, 30)] {
            let records = LoginRecords::new(Some(port), String::new(), Vec::new());
            file.write(&LoginSnapshot { number, records }).unwrap();
            assert_eq!(file.read().unwrap().unwrap().port, Some(expected), "{number}");
        }
        file.remove().unwrap();
        assert!(file.read().unwrap().is_none());
    }
}

//! The file `fleet-cordon.json` in the state directory: whether a user has cordoned this node. A cordoned node takes no
//! new sessions, also after a restart, and serves the sessions that it has.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct CordonRecord {
    version: u32,
    cordoned: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct CordonFile {
    path: PathBuf,
    is_on: AtomicBool,
    /// Held while the file is written.
    writing: Mutex<()>,
}

impl CordonFile {
    /// Reads the file. A file that cannot be read counts as a cordon: the user may have set one.
    pub fn load(state_dir: &Path) -> Self {
        let path = state_dir.join("fleet-cordon.json");
        let is_on = match fs::read(&path) {
            Ok(bytes) => is_cordoned(&bytes).unwrap_or_else(|problem| {
                tracing::warn!(
                    path = %path.display(),
                    %problem,
                    "the file of the cordon cannot be read, so the node counts as cordoned; `windlass fleet uncordon` \
                     writes it anew"
                );
                true
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the file of the cordon cannot be read, so the node counts as cordoned");
                true
            }
        };
        Self { path, is_on: AtomicBool::new(is_on), writing: Mutex::default() }
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Sets or lifts the cordon. It is on the disk when this returns. Blocks.
    pub fn set(&self, is_on: bool) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let record = CordonRecord { version: VERSION, cordoned: is_on };
        let fresh = self.path.with_extension("json.new");
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(&serde_json::to_vec(&record).map_err(io::Error::other)?)?;
        file.sync_all()?;
        fs::rename(fresh, &self.path)?;
        if let Some(dir) = self.path.parent() {
            fs::File::open(dir)?.sync_all()?;
        }
        self.is_on.store(is_on, Ordering::Relaxed);
        Ok(())
    }
}

fn is_cordoned(bytes: &[u8]) -> Result<bool, String> {
    let record: CordonRecord = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match record.version {
        VERSION => Ok(record.cordoned),
        other => Err(format!("it has version {other}, and this release reads {VERSION}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_survives_a_restart_until_it_is_lifted() {
        let dir = tempfile::tempdir().unwrap();
        let first = CordonFile::load(dir.path());
        assert!(!first.is_on());
        first.set(true).unwrap();
        assert!(first.is_on());
        let second = CordonFile::load(dir.path());
        assert!(second.is_on());
        second.set(false).unwrap();
        assert!(!CordonFile::load(dir.path()).is_on());
    }

    #[test]
    fn a_file_that_cannot_be_read_counts_as_a_cordon() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{}", r#"{"version":2,"cordoned":false}"#, "not json"] {
            fs::write(dir.path().join("fleet-cordon.json"), text).unwrap();
            let file = CordonFile::load(dir.path());
            assert!(file.is_on(), "{text:?}");
            file.set(false).unwrap();
            assert!(!CordonFile::load(dir.path()).is_on());
        }
    }
}

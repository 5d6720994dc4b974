//! The file `fleet.json` in the state directory: which installation this is, which generation of sessions it has, and
//! when its lease was last renewed. A node that starts again knows from it whether its sessions are still its own.
//!
//! The time is one of the machine's clock since its start, so it holds for one start of the machine. After another start
//! no session lives, and the node begins a new generation.
//!
//! The file names its directory by the directory's inode. A copy of the directory is another installation: the node of
//! the first one may still run.
//!
//! A record is written over the one before it. So a full disk does not keep the node from writing it, and a power failure
//! leaves one of the two.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass_lifecycle::fleet::ClockMs;
use windlass_protocol::Generation;
use windlass_protocol::fleet::InstallationId;

const VERSION: u32 = 1;

/// The file in the state directory.
const FILE: &str = "fleet.json";

/// The size of the file. A disk writes so many bytes, a sector, as a whole.
const FILE_BYTES: usize = 512;

/// The kernel's id of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StandingFileError {
    #[error("cannot {act} {}: {cause}", path.display())]
    Io { act: &'static str, path: PathBuf, cause: io::Error },
    #[error(
        "{} cannot be read: {problem}. Without it the node does not know whether its sessions are still its own. End them \
         (`windlass down`), remove the file, and start the node again", path.display()
    )]
    Unreadable { path: PathBuf, problem: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StandingRecord {
    version: u32,
    installation: InstallationId,
    /// The inode of the state directory.
    #[serde(default)]
    directory: Option<u64>,
    /// The start of the machine in which the lease was renewed.
    boot_id: String,
    generation: Option<Generation>,
    renewed_at_ms: Option<u64>,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct StandingFile {
    path: PathBuf,
    installation: InstallationId,
    directory: u64,
    boot_id: String,
}

/// A generation whose sessions may still live, and when its lease was last renewed.
pub(super) type Resumed = (Generation, ClockMs);

impl StandingFile {
    /// Reads the file, or makes it.
    pub fn load(state_dir: &Path) -> Result<(Self, Option<Resumed>), StandingFileError> {
        let path = state_dir.join(FILE);
        let failed = |act, path: &Path| {
            let path = path.to_owned();
            move |cause| StandingFileError::Io { act, path, cause }
        };
        let directory = fs::metadata(state_dir).map_err(failed("read", state_dir))?.ino();
        let boot_id = fs::read_to_string(BOOT_ID).map_err(failed("read", Path::new(BOOT_ID)))?;
        let boot_id = boot_id.trim().to_owned();
        let record = match fs::read_to_string(&path) {
            Ok(text) => Some(parse(&path, &text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(failed("read", &path)(cause)),
        };
        let record = record.filter(|record| {
            let is_original = record.directory.is_none_or(|of| of == directory);
            if !is_original {
                tracing::warn!(
                    path = %path.display(),
                    "the state directory is a copy: this node waits until the fleet has declared the node of the first \
                     directory lost"
                );
            }
            is_original
        });
        let resumed = record.as_ref().filter(|record| record.boot_id == boot_id);
        let resumed =
            resumed.and_then(|record| Some((record.generation?, ClockMs(record.renewed_at_ms?))));
        let installation = record.as_ref().map(|record| record.installation);
        let file = Self {
            installation: installation.unwrap_or_else(|| InstallationId(random())),
            path,
            directory,
            boot_id,
        };
        if record.is_none() {
            file.save(None).map_err(failed("write", &file.path))?;
        }
        Ok((file, resumed))
    }

    /// Ends the generation of a node that starts without a fleet. Its sessions go on. If the node joins a fleet again, its
    /// old, expired lease must not end these sessions.
    pub fn end_generation(state_dir: &Path) -> Result<(), StandingFileError> {
        if !state_dir.join(FILE).exists() {
            return Ok(());
        }
        let (file, resumed) = Self::load(state_dir)?;
        if resumed.is_none() {
            return Ok(());
        }
        file.save(None).map_err(|cause| {
            let path = file.path.clone();
            StandingFileError::Io { act: "write", path, cause }
        })
    }

    pub fn installation(&self) -> InstallationId {
        self.installation
    }

    /// Keeps the generation and its last renewal. A renewal that is not kept makes the node give up earlier after a
    /// restart, so nothing waits for the disk.
    pub fn save(&self, resumed: Option<Resumed>) -> io::Result<()> {
        let record = StandingRecord {
            version: VERSION,
            installation: self.installation,
            directory: Some(self.directory),
            boot_id: self.boot_id.clone(),
            generation: resumed.map(|(generation, _)| generation),
            renewed_at_ms: resumed.map(|(_, renewed_at)| renewed_at.0),
        };
        let mut bytes = serde_json::to_vec(&record).map_err(io::Error::other)?;
        bytes.resize(bytes.len().max(FILE_BYTES), b' ');
        if self.write_over(&bytes)? {
            return Ok(());
        }
        let new = self.path.with_extension("json.new");
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(&bytes)?;
        // Without a sync, a power failure after the rename can leave an empty file under this name.
        file.sync_all()?;
        fs::rename(new, &self.path)
    }

    /// Writes over the record that is there. Returns false if there is none of that size.
    fn write_over(&self, bytes: &[u8]) -> io::Result<bool> {
        let file = match fs::OpenOptions::new().write(true).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() != bytes.len() as u64 {
            return Ok(false);
        }
        file.write_all_at(bytes, 0)?;
        Ok(true)
    }
}

fn parse(path: &Path, text: &str) -> Result<StandingRecord, StandingFileError> {
    let unreadable =
        |problem: String| StandingFileError::Unreadable { path: path.to_owned(), problem };
    let record: StandingRecord =
        serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
    match record.version {
        VERSION => Ok(record),
        other => {
            Err(unreadable(format!("it has version {other}, and this release reads {VERSION}")))
        }
    }
}

/// A random number that no other node has.
pub(super) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes, flags) {
        Ok(_) => u64::from_be_bytes(bytes),
        // Only a kernel older than 3.17 has no random numbers.
        Err(_) => crate::clock::now_ms() ^ (u64::from(std::process::id()) << 40),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_kept_for_this_start_of_the_machine_only() {
        let dir = tempfile::tempdir().unwrap();
        let (file, none) = StandingFile::load(dir.path()).unwrap();
        assert_eq!(none, None);
        let resumed = Some((Generation(7), ClockMs(1_234)));
        file.save(resumed).unwrap();
        let (again, found) = StandingFile::load(dir.path()).unwrap();
        assert_eq!((again.installation(), found), (file.installation(), resumed));
        let text = fs::read_to_string(&again.path).unwrap();
        fs::write(&again.path, text.replace(&again.boot_id, "another start")).unwrap();
        let (after_reboot, found) = StandingFile::load(dir.path()).unwrap();
        assert_eq!((after_reboot.installation(), found), (file.installation(), None));
    }

    #[test]
    fn a_record_is_written_over_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = StandingFile::load(dir.path()).unwrap();
        let inode = || fs::metadata(&file.path).unwrap().ino();
        let first = inode();
        let longest = Some((Generation(u64::MAX), ClockMs(u64::MAX)));
        for resumed in [longest, None, Some((Generation(7), ClockMs(1)))] {
            file.save(resumed).unwrap();
            let (_, found) = StandingFile::load(dir.path()).unwrap();
            assert_eq!((found, inode()), (resumed, first));
        }
        // An earlier release has written a shorter file.
        let text = fs::read_to_string(&file.path).unwrap();
        fs::write(&file.path, text.trim_end()).unwrap();
        file.save(longest).unwrap();
        let (_, found) = StandingFile::load(dir.path()).unwrap();
        assert_eq!(found, longest);
        assert_eq!(fs::metadata(&file.path).unwrap().len(), FILE_BYTES as u64);
    }

    #[test]
    fn a_start_without_a_fleet_ends_the_generation_and_keeps_the_installation() {
        let dir = tempfile::tempdir().unwrap();
        StandingFile::end_generation(dir.path()).unwrap();
        assert!(!dir.path().join(FILE).exists());
        let (file, _) = StandingFile::load(dir.path()).unwrap();
        file.save(Some((Generation(7), ClockMs(1_234)))).unwrap();
        StandingFile::end_generation(dir.path()).unwrap();
        let (again, resumed) = StandingFile::load(dir.path()).unwrap();
        assert_eq!((again.installation(), resumed), (file.installation(), None));
    }

    #[test]
    fn a_copy_of_the_directory_is_another_installation() {
        let (first, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (file, _) = StandingFile::load(first.path()).unwrap();
        file.save(Some((Generation(7), ClockMs(1_234)))).unwrap();
        fs::copy(&file.path, copy.path().join("fleet.json")).unwrap();
        let (copied, resumed) = StandingFile::load(copy.path()).unwrap();
        assert_ne!(copied.installation(), file.installation());
        assert_eq!(resumed, None);
        let (again, _) = StandingFile::load(copy.path()).unwrap();
        assert_eq!(again.installation(), copied.installation());
    }

    #[test]
    fn a_file_of_an_earlier_release_is_this_installations() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = StandingFile::load(dir.path()).unwrap();
        let text = fs::read_to_string(&file.path).unwrap();
        let earlier = text.replace(&format!("\"directory\":{},", file.directory), "");
        assert_ne!(earlier, text);
        fs::write(&file.path, earlier).unwrap();
        let (again, _) = StandingFile::load(dir.path()).unwrap();
        assert_eq!(again.installation(), file.installation());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_a_new_node() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{}", "{\"version\":2}"] {
            fs::write(dir.path().join("fleet.json"), text).unwrap();
            let opened = StandingFile::load(dir.path());
            assert!(matches!(opened, Err(StandingFileError::Unreadable { .. })), "{text}");
        }
    }
}

//! The package environments on the disk: `packages/NAME` in the state directory, with `environment.json`, which only the
//! node can write, and `build`, the workspace of the session that built the environment. An environment that is removed
//! first gets a name that begins with `.removed-`, which no environment can have. Its files are removed after that.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use windlass_beneath::Directory;
use windlass_protocol::SessionId;
use windlass_protocol::packages::{
    CreatePackageEnvironment, LOCK_BYTES_MAX, PackageEnvironmentState, check_name,
};

use crate::config::Config;
use crate::session_dirs::{self, inside};

/// The version of `environment.json`.
const VERSION: u32 = 1;

/// Maximum bytes of `environment.json`: two lock files, of which a byte takes at most six bytes in JSON, and 4 MiB for the
/// rest.
const RECORD_BYTES_MAX: u64 = (2 * 6 * LOCK_BYTES_MAX + 4 * 1024 * 1024) as u64;

/// The prefix of the names of environments that are being removed.
const REMOVED_PREFIX: &str = ".removed-";

/// Maximum number of names that are tried for one environment that is removed.
const REMOVED_NAMES_MAX: usize = 1000;

const RECORD: &str = "environment.json";
const RECORD_BEFORE: &str = "environment.json.new";
const BUILD: &str = "build";
const VENV: &str = "venv";
const ORDER: &str = "order.json";
const REQUIREMENTS: &str = "requirements.txt";
const LOCK: &str = "lock.txt";

/// What `environment.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub version: u32,
    pub state: PackageEnvironmentState,
    pub packages: Vec<String>,
    /// The lock file of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_lock: Option<String>,
    pub allow_source_builds: bool,
    /// The interpreter that the environment is made with.
    pub python: PathBuf,
    pub created_at_ms: u64,
    pub used_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// All packages with version and hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
}

/// What the build's program reads.
#[derive(Debug, Serialize)]
struct BuildOrder<'a> {
    uv: Option<&'a Path>,
    locked: bool,
    allow_source_builds: bool,
}

impl Record {
    pub fn new(request: &CreatePackageEnvironment, python: PathBuf, now_ms: u64) -> Self {
        let mut packages = request.packages.clone();
        packages.sort();
        packages.dedup();
        Self {
            version: VERSION,
            state: PackageEnvironmentState::Building,
            packages,
            given_lock: request.lock.clone(),
            allow_source_builds: request.allow_source_builds,
            python,
            created_at_ms: now_ms,
            used_at_ms: now_ms,
            build: None,
            error: None,
            lock: None,
        }
    }

    /// Whether both were made by the same request, with the same interpreter.
    pub fn is_same_request(&self, other: &Self) -> bool {
        let request = |record: &Self| {
            let Self { packages, given_lock, allow_source_builds, python, .. } = record.clone();
            (packages, given_lock, allow_source_builds, python)
        };
        request(self) == request(other)
    }
}

/// The directory of an environment's files.
fn directory_of(config: &Config, name: &str) -> PathBuf {
    config.packages_dir().join(name)
}

/// The workspace of the session that builds an environment.
pub(super) fn build_dir(config: &Config, name: &str) -> PathBuf {
    directory_of(config, name).join(BUILD)
}

/// The virtual environment. Its content was written by a session.
pub(super) fn venv_dir(config: &Config, name: &str) -> PathBuf {
    build_dir(config, name).join(VENV)
}

/// The directory of the installers' caches. Sessions that build environments of wheels can write it.
pub(super) fn cache_dir(config: &Config) -> PathBuf {
    config.packages_dir().join(".cache")
}

/// What is in the directory of the environments.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub records: Vec<(String, Record)>,
    /// Directories that belong to no environment, under names that no environment can have.
    pub removed: Vec<PathBuf>,
}

/// Reads the records of all environments. A directory without a readable record is moved away. One whose record has
/// another version or is too long is left out and logged.
pub(super) fn load(config: &Config) -> Stored {
    let mut stored = Stored::default();
    let opened = inside(config, &config.packages_dir())
        .and_then(|path| session_dirs::state(config)?.directory(path));
    let names = match opened.and_then(|directory| directory.names()) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return stored,
        Err(error) => {
            tracing::warn!(%error, "cannot list the package environments");
            return stored;
        }
    };
    for name in names.iter().filter_map(|name| name.to_str()) {
        if name.starts_with(REMOVED_PREFIX) {
            stored.removed.push(config.packages_dir().join(name));
        } else if check_name(name).is_ok() {
            match read(config, name) {
                Ok(record) => stored.records.push((name.to_owned(), record)),
                Err(error) if error.is_unusable() => {
                    tracing::warn!(name, %error, "remove a package environment");
                    stored.removed.extend(move_away(config, name).unwrap_or_default());
                }
                Err(error) => {
                    tracing::warn!(name, %error, "ignore a package environment");
                }
            }
        }
    }
    stored
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("cannot read the record: {0}")]
    Io(#[from] io::Error),
    #[error("the record is not valid: {0}")]
    Invalid(#[from] serde_json::Error),
    #[error("the record has version {0}")]
    OtherVersion(u64),
    #[error("the record is longer than {RECORD_BYTES_MAX} bytes")]
    TooLong,
}

impl RecordError {
    /// Whether no release can use the environment.
    fn is_unusable(&self) -> bool {
        match self {
            Self::Io(error) => error.kind() == io::ErrorKind::NotFound,
            Self::Invalid(_) => true,
            Self::OtherVersion(_) | Self::TooLong => false,
        }
    }
}

/// The part of a record that every version has.
#[derive(Debug, Deserialize)]
struct RecordVersion {
    version: u64,
}

fn read(config: &Config, name: &str) -> Result<Record, RecordError> {
    let path = directory_of(config, name).join(RECORD);
    let file = session_dirs::state(config)?.file(inside(config, &path)?)?;
    let mut text = Vec::new();
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > RECORD_BYTES_MAX {
        return Err(RecordError::TooLong);
    }
    let RecordVersion { version } = serde_json::from_slice(&text)?;
    match version == u64::from(VERSION) {
        true => Ok(serde_json::from_slice(&text)?),
        false => Err(RecordError::OtherVersion(version)),
    }
}

/// Writes a record. After a crash the old one or the new one is there.
pub(super) fn write(config: &Config, name: &str, record: &Record) -> io::Result<()> {
    let path = directory_of(config, name);
    let directory = session_dirs::state(config)?.make_directory(inside(config, &path)?, 0o700)?;
    // An earlier node may have ended while it wrote.
    let _ = directory.remove_file(RECORD_BEFORE);
    let mut file = directory.create_file(RECORD_BEFORE, 0o600)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    file.sync_data()?;
    directory.replace(RECORD_BEFORE, &directory, RECORD)
}

/// Moves an environment to a name that no environment can have: one rename. Returns the new path, or `None` if there is
/// no such directory.
pub(super) fn move_away(config: &Config, name: &str) -> io::Result<Option<PathBuf>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let directory =
        session_dirs::state(config)?.directory(inside(config, &config.packages_dir())?)?;
    for _ in 0..REMOVED_NAMES_MAX {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let removed = format!("{REMOVED_PREFIX}{number}-{name}");
        match directory.rename(name, &directory, &removed) {
            Ok(()) => return Ok(Some(config.packages_dir().join(removed))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // An earlier node has left a directory with this number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many removed environments are on the disk"))
}

/// Removes the files of an environment that was moved away.
pub(super) fn remove_moved(config: &Config, moved: &Path) {
    session_dirs::remove(config, moved);
}

/// Makes the empty workspace of a build, with the files that the build reads.
pub(super) fn prepare_build(
    config: &Config,
    name: &str,
    record: &Record,
    uv: Option<&Path>,
) -> io::Result<()> {
    let state = session_dirs::state(config)?;
    let path = build_dir(config, name);
    let below = inside(config, &path)?;
    state.remove_tree(below)?;
    let directory = state.make_directory(below, 0o700)?;
    let order = BuildOrder {
        uv,
        locked: record.given_lock.is_some(),
        allow_source_builds: record.allow_source_builds,
    };
    directory.create_file(ORDER, 0o600)?.write_all(&serde_json::to_vec(&order)?)?;
    let requirements = match &record.given_lock {
        Some(lock) => lock.clone(),
        None => record.packages.iter().map(|package| format!("{package}\n")).collect(),
    };
    directory.create_file(REQUIREMENTS, 0o600)?.write_all(requirements.as_bytes())?;
    state.make_directory(inside(config, &cache_dir(config))?, 0o700).map(drop)
}

/// The lock file that a build has written. Packages that are built from source can write anything into it.
pub(super) fn read_lock(config: &Config, name: &str) -> io::Result<String> {
    let build = Directory::recorded(&build_dir(config, name))?;
    let mut text = Vec::new();
    build.file(OsStr::new(LOCK))?.take(LOCK_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    if text.len() > LOCK_BYTES_MAX {
        return Err(io::Error::other("the lock file is too long"));
    }
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    match text.chars().any(|char| char.is_control() && !"\n\r\t".contains(char)) {
        true => Err(io::Error::other("the lock file has control characters")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        let config = Config::new(dir.join("run"), dir.join("state"), PathBuf::new());
        std::fs::create_dir(&config.state_dir).unwrap();
        config
    }

    fn record() -> Record {
        let request = CreatePackageEnvironment { packages: vec!["six".into()], ..<_>::default() };
        Record::new(&request, PathBuf::from("/usr/bin/python3"), 1)
    }

    #[test]
    fn a_record_is_replaced_in_one_step() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        write(&config, "data", &record()).unwrap();
        // A node ended while it wrote.
        let directory = directory_of(&config, "data");
        std::fs::write(directory.join(RECORD_BEFORE), "{").unwrap();
        let later = Record { used_at_ms: 2, ..record() };
        write(&config, "data", &later).unwrap();
        assert_eq!(load(&config).records, [("data".to_owned(), later)]);
        assert!(!directory.join(RECORD_BEFORE).exists());
    }

    #[test]
    fn directories_without_a_readable_record_are_moved_away_and_another_version_stays() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        write(&config, "good", &record()).unwrap();
        write(&config, "later", &record()).unwrap();
        let later = directory_of(&config, "later").join(RECORD);
        std::fs::write(&later, r#"{"version": 2, "other": true}"#).unwrap();
        std::fs::create_dir_all(directory_of(&config, "without/build")).unwrap();
        write(&config, "torn", &record()).unwrap();
        std::fs::write(directory_of(&config, "torn").join(RECORD), "{\"version\": 1,").unwrap();
        std::fs::create_dir_all(cache_dir(&config)).unwrap();
        let stored = load(&config);
        assert_eq!(stored.records, [("good".to_owned(), record())]);
        assert_eq!(stored.removed.len(), 2, "{stored:?}");
        assert!(later.exists() && cache_dir(&config).exists());
        // The next start finds what was moved away and not removed.
        assert_eq!(load(&config).removed.len(), 2);
        stored.removed.iter().for_each(|moved| remove_moved(&config, moved));
        assert!(load(&config).removed.is_empty());
        assert!(!directory_of(&config, "without").exists());
    }

    #[test]
    fn a_record_that_is_too_long_stays() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let lock = Some("\u{1}".repeat(LOCK_BYTES_MAX));
        let longest = Record { given_lock: lock.clone(), lock, ..record() };
        write(&config, "longest", &longest).unwrap();
        write(&config, "longer", &record()).unwrap();
        let longer = directory_of(&config, "longer").join(RECORD);
        std::fs::write(&longer, vec![b' '; RECORD_BYTES_MAX as usize + 1]).unwrap();
        let stored = load(&config);
        assert_eq!(stored.records.len(), 1);
        assert_eq!(stored.records[0].1, longest);
        assert_eq!(stored.removed, Vec::<PathBuf>::new());
        assert!(longer.exists());
    }

    #[test]
    fn a_lock_file_is_text() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir.path().canonicalize().unwrap());
        std::fs::create_dir_all(build_dir(&config, "data")).unwrap();
        let read = |content: &[u8]| {
            std::fs::write(build_dir(&config, "data").join(LOCK), content).unwrap();
            read_lock(&config, "data").ok()
        };
        let good = "six==1.17.0 \\\r\n\t--hash=sha256:00\n# é\n";
        assert_eq!(read(good.as_bytes()).as_deref(), Some(good));
        for bad in [&b"six\x01"[..], b"six\x1b[2J", b"six\x7f", b"\xff"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(read(&vec![b'a'; LOCK_BYTES_MAX + 1]), None);
    }

    #[test]
    fn an_environment_is_moved_away_once() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        write(&config, "data", &record()).unwrap();
        let moved = move_away(&config, "data").unwrap().unwrap();
        assert!(moved.join(RECORD).exists());
        assert_eq!(move_away(&config, "data").unwrap(), None);
        write(&config, "data", &record()).unwrap();
        assert_ne!(move_away(&config, "data").unwrap().unwrap(), moved);
    }
}

//! The package environments on the disk: `packages/NAME` in the state directory, with `environment.json`, which only the
//! node can write, and `build`, the workspace of the session that built the environment.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

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

/// Maximum bytes of `environment.json`.
const RECORD_BYTES_MAX: u64 = 4 * 1024 * 1024;

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

/// Reads the records of all environments. An entry that cannot be read is left out and logged.
pub(super) fn load(config: &Config) -> Vec<(String, Record)> {
    let opened = inside(config, &config.packages_dir())
        .and_then(|path| session_dirs::state(config)?.directory(path));
    let names = match opened.and_then(|directory| directory.names()) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "cannot list the package environments");
            return Vec::new();
        }
    };
    let names =
        names.iter().filter_map(|name| name.to_str().filter(|name| check_name(name).is_ok()));
    let loaded = names.filter_map(|name| match read(config, name) {
        Ok(record) => Some((name.to_owned(), record)),
        Err(error) => {
            tracing::warn!(name, %error, "cannot read the record of a package environment");
            None
        }
    });
    loaded.collect()
}

fn read(config: &Config, name: &str) -> io::Result<Record> {
    let path = directory_of(config, name).join(RECORD);
    let file = session_dirs::state(config)?.file(inside(config, &path)?)?;
    let mut text = String::new();
    file.take(RECORD_BYTES_MAX).read_to_string(&mut text)?;
    let record: Record = serde_json::from_str(&text)?;
    match record.version {
        VERSION => Ok(record),
        other => Err(io::Error::other(format!("the record has version {other}"))),
    }
}

/// Writes a record, whole or not at all.
pub(super) fn write(config: &Config, name: &str, record: &Record) -> io::Result<()> {
    let path = directory_of(config, name);
    let directory = session_dirs::state(config)?.make_directory(inside(config, &path)?, 0o700)?;
    // An earlier node may have ended while it wrote.
    let _ = directory.remove_file(RECORD_BEFORE);
    let mut file = directory.create_file(RECORD_BEFORE, 0o600)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    let _ = directory.remove_file(RECORD);
    directory.rename(RECORD_BEFORE, &directory, RECORD)
}

/// Removes an environment with everything in it.
pub(super) fn remove(config: &Config, name: &str) {
    session_dirs::remove(config, &directory_of(config, name));
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

/// The lock file that a build has written.
pub(super) fn read_lock(config: &Config, name: &str) -> io::Result<String> {
    let build = Directory::recorded(&build_dir(config, name))?;
    let mut text = Vec::new();
    build.file(OsStr::new(LOCK))?.take(LOCK_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    if text.len() > LOCK_BYTES_MAX {
        return Err(io::Error::other("the lock file is too long"));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

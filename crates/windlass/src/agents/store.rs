//! Reads files up to a size limit, and replaces them atomically with the same mode and owner and with a
//! backup of the previous content.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::client::ConfigScope;

/// Maximum size of a configuration file. Claude Code's file also holds its history and has tens of MiB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Mode of a new user file. It may hold keys, so only its owner may read it; the clients do the same.
const PRIVATE: u32 = 0o600;

/// Mode of a new project file, before the umask. Everyone who can read the project may read it.
const SHARED: u32 = 0o666;

const BACKUP_SUFFIX: &str = ".windlass-backup";

/// The state of the backup from before the first change by Windlass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backup {
    /// There was no content to back up.
    None,
    Made,
    /// An earlier backup exists and is not overwritten.
    Kept,
    /// The file has the content of the backup again.
    Removed,
}

/// Whether a change needs a backup of the current content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupNeed {
    Copy,
    /// Windlass wrote the whole content.
    Skip,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot read {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    #[error("{path} is not UTF-8 text: byte {at} is invalid")]
    NotText { path: PathBuf, at: usize },
    #[error("{path} is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path} is a symlink to a file that does not exist")]
    Dangling { path: PathBuf },
    #[error("{path} is read-only")]
    ReadOnly { path: PathBuf },
    #[error("another program changed {path} at the same time")]
    Changed { path: PathBuf },
    #[error("cannot keep the owner of {path}: {cause}")]
    Owner { path: PathBuf, cause: io::Error },
    #[error("cannot write {path}: {cause}")]
    Write { path: PathBuf, cause: io::Error },
}

impl StoreError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "config_unreadable",
            Self::NotText { .. } | Self::TooLarge { .. } | Self::Dangling { .. } => {
                "config_invalid"
            }
            Self::ReadOnly { .. } | Self::Owner { .. } | Self::Write { .. } => "config_unwritable",
            Self::Changed { .. } => "config_changed",
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Self::Read { .. } => {
                "make the file readable for your user, or run this as its owner".to_owned()
            }
            Self::NotText { .. } => "save the file as UTF-8 in an editor".to_owned(),
            Self::TooLarge { .. } => {
                "add the entry by hand; --dry-run in an empty HOME shows it".to_owned()
            }
            Self::Dangling { .. } => "remove the symlink, or create its target".to_owned(),
            Self::ReadOnly { .. } => {
                "if another program manages the file (a dotfile or package manager), add the entry there; \
                 --dry-run shows it. Otherwise run: chmod u+w on the file"
                    .to_owned()
            }
            Self::Changed { .. } => "run this again".to_owned(),
            Self::Owner { .. } => "run this as the owner of the file".to_owned(),
            Self::Write { .. } => {
                "check the permissions and the free space of the directory; --dry-run shows what to add \
                 by hand"
                    .to_owned()
            }
        }
    }
}

/// The text of the file, or `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<String>, StoreError> {
    let failed = |cause| StoreError::Read { path: path.to_owned(), cause };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match fs::symlink_metadata(path) {
                Ok(_) => Err(StoreError::Dangling { path: path.to_owned() }),
                Err(_) => Ok(None),
            };
        }
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(StoreError::TooLarge { path: path.to_owned() });
    }
    let text = String::from_utf8(bytes).map_err(|error| StoreError::NotText {
        path: path.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })?;
    Ok(Some(text))
}

/// The path of the backup of a file.
pub fn backup_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(BACKUP_SUFFIX);
    name.into()
}

/// Replaces the content `before` with `after`. Fails if the file has another content by now. For a symlink,
/// changes its target and keeps the symlink.
pub fn replace(
    path: &Path,
    before: Option<&str>,
    after: &str,
    (scope, backup_need): (ConfigScope, BackupNeed),
) -> Result<Backup, StoreError> {
    let failed = |cause| StoreError::Write { path: path.to_owned(), cause };
    let Some(before) = before else {
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(failed)?;
        let mode = match scope {
            ConfigScope::User => PRIVATE,
            ConfigScope::Project => SHARED,
        };
        put_new(path, after, mode)?;
        return Ok(Backup::None);
    };
    let target = path.canonicalize().map_err(failed)?;
    let old = target.metadata().map_err(failed)?;
    if old.permissions().mode() & 0o222 == 0 {
        return Err(StoreError::ReadOnly { path: path.to_owned() });
    }
    let backup = match backup_need {
        BackupNeed::Copy => back_up(path, before, &old)?,
        BackupNeed::Skip => Backup::None,
    };
    let new = prepare(&target, after, &old)?;
    ensure_unchanged(path, before)?;
    new.persist(&target).map_err(|error| failed(error.error))?;
    Ok(backup)
}

/// Removes a file that Windlass created and that has no other content.
pub fn delete(path: &Path, before: &str) -> Result<(), StoreError> {
    ensure_unchanged(path, before)?;
    fs::remove_file(path).map_err(|cause| StoreError::Write { path: path.to_owned(), cause })
}

/// Removes the backup of a file that has its original content again.
pub fn drop_backup(path: &Path) -> Result<(), StoreError> {
    let path = backup_path(path);
    fs::remove_file(&path).map_err(|cause| StoreError::Write { path, cause })
}

/// Fails if the content is no longer `before`. Clients can write their files at any time.
fn ensure_unchanged(path: &Path, before: &str) -> Result<(), StoreError> {
    match read(path)? {
        Some(now) if now == before => Ok(()),
        _ => Err(StoreError::Changed { path: path.to_owned() }),
    }
}

fn back_up(path: &Path, before: &str, old: &Metadata) -> Result<Backup, StoreError> {
    let backup = backup_path(path);
    if backup.symlink_metadata().is_ok() {
        return Ok(Backup::Kept);
    }
    let copy = prepare(&backup, before, old)?;
    match copy.persist_noclobber(&backup) {
        Ok(_) => Ok(Backup::Made),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(Backup::Kept),
        Err(error) => Err(StoreError::Write { path: backup, cause: error.error }),
    }
}

/// Writes a complete, synced temporary file beside `path`. The caller renames it.
fn prepare(path: &Path, text: &str, old: &Metadata) -> Result<tempfile::NamedTempFile, StoreError> {
    let failed = |cause| StoreError::Write { path: path.to_owned(), cause };
    let file = fill(path, text, PRIVATE).map_err(failed)?;
    let made = file.as_file().metadata().map_err(failed)?;
    if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
        std::os::unix::fs::fchown(file.as_file(), Some(old.uid()), Some(old.gid()))
            .map_err(|cause| StoreError::Owner { path: path.to_owned(), cause })?;
    }
    // Set the mode after the owner, because a change of owner can clear mode bits.
    let mode = fs::Permissions::from_mode(old.permissions().mode() & 0o7777);
    file.as_file().set_permissions(mode).map_err(failed)?;
    Ok(file)
}

fn put_new(path: &Path, text: &str, mode: u32) -> Result<(), StoreError> {
    let file = fill(path, text, mode);
    let file = file.map_err(|cause| StoreError::Write { path: path.to_owned(), cause })?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            Err(StoreError::Changed { path: path.to_owned() })
        }
        Err(error) => Err(StoreError::Write { path: path.to_owned(), cause: error.error }),
    }
}

fn fill(path: &Path, text: &str, mode: u32) -> io::Result<tempfile::NamedTempFile> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".windlass-")
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

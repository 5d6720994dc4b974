//! The files themselves: read with a limit, written whole or not at all, with their mode and owner,
//! and with a copy of what was there before.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::client::Scope;

/// Larger files are no configuration. Claude Code's, which holds its history too, has tens of MiB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A user's configuration may hold keys: a new file is for its owner only, as the clients make it.
const PRIVATE: u32 = 0o600;

/// A project's file is read by whoever reads the project, within the umask.
const SHARED: u32 = 0o666;

const BACKUP_SUFFIX: &str = ".windlass-backup";

/// What there is of a copy of the file from before our first change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backup {
    /// Nothing was there to keep.
    None,
    Made,
    /// An earlier one, which is not overwritten.
    Kept,
    /// The file is again what it was a copy of.
    Removed,
}

/// Whether what is there is worth a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    Copy,
    /// It is all our own.
    Nothing,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot read {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    #[error("{path} is not UTF-8 text, from byte {at} on")]
    NotText { path: PathBuf, at: usize },
    #[error("{path} is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path} is a link that leads nowhere")]
    Dangling { path: PathBuf },
    #[error("{path} is read-only")]
    ReadOnly { path: PathBuf },
    #[error("{path} was changed by another program at the same moment")]
    Changed { path: PathBuf },
    #[error("cannot give the new {path} the owner of the old one: {cause}")]
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
            Self::Read { .. } => "make it readable to you, or run this as its owner".to_owned(),
            Self::NotText { .. } => "save it as UTF-8 in an editor".to_owned(),
            Self::TooLarge { .. } => {
                "add the entry by hand; --dry-run in an empty HOME shows it".to_owned()
            }
            Self::Dangling { .. } => "remove the link, or make the file that it names".to_owned(),
            Self::ReadOnly { .. } => {
                "if another program keeps it (a dotfile or package manager), add the entry there; \
                 --dry-run shows it. Otherwise run: chmod u+w on the file"
                    .to_owned()
            }
            Self::Changed { .. } => "run this again".to_owned(),
            Self::Owner { .. } => "run this as the owner of the file".to_owned(),
            Self::Write { .. } => {
                "look at the directory's permissions and free space; --dry-run shows what to add \
                 by hand"
                    .to_owned()
            }
        }
    }
}

/// The text of the file, if there is one.
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

/// Where the copy of a file is.
pub fn backup_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(BACKUP_SUFFIX);
    name.into()
}

/// Makes the file say `after`, if it still says `before`. A link stays, and what it leads to is
/// changed.
pub fn replace(
    path: &Path,
    before: Option<&str>,
    after: &str,
    (scope, worth): (Scope, Worth),
) -> Result<Backup, StoreError> {
    let failed = |cause| StoreError::Write { path: path.to_owned(), cause };
    let Some(before) = before else {
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(failed)?;
        let mode = match scope {
            Scope::User => PRIVATE,
            Scope::Project => SHARED,
        };
        put_new(path, after, mode)?;
        return Ok(Backup::None);
    };
    let target = path.canonicalize().map_err(failed)?;
    let old = target.metadata().map_err(failed)?;
    if old.permissions().mode() & 0o222 == 0 {
        return Err(StoreError::ReadOnly { path: path.to_owned() });
    }
    let backup = match worth {
        Worth::Copy => back_up(path, before, &old)?,
        Worth::Nothing => Backup::None,
    };
    let new = prepare(&target, after, &old)?;
    unchanged(path, before)?;
    new.persist(&target).map_err(|error| failed(error.error))?;
    Ok(backup)
}

/// Removes a file that we made and nobody else used.
pub fn delete(path: &Path, before: &str) -> Result<(), StoreError> {
    unchanged(path, before)?;
    fs::remove_file(path).map_err(|cause| StoreError::Write { path: path.to_owned(), cause })
}

/// Removes the copy, when the file is what it was a copy of.
pub fn drop_backup(path: &Path) -> Result<(), StoreError> {
    let path = backup_path(path);
    fs::remove_file(&path).map_err(|cause| StoreError::Write { path, cause })
}

/// The clients write their files too, and at any moment.
fn unchanged(path: &Path, before: &str) -> Result<(), StoreError> {
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

/// A file beside `path`, complete and on the disk, that only needs its name.
fn prepare(path: &Path, text: &str, old: &Metadata) -> Result<tempfile::NamedTempFile, StoreError> {
    let failed = |cause| StoreError::Write { path: path.to_owned(), cause };
    let file = fill(path, text, PRIVATE).map_err(failed)?;
    let made = file.as_file().metadata().map_err(failed)?;
    if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
        std::os::unix::fs::fchown(file.as_file(), Some(old.uid()), Some(old.gid()))
            .map_err(|cause| StoreError::Owner { path: path.to_owned(), cause })?;
    }
    // After the owner, since changing that may take bits away.
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

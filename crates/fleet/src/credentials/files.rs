//! The files of the credentials: private to their user, written whole or not at all. Never knows what is in them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::error::CredentialsError;
use super::random::random_hex;

/// The bits of a mode that give others access.
const OTHERS: u32 = 0o077;

/// Makes the directory for its user only, or checks an existing one.
pub(super) fn make_dir(dir: &Path) -> Result<(), CredentialsError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|cause| failed("make", dir, cause))?;
    check_dir(dir)
}

/// Refuses a directory that is not private to the user.
pub(super) fn check_dir(dir: &Path) -> Result<(), CredentialsError> {
    let about = match fs::metadata(dir) {
        Ok(about) => about,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Err(CredentialsError::Absent { path: dir.to_owned() });
        }
        Err(cause) => return Err(failed("read", dir, cause)),
    };
    if !about.is_dir() {
        return Err(CredentialsError::NotADirectory { path: dir.to_owned() });
    }
    check_private(dir, &about)
}

/// The text of a file to which only its user has access; `None` if there is no such file.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Option<String>, CredentialsError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(failed("read", path, cause)),
    };
    check_private(path, &file.metadata().map_err(|cause| failed("read", path, cause))?)?;
    let mut text = String::new();
    let read = (&mut file).take(bytes_max + 1).read_to_string(&mut text);
    let length = read.map_err(|cause| failed("read", path, cause))?;
    if u64::try_from(length).is_ok_and(|length| length > bytes_max) {
        let problem = format!("it is longer than {bytes_max} bytes");
        return Err(CredentialsError::Unusable { path: path.to_owned(), problem });
    }
    Ok(Some(text))
}

/// Replaces the file in one step. Another process sees the old text or the new text.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CredentialsError> {
    let beside = path.with_extension(format!("new-{}", random_hex::<8>()?));
    let written = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(|cause| {
        let _ = fs::remove_file(&beside);
        failed("write", path, cause)
    })
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), CredentialsError> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, cause)),
        _ => Ok(()),
    }
}

/// Lets one process change the files at a time. Dropping the file releases the lock.
pub(super) fn lock(path: &Path) -> Result<File, CredentialsError> {
    let opened = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path);
    let file = opened.map_err(|cause| failed("open", path, cause))?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            Err(fault) => return Err(failed("lock", path, fault.into())),
            Ok(()) => return Ok(file),
        }
    }
}

fn check_private(path: &Path, about: &fs::Metadata) -> Result<(), CredentialsError> {
    let path = path.to_owned();
    if about.uid() != rustix::process::geteuid().as_raw() {
        return Err(CredentialsError::OtherOwner { path, owner: about.uid() });
    }
    if about.mode() & OTHERS != 0 {
        return Err(CredentialsError::OpenToOthers { path, mode: about.mode() & 0o777 });
    }
    Ok(())
}

fn failed(act: &'static str, path: &Path, cause: io::Error) -> CredentialsError {
    CredentialsError::Io { act, path: path.to_owned(), cause }
}

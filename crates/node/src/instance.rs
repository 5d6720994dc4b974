//! One node per runtime directory: the lock, and the socket that goes with it.
//!
//! The lock is the kernel's (`flock`), so a dead node's is free at once and a live one's is
//! respected. A socket left by a dead node is removed only by the holder of the lock, and only
//! after a connection to it was refused.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::config::Config;

/// Why this node cannot be the one.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("another node holds {0}")]
    Locked(PathBuf),
    #[error("somebody else listens at {0}, without holding the lock")]
    SocketInUse(PathBuf),
    #[error("{0} belongs to another user, or others may write to it")]
    NotPrivate(PathBuf),
    #[error("cannot {act} {path}: {cause}")]
    Io { act: &'static str, path: PathBuf, cause: io::Error },
}

/// The claim on a runtime directory, held as long as this lives.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
    sockets: Vec<PathBuf>,
}

impl Claim {
    /// Takes the directory, or says who has it. The listener is bound and private to the user.
    pub fn take(config: &Config) -> Result<(Self, UnixListener), ClaimError> {
        for dir in [&config.runtime_dir, &config.state_dir, &config.keepers_dir()] {
            private_dir(dir)?;
        }
        let lock = lock(&config.runtime_dir.join("node.lock"))?;
        let socket = config.socket();
        let listener = listen(&socket)?;
        Ok((Self { _lock: lock, sockets: vec![socket] }, listener))
    }

    /// Listens at one more socket, which goes with the first.
    pub fn listen(&mut self, socket: PathBuf) -> Result<UnixListener, ClaimError> {
        let listener = listen(&socket)?;
        self.sockets.push(socket);
        Ok(listener)
    }

    /// Removes the sockets: new clients start the next node. The lock goes with the process.
    pub fn release(self) {
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn private_dir(dir: &Path) -> Result<(), ClaimError> {
    let failed = |act, cause| ClaimError::Io { act, path: dir.to_owned(), cause };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|cause| failed("create", cause))?;
    let metadata = std::fs::symlink_metadata(dir).map_err(|cause| failed("look at", cause))?;
    let ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
    if !ours || metadata.mode() & 0o022 != 0 {
        return Err(ClaimError::NotPrivate(dir.to_owned()));
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, ClaimError> {
    let failed = |act, cause| ClaimError::Io { act, path: path.to_owned(), cause };
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|cause| failed("open", cause))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(ClaimError::Locked(path.to_owned())),
        Err(errno) => return Err(failed("lock", errno.into())),
    }
    // For people who look; the lock itself is what counts.
    file.set_len(0).map_err(|cause| failed("write", cause))?;
    writeln!(file, "{}", std::process::id()).map_err(|cause| failed("write", cause))?;
    Ok(file)
}

fn listen(path: &Path) -> Result<UnixListener, ClaimError> {
    let failed = |act, cause| ClaimError::Io { act, path: path.to_owned(), cause };
    match UnixStream::connect(path) {
        Ok(_) => return Err(ClaimError::SocketInUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|cause| failed("remove the stale socket", cause))?;
        }
        Err(cause) => return Err(failed("connect to", cause)),
    }
    let listener = UnixListener::bind(path).map_err(|cause| failed("listen at", cause))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|cause| failed("make private", cause))?;
    listener.set_nonblocking(true).map_err(|cause| failed("set up", cause))?;
    Ok(listener)
}

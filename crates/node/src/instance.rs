//! Ensures that a runtime directory has one node: the lock, and the sockets that belong to it.
//!
//! The lock is a kernel lock (`flock`), so the kernel releases it when the node dies. Only the holder of
//! the lock removes a socket that a dead node left, and only after a connection to it was refused.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, test_kill_process};

use crate::config::Config;

/// A child that a killed node had just forked inherits the lock until it executes its program. So the
/// next node retries for this long, at this interval.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Why this node cannot claim the runtime directory.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("another node holds {0}")]
    Locked(PathBuf),
    #[error("somebody else listens at {0} without holding the lock; stop that process")]
    SocketInUse(PathBuf),
    #[error("the service manager listens at {passed:?}; this node's socket is {own}")]
    OtherSocket { passed: Option<PathBuf>, own: PathBuf },
    #[error("{0} belongs to another user, or other users can write to it")]
    NotPrivate(PathBuf),
    #[error("cannot {act} {path}: {cause}")]
    Io { act: &'static str, path: PathBuf, cause: io::Error },
}

/// The claim on a runtime directory. The lock is held while this value lives.
#[derive(Debug)]
pub struct RuntimeDirClaim {
    _lock: File,
    sockets: Vec<PathBuf>,
}

impl RuntimeDirClaim {
    /// Claims the runtime directory. The returned listener is bound and private to the user. It is `passed`, if a service
    /// manager listens for the node; that socket stays when the node ends.
    pub fn take(
        config: &Config,
        passed: Option<UnixListener>,
    ) -> Result<(Self, UnixListener), ClaimError> {
        for dir in [&config.runtime_dir, &config.state_dir, &config.keepers_dir()] {
            private_dir(dir)?;
        }
        let lock = lock(&config.runtime_dir.join("node.lock"))?;
        let socket = config.socket();
        Ok(match passed {
            Some(passed) => {
                (Self { _lock: lock, sockets: Vec::new() }, passed_at(passed, &socket)?)
            }
            None => {
                let listener = listen(&socket)?;
                (Self { _lock: lock, sockets: vec![socket] }, listener)
            }
        })
    }

    /// Listens at one more socket, which `release` removes too.
    pub fn listen(&mut self, socket: PathBuf) -> Result<UnixListener, ClaimError> {
        let listener = listen(&socket)?;
        self.sockets.push(socket);
        Ok(listener)
    }

    /// Removes the sockets and frees the lock, so that new clients start the next node.
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
    let began = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK)
                if began.elapsed() < LOCK_WAIT && holder_is_gone(&mut file) =>
            {
                std::thread::sleep(LOCK_RETRY);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(ClaimError::Locked(path.to_owned())),
            Err(errno) => return Err(failed("lock", errno.into())),
        }
    }
    // The pid is for people and for `holder_is_gone`; only the lock decides.
    file.rewind().and_then(|()| file.set_len(0)).map_err(|cause| failed("write", cause))?;
    writeln!(file, "{}", std::process::id()).map_err(|cause| failed("write", cause))?;
    Ok(file)
}

/// Whether the process whose pid is in the lock file has ended.
fn holder_is_gone(file: &mut File) -> bool {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    let holder = read.ok().and_then(|_| Pid::from_raw(text.trim().parse().ok()?));
    holder.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// The listener of a service manager, which must be where clients of this runtime directory look.
fn passed_at(listener: UnixListener, own: &Path) -> Result<UnixListener, ClaimError> {
    let failed = |act, cause| ClaimError::Io { act, path: own.to_owned(), cause };
    let address = listener.local_addr().map_err(|cause| failed("look at", cause))?;
    if address.as_pathname() != Some(own) {
        let passed = address.as_pathname().map(Path::to_owned);
        return Err(ClaimError::OtherSocket { passed, own: own.to_owned() });
    }
    std::fs::set_permissions(own, std::fs::Permissions::from_mode(0o600))
        .map_err(|cause| failed("make private", cause))?;
    listener.set_nonblocking(true).map_err(|cause| failed("set up", cause))?;
    Ok(listener)
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

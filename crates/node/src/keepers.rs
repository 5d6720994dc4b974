//! Keeper processes as the node sees them: starting one, reaping those that ended, ending one that
//! does not answer. What goes over their link is elsewhere.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, wait};
use tokio::signal::unix::{SignalKind, signal};
use windlass_protocol::SessionId;

use crate::config::Config;

/// The longest path a unix socket can have.
const SOCKET_PATH_MAX: usize = 107;

/// Why a keeper cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the socket path {0} is longer than {SOCKET_PATH_MAX} bytes: use a shorter id")]
    PathTooLong(PathBuf),
    #[error("cannot listen at {path}: {cause}")]
    Listen { path: PathBuf, cause: io::Error },
    #[error("cannot start {program} keeper: {cause}")]
    Spawn { program: PathBuf, cause: io::Error },
}

pub(crate) fn socket_path(config: &Config, session: &SessionId) -> PathBuf {
    config.keepers_dir().join(format!("{session}.sock"))
}

/// Where keepers say what they cannot say over their link.
pub(crate) fn log_path(config: &Config) -> PathBuf {
    config.state_dir.join("keepers.log")
}

/// Starts a keeper that listens at the session's socket. The socket is there when this returns, so
/// that connecting to it needs no waiting; the keeper's own start goes on meanwhile.
pub(crate) fn start(config: &Config, session: &SessionId) -> Result<PathBuf, StartError> {
    let path = socket_path(config, session);
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(StartError::PathTooLong(path));
    }
    // A file here belongs to a session of this id that is over: ids are unique in the journal.
    remove_socket(&path);
    let listener = UnixListener::bind(&path)
        .map_err(|cause| StartError::Listen { path: path.clone(), cause })?;
    let log =
        std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(log_path(config));
    let spawned = Command::new(&config.program)
        .arg("keeper")
        .arg(config.hold.as_str())
        .env_clear()
        .current_dir("/")
        .stdin(OwnedFd::from(listener))
        .stdout(Stdio::null())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
        .spawn();
    match spawned {
        // Reaped by `reap`, like every keeper that comes to us as an orphan.
        Ok(_) => Ok(path),
        Err(cause) => {
            remove_socket(&path);
            Err(StartError::Spawn { program: config.program.clone(), cause })
        }
    }
}

pub(crate) fn remove_socket(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a keeper's socket");
    }
}

/// SIGKILL to a keeper whose link is still open, so that its pid is surely its own.
pub(crate) fn end(pid: u32) {
    let sent = Pid::from_raw(pid.cast_signed())
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .and_then(|pidfd| pidfd_send_signal(pidfd, Signal::KILL));
    if let Err(error) = sent {
        tracing::debug!(pid, %error, "the keeper had ended already");
    }
}

/// Makes keepers our children again when their first process exits, and reaps each that ends. Runs
/// as long as the node.
pub(crate) async fn reap() -> io::Result<()> {
    rustix::process::set_child_subreaper(Pid::from_raw(1))?;
    let mut ended = signal(SignalKind::child())?;
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if ended.recv().await.is_none() {
            return Ok(());
        }
    }
}

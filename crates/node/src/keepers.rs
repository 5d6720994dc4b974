//! Keeper processes as the node sees them: starting one, reaping those that ended, ending one that
//! does not answer. What goes over their link is elsewhere.
//!
//! The nursery forks keepers. Without a nursery, the node runs each as a program.

mod starting;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::signal::unix::{SignalKind, signal};
use windlass_client::stream::LeanStream;
use windlass_protocol::SessionId;

use crate::config::Config;
use crate::nursery::{Nursery, NurseryError, open_log};

pub(crate) use starting::Starting;

/// The longest path a unix socket can have.
const SOCKET_PATH_MAX: usize = 107;

/// What a session's keeper calls itself.
const KEEPER_NAME: &str = "windlass-keeper";

/// Why a keeper cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the socket path {0} is longer than {SOCKET_PATH_MAX} bytes: use a shorter id")]
    PathTooLong(PathBuf),
    #[error("cannot listen at {path}: {cause}")]
    Listen {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot start {program} keeper: {cause}")]
    Spawn {
        program: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// All keepers of this node.
#[derive(Debug)]
pub(crate) struct Keepers {
    config: Arc<Config>,
    /// Which processes keepers were started as.
    pub starting: Arc<Starting>,
    /// What keepers are forked from.
    pub nursery: Nursery,
}

pub(crate) fn socket_path(config: &Config, session: &SessionId) -> PathBuf {
    config.keepers_dir().join(format!("{session}.sock"))
}

/// Where keepers say what they cannot say over their link.
pub(crate) fn log_path(config: &Config) -> PathBuf {
    config.state_dir.join("keepers.log")
}

impl Keepers {
    pub fn new(config: Arc<Config>) -> Self {
        let starting = Arc::new(Starting::default());
        let nursery = Nursery::new(config.program.clone(), log_path(&config), starting.clone());
        Self { config, starting, nursery }
    }

    /// Where the keeper of a session listens.
    pub fn socket_of(&self, session: &SessionId) -> PathBuf {
        socket_path(&self.config, session)
    }

    /// Starts a keeper that listens at the session's socket. The socket is there when this returns, so
    /// that connecting to it needs no waiting; the keeper's own start goes on meanwhile.
    pub fn start(&self, session: &SessionId) -> Result<PathBuf, StartError> {
        let path = self.socket_of(session);
        check_path(&path)?;
        let listener = listen(&path)?;
        let Ok(log) = self.log() else {
            return self.start_program(session, path, listener, Stdio::null());
        };
        match self.nursery.keeper(listener.as_fd(), log.as_fd(), self.config.hold) {
            Ok(first) => {
                self.starting.adopt(session, first);
                Ok(path)
            }
            Err(error) => {
                tracing::warn!(%session, %error, "the keeper is started without the nursery");
                // A keeper that was forked after all must not be the one that is connected to. It
                // leaves the new socket alone, and goes since no node speaks to it.
                let listener = match error {
                    NurseryError::Lost(_) => listen(&path)?,
                    NurseryError::Absent(_) | NurseryError::Refused(_) => listener,
                };
                self.start_program(session, path, listener, Stdio::from(log))
            }
        }
    }

    /// The file for what keepers and zygotes cannot say over their sockets.
    pub fn log(&self) -> io::Result<File> {
        open_log(&log_path(&self.config))
    }

    /// Starts the keeper as a program of its own.
    fn start_program(
        &self,
        session: &SessionId,
        path: PathBuf,
        listener: UnixListener,
        log: Stdio,
    ) -> Result<PathBuf, StartError> {
        let config = &self.config;
        let mut command = Command::new(&config.program);
        command
            .arg("keeper")
            .arg(config.hold.as_str())
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(log);
        match self.starting.spawn(session, &mut command) {
            Ok(()) => Ok(path),
            Err(cause) => {
                remove_socket(&path);
                Err(StartError::Spawn { program: config.program.clone(), cause })
            }
        }
    }

    /// Ends a keeper that has not answered, and removes its socket. May wait a little for the process
    /// to be gone.
    pub fn end_unanswered(&self, session: &SessionId, socket: &Path) {
        self.starting.end(session);
        remove_socket(socket);
    }

    /// Makes keepers our children again when their first process exits, and reaps each that ends;
    /// `reaped` follows. Runs as long as the node.
    pub async fn reap(self: Arc<Self>, reaped: impl Fn()) -> io::Result<()> {
        rustix::process::set_child_subreaper(Pid::from_raw(1))?;
        let mut ended = signal(SignalKind::child())?;
        loop {
            self.starting.reap();
            reaped();
            tokio::select! {
                more = ended.recv() => if more.is_none() {
                    return Ok(());
                },
                () = self.starting.started() => {}
            }
        }
    }
}
fn listen(path: &Path) -> Result<UnixListener, StartError> {
    // A file here belongs to a session of this id that is over: ids are unique in the journal.
    remove_socket(path);
    UnixListener::bind(path).map_err(|cause| StartError::Listen { path: path.to_owned(), cause })
}
/// Whether a socket can be bound at a path.
pub(crate) fn check_path(path: &Path) -> Result<(), StartError> {
    match path.as_os_str().len() > SOCKET_PATH_MAX {
        true => Err(StartError::PathTooLong(path.to_owned())),
        false => Ok(()),
    }
}

pub(crate) fn remove_socket(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a keeper's socket");
    }
}

/// Ends keepers of twins that no session in the journal has, and removes all sockets of no session: an earlier
/// node died after a twin's keeper was there and before the twin was recorded, or while workers waited. Keepers
/// of waiting workers end by themselves with their node.
pub(crate) fn end_unknown(config: &Config, known: &[SessionId]) {
    let Ok(sockets) = std::fs::read_dir(config.keepers_dir()) else { return };
    let known: HashSet<PathBuf> = known.iter().map(|id| socket_path(config, id)).collect();
    for path in sockets.filter_map(|entry| Some(entry.ok()?.path())) {
        if !known.contains(&path) {
            end_at(&path);
        }
    }
}

/// Ends the keeper of a twin that listens at a path, if one does, and removes its socket. The kernel names the
/// process that made a socket: of a twin's, that is its keeper; of any other, a node, which is not ended.
pub(crate) fn end_at(path: &Path) {
    let maker = LeanStream::connect(path).ok().and_then(|line| line.peer_pid());
    if let Some(maker) = maker
        && let Some(handle) = Pid::from_raw(maker.cast_signed())
            .and_then(|maker| pidfd_open(maker, PidfdFlags::empty()).ok())
        && is_keeper(maker)
    {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    remove_socket(path);
}

/// Whether a process has the name that keepers of sessions give themselves.
fn is_keeper(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .is_ok_and(|name| name.trim_end() == KEEPER_NAME)
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

//! Keeper processes as the node sees them: start a keeper, reap ended keepers, kill a keeper that does
//! not answer. The link to a keeper is in `session::keeper_link`.
//!
//! The nursery forks keepers. Without a nursery, the node runs each keeper as a program.

mod processes;

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
use crate::nursery::{NurseryClient, NurseryClientError, open_log};

pub(crate) use processes::KeeperProcesses;

/// Maximum length of the path of a unix socket.
const SOCKET_PATH_MAX: usize = 107;

/// The process name that a session's keeper gives itself.
const KEEPER_NAME: &str = "windlass-keeper";

/// Why a keeper cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeeperStartError {
    #[error("the socket path {0} is longer than {SOCKET_PATH_MAX} bytes: use a shorter session id")]
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
    /// The first process of each keeper.
    pub processes: Arc<KeeperProcesses>,
    /// Forks keepers and zygotes.
    pub nursery: NurseryClient,
}

pub(crate) fn socket_path(config: &Config, session: &SessionId) -> PathBuf {
    config.keepers_dir().join(format!("{session}.sock"))
}

/// The log file of keepers, zygotes and the nursery.
pub(crate) fn log_path(config: &Config) -> PathBuf {
    config.state_dir.join("keepers.log")
}

impl Keepers {
    pub fn new(config: Arc<Config>) -> Self {
        let processes = Arc::new(KeeperProcesses::default());
        let nursery =
            NurseryClient::new(config.program.clone(), log_path(&config), processes.clone());
        Self { config, processes, nursery }
    }

    /// The socket of a session's keeper.
    pub fn socket_of(&self, session: &SessionId) -> PathBuf {
        socket_path(&self.config, session)
    }

    /// Starts a keeper that listens at the session's socket. The socket exists when this returns, so a
    /// client can connect while the keeper is still starting.
    pub fn start(&self, session: &SessionId) -> Result<PathBuf, KeeperStartError> {
        let path = self.socket_of(session);
        check_path(&path)?;
        let listener = listen(&path)?;
        let Ok(log) = self.log() else {
            return self.start_program(session, path, listener, Stdio::null());
        };
        match self.nursery.keeper(listener.as_fd(), log.as_fd(), self.config.hold) {
            Ok(first) => {
                self.processes.adopt(session, first);
                Ok(path)
            }
            Err(error) => {
                tracing::warn!(%session, %error, "starting the keeper without the nursery");
                // The lost nursery may have forked a keeper after all. That keeper must not get the
                // connection, so the node binds a new socket. The keeper ends because no node connects.
                let listener = match error {
                    NurseryClientError::Lost(_) => listen(&path)?,
                    NurseryClientError::Absent(_) | NurseryClientError::Refused(_) => listener,
                };
                self.start_program(session, path, listener, Stdio::from(log))
            }
        }
    }

    /// Opens the log file of keepers and zygotes.
    pub fn log(&self) -> io::Result<File> {
        open_log(&log_path(&self.config))
    }

    /// Starts the keeper as a program.
    fn start_program(
        &self,
        session: &SessionId,
        path: PathBuf,
        listener: UnixListener,
        log: Stdio,
    ) -> Result<PathBuf, KeeperStartError> {
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
        match self.processes.spawn(session, &mut command) {
            Ok(()) => Ok(path),
            Err(cause) => {
                remove_socket(&path);
                Err(KeeperStartError::Spawn { program: config.program.clone(), cause })
            }
        }
    }

    /// Kills a keeper that has not answered, and removes its socket. May block for a moment until the
    /// process is gone.
    pub fn end_unanswered(&self, session: &SessionId, socket: &Path) {
        self.processes.end(session);
        remove_socket(socket);
    }

    /// Makes the node a subreaper, so that keepers become its children when their first process exits, and
    /// reaps ended children. Calls `reaped` after each round. Runs as long as the node.
    pub async fn reap(self: Arc<Self>, reaped: impl Fn()) -> io::Result<()> {
        rustix::process::set_child_subreaper(Pid::from_raw(1))?;
        let mut ended = signal(SignalKind::child())?;
        loop {
            self.processes.reap();
            reaped();
            tokio::select! {
                more = ended.recv() => if more.is_none() {
                    return Ok(());
                },
                () = self.processes.started() => {}
            }
        }
    }
}

fn listen(path: &Path) -> Result<UnixListener, KeeperStartError> {
    // An existing socket belongs to an ended session of this id, because ids are unique in the journal.
    remove_socket(path);
    UnixListener::bind(path)
        .map_err(|cause| KeeperStartError::Listen { path: path.to_owned(), cause })
}

/// Checks that a path is short enough for a socket.
pub(crate) fn check_path(path: &Path) -> Result<(), KeeperStartError> {
    match path.as_os_str().len() > SOCKET_PATH_MAX {
        true => Err(KeeperStartError::PathTooLong(path.to_owned())),
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

/// Kills the keepers of twins that are not in the journal, and removes sockets without a session. They exist
/// if an earlier node died between the start of a twin's keeper and the record of the twin, or while it had
/// pooled workers. The keepers of pooled workers end by themselves when their node ends.
pub(crate) fn end_unknown(config: &Config, known: &[SessionId]) {
    let Ok(sockets) = std::fs::read_dir(config.keepers_dir()) else { return };
    let known: HashSet<PathBuf> = known.iter().map(|id| socket_path(config, id)).collect();
    for path in sockets.filter_map(|entry| Some(entry.ok()?.path())) {
        if !known.contains(&path) {
            end_at(&path);
        }
    }
}

/// Kills the keeper of a twin that listens at a path, if there is one, and removes the socket. The kernel
/// names the process that made a socket. A twin's socket was made by its keeper. Every other socket was
/// made by a node, which is not killed.
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

/// Whether a process has the name of a session's keeper.
fn is_keeper(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .is_ok_and(|name| name.trim_end() == KEEPER_NAME)
}

/// Sends SIGKILL to a keeper whose link is still open, so its pid cannot belong to another process.
pub(crate) fn end(pid: u32) {
    let sent = Pid::from_raw(pid.cast_signed())
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .and_then(|pidfd| pidfd_send_signal(pidfd, Signal::KILL));
    if let Err(error) = sent {
        tracing::debug!(pid, %error, "the keeper had ended already");
    }
}

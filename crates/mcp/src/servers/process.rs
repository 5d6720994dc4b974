//! A server process. It runs below a holder process (`windlass hold-server`). The holder ends the
//! server and all its children when the holder's standard input closes, which also happens when
//! this process ends. Owns the server's pipes and its standard error. Never waits for its exit
//! status, since the node reaps its children.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::config::ServerProgram;
use super::stderr::{ServerStderr, read_stderr};

/// The subcommand of windlass that holds a server.
pub const HOLD: &str = "hold-server";

/// Variables of the node's environment that a server gets: its user's identity and directories. A
/// server's entry names all others.
const ENVIRONMENT: &[&str] = &[
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// How long the holder may take to end everything: its two grace periods and a margin. Then it is
/// killed.
const END_WAIT: Duration = Duration::from_secs(6);

/// Why a server's process cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerStartError {
    #[error("its directory {0} does not exist")]
    NoDirectory(PathBuf),
    #[error("the holder process cannot be started: {0}")]
    Holder(#[source] io::Error),
}

/// A running server process.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    /// A pidfd of the holder's first process, the guard.
    holder: Option<OwnedFd>,
    stderr: Arc<Mutex<ServerStderr>>,
    /// Reads its standard error. That pipe closes when the holder, the last writer, has ended.
    listening: JoinHandle<()>,
}

/// The pipes from and to a server.
pub(crate) type Pipes = (pipe::Receiver, pipe::Sender);

impl ServerProcess {
    /// Starts `program` below a holder. `ours` is the windlass program.
    pub fn start(
        ours: &Path,
        name: &str,
        program: &ServerProgram,
    ) -> Result<(Self, Pipes), ServerStartError> {
        let directory = program.cwd.clone().or_else(std::env::home_dir);
        let directory = directory.unwrap_or_else(|| PathBuf::from("/"));
        if !directory.is_dir() {
            return Err(ServerStartError::NoDirectory(directory));
        }
        let kept = |name: &&str| std::env::var_os(name).map(|value| (OsString::from(*name), value));
        let mut command = Command::new(ours);
        command
            .arg(HOLD)
            .arg(&program.command)
            .args(&program.args)
            .env_clear()
            .envs(ENVIRONMENT.iter().filter_map(kept))
            .envs(&program.env)
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(ServerStartError::Holder)?;
        // The node reaps the child on this same thread, so not before this function returns.
        let holder = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .inspect_err(|error| tracing::warn!(server = name, %error, "cannot open a pidfd for an mcp server's holder"));
        let missing = || ServerStartError::Holder(io::Error::other("a pipe is missing"));
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        let to = pipe::Sender::from_owned_fd(stdin.into()).map_err(ServerStartError::Holder)?;
        let from =
            pipe::Receiver::from_owned_fd(stdout.into()).map_err(ServerStartError::Holder)?;
        let said =
            pipe::Receiver::from_owned_fd(stderr.into()).map_err(ServerStartError::Holder)?;
        let stderr = Arc::new(Mutex::new(ServerStderr::default()));
        let listening = tokio::spawn(read_stderr(said, name.to_owned(), stderr.clone()));
        Ok((Self { holder: holder.ok(), stderr, listening }, (from, to)))
    }

    /// The process id of the server, once its holder has reported it.
    pub fn pid(&self) -> Option<u32> {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).pid
    }

    /// Waits until no process of the server is left, after its pipes were dropped. Returns the end
    /// of its standard error.
    pub async fn ended(mut self) -> Option<String> {
        if timeout(END_WAIT, &mut self.listening).await.is_err() {
            // When its guard is gone, the holder kills the rest at once.
            if let Some(guard) = &self.holder {
                let _ = pidfd_send_signal(guard, Signal::KILL);
            }
            self.listening.abort();
        }
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).last()
    }
}

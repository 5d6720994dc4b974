//! Starts a node: at most one per runtime directory, whoever asks first. Owns the start lock and
//! the node's first word; never kills a node and never waits by polling.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::timeout;
use windlass_protocol::api::ApiError;

use crate::dirs::Dirs;

/// How long a client waits for another one that is starting the node.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// How long a node may take to say that it is ready.
const READY_WAIT: Duration = Duration::from_secs(30);

/// The longest first line of a node.
const READY_LINE_BYTES_MAX: u64 = 64 * 1024;

/// Bytes of the log's end that a failure shows.
const LOG_TAIL_BYTES: u64 = 2048;

/// Threads that only wait in one system call need no more.
const WAITING_STACK_BYTES: usize = 64 * 1024;

/// Why no node came up.
#[derive(Debug, thiserror::Error)]
pub enum NodeStartError {
    #[error("cannot lock {path}: {cause}")]
    Lock { path: PathBuf, cause: io::Error },
    #[error("another client has been starting the node for over {} s", LOCK_WAIT.as_secs())]
    LockBusy { path: PathBuf },
    #[error("cannot open the node's log {path}: {cause}")]
    Log { path: PathBuf, cause: io::Error },
    #[error("cannot run {program}: {cause}")]
    Spawn { program: PathBuf, cause: io::Error },
    #[error("the node did not start: {}", .0.message)]
    Refused(ApiError),
    #[error("the node ended before it was ready ({status}); the end of {log}:\n{tail}", log = log.display())]
    Died { status: String, log: PathBuf, tail: String },
    #[error("the node was not ready within {} s; the end of {log}:\n{tail}", READY_WAIT.as_secs(), log = log.display())]
    Slow { log: PathBuf, tail: String },
}

impl NodeStartError {
    pub fn remedy(&self) -> String {
        match self {
            Self::Lock { path, .. } => format!("make {} writable", path.display()),
            Self::LockBusy { path } => {
                format!("find out who holds it with: fuser {}", path.display())
            }
            Self::Log { path, .. } => format!("make {} writable", path.display()),
            Self::Spawn { .. } => "install windlass again".to_owned(),
            Self::Refused(error) => error.remedy.clone(),
            Self::Died { .. } | Self::Slow { .. } => {
                "see what it says with: windlass node --foreground".to_owned()
            }
        }
    }
}

/// The right to start the node; given back when dropped.
#[derive(Debug)]
pub(crate) struct StartLock {
    _file: File,
}

impl StartLock {
    /// Waits for the lock. The wait is a blocking one on a thread of its own, which outlives a
    /// wait that was given up and then only takes the lock to release it.
    pub(crate) async fn take(dirs: &Dirs) -> Result<Self, NodeStartError> {
        let path = dirs.start_lock();
        let failed = |cause| NodeStartError::Lock { path: path.clone(), cause };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let (tell, told) = oneshot::channel();
        waiting_thread("start-lock", move || {
            let locked = retry_interrupted(|| flock(&file, FlockOperation::LockExclusive));
            // Nobody may be listening any more; dropping the file then gives the lock back.
            let _ = tell.send(locked.map(|()| file));
        })
        .map_err(failed)?;
        match timeout(LOCK_WAIT, told).await {
            Ok(Ok(Ok(file))) => Ok(Self { _file: file }),
            Ok(Ok(Err(cause))) => Err(failed(cause)),
            Ok(Err(_)) => Err(failed(io::Error::other("the waiting thread is gone"))),
            Err(_) => Err(NodeStartError::LockBusy { path }),
        }
    }
}

fn retry_interrupted(mut act: impl FnMut() -> rustix::io::Result<()>) -> io::Result<()> {
    loop {
        match act() {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.map_err(io::Error::from),
        }
    }
}

/// A node that said it is ready.
#[derive(Debug)]
pub struct LaunchedNode {
    /// The node's process.
    pub pid: u32,
    child: Child,
}

impl LaunchedNode {
    /// Waits for the process that was started, blocking.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Leaves the node to itself; a thread waits for its end so that it never stays a zombie.
    pub fn detach(mut self) {
        // Without the thread the node is a zombie between its end and ours: harmless.
        let _ = waiting_thread("node-reaper", move || {
            let _ = self.child.wait();
        });
    }
}

/// The node's first line.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ReadyLine {
    Ready {
        #[serde(rename = "ready")]
        _ready: bool,
        pid: u32,
    },
    Error {
        error: ApiError,
    },
}

/// Runs `program node` with `args` and the extra `env`, and waits until it is ready. Takes no
/// lock: a second node in the same directories refuses to start.
pub async fn launch_node(
    program: &Path,
    dirs: &Dirs,
    args: &[OsString],
    env: &[(OsString, OsString)],
) -> Result<LaunchedNode, NodeStartError> {
    let mut child = spawn(program, dirs, args, env)?;
    let word = match child.stdout.take() {
        Some(stdout) => timeout(READY_WAIT, first_line(OwnedFd::from(stdout))).await,
        None => Ok(Ok(Vec::new())),
    };
    let log = dirs.log();
    let Ok(line) = word else {
        // Nothing that never became ready may stay behind.
        let _ = child.kill();
        let _ = child.wait();
        return Err(NodeStartError::Slow { tail: tail_of(&log), log });
    };
    match line.ok().and_then(|line| serde_json::from_slice(&line).ok()) {
        Some(ReadyLine::Ready { pid, .. }) => Ok(LaunchedNode { pid, child }),
        Some(ReadyLine::Error { error }) => {
            let _ = child.wait();
            Err(NodeStartError::Refused(error))
        }
        None => {
            let _ = child.kill();
            let status = child.wait().map_or_else(|cause| cause.to_string(), |s| s.to_string());
            Err(NodeStartError::Died { status, tail: tail_of(&log), log })
        }
    }
}

fn spawn(
    program: &Path,
    dirs: &Dirs,
    args: &[OsString],
    env: &[(OsString, OsString)],
) -> Result<Child, NodeStartError> {
    let path = dirs.log();
    rotate_log(&path);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .map_err(|cause| NodeStartError::Log { path, cause })?;
    Command::new(program)
        .arg("node")
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &dirs.runtime)
        .env("WINDLASS_STATE_DIR", &dirs.state)
        // A secret of the client's: the node has its own, in a file.
        .env_remove("WINDLASS_TOKEN")
        .envs(env.iter().map(|(name, value)| (name, value)))
        // The node must not keep the directory of whoever happened to start it.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|cause| NodeStartError::Spawn { program: program.to_owned(), cause })
}

async fn first_line(stdout: OwnedFd) -> io::Result<Vec<u8>> {
    let stdout = pipe::Receiver::from_owned_fd(stdout)?;
    let mut line = Vec::new();
    BufReader::new(stdout.take(READY_LINE_BYTES_MAX)).read_until(b'\n', &mut line).await?;
    Ok(line)
}

/// A log past this is put aside when the next node starts; one such is kept.
const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Puts a long log aside, in the place of the one before it. A log that cannot be moved goes on.
pub fn rotate_log(log: &Path) {
    if fs::metadata(log).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        let _ = fs::rename(log, log.with_extension("log.1"));
    }
}

/// The last lines of the log, as far as they can be read.
fn tail_of(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    };
    read().unwrap_or_else(|cause| format!("(it cannot be read: {cause})"))
}

fn waiting_thread(name: &str, act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(WAITING_STACK_BYTES)
        .spawn(act)
        .map(drop)
}

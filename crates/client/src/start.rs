//! Starts a node, at most one per runtime directory. Owns the start lock and reads the node's first
//! line. Never kills a node that is ready, and never polls.

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

/// Stack size of a thread that only waits in one system call.
const WAITING_STACK_BYTES: usize = 64 * 1024;

/// Why no node started.
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
                format!("find the process that holds the lock with: fuser {}", path.display())
            }
            Self::Log { path, .. } => format!("make {} writable", path.display()),
            Self::Spawn { .. } => "install windlass again".to_owned(),
            Self::Refused(error) => error.remedy.clone(),
            Self::Died { .. } | Self::Slow { .. } => {
                "run the node in the foreground to see its messages: windlass node --foreground"
                    .to_owned()
            }
        }
    }
}

/// The right to start the node. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct StartLock {
    _file: File,
}

impl StartLock {
    /// Waits for the lock. The wait blocks a thread. That thread outlives an abandoned wait: it
    /// then takes the lock and releases it at once.
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
            // The waiting task may be gone. Dropping the file then releases the lock.
            let _ = tell.send(locked.map(|()| file));
        })
        .map_err(failed)?;
        match timeout(LOCK_WAIT, told).await {
            Ok(Ok(Ok(file))) => Ok(Self { _file: file }),
            Ok(Ok(Err(cause))) => Err(failed(cause)),
            Ok(Err(_)) => {
                Err(failed(io::Error::other("the thread that waits for the lock has ended")))
            }
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

/// A started node that has reported that it is ready.
#[derive(Debug)]
pub struct LaunchedNode {
    /// The node's process.
    pub pid: u32,
    child: Child,
}

impl LaunchedNode {
    /// Blocks until the started process has ended.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Lets the node run on its own. A thread reaps it, so that it never stays a zombie.
    pub fn detach(mut self) {
        // Without the thread the node stays a zombie until this process ends, which is harmless.
        let _ = waiting_thread("node-reaper", move || {
            let _ = self.child.wait();
        });
    }
}

/// The first line of the node's standard output.
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

/// Runs `program node` with `args` and the extra `env`, and waits until the node is ready. Takes no
/// lock: a second node in the same directories refuses to start.
pub async fn launch_node(
    program: &Path,
    dirs: &Dirs,
    args: &[OsString],
    env: &[(OsString, OsString)],
) -> Result<LaunchedNode, NodeStartError> {
    let log = NodeLog::open(dirs)?;
    let mut child = spawn(program, dirs, args, env, &log)?;
    let word = match child.stdout.take() {
        Some(stdout) => timeout(READY_WAIT, first_line(OwnedFd::from(stdout))).await,
        None => Ok(Ok(Vec::new())),
    };
    let Ok(line) = word else {
        // Do not leave a node behind that never became ready.
        let _ = child.kill();
        let _ = child.wait();
        return Err(NodeStartError::Slow { tail: log.tail(), log: log.path });
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
            Err(NodeStartError::Died { status, tail: log.tail(), log: log.path })
        }
    }
}

fn spawn(
    program: &Path,
    dirs: &Dirs,
    args: &[OsString],
    env: &[(OsString, OsString)],
    log: &NodeLog,
) -> Result<Child, NodeStartError> {
    let stderr = log
        .file
        .try_clone()
        .map_err(|cause| NodeStartError::Log { path: log.path.clone(), cause })?;
    Command::new(program)
        .arg("node")
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &dirs.runtime)
        .env("WINDLASS_STATE_DIR", &dirs.state)
        // The client's secret. The node has its token in a file.
        .env_remove("WINDLASS_TOKEN")
        .envs(env.iter().map(|(name, value)| (name, value)))
        // The node must not keep the working directory of the client that started it in use.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .map_err(|cause| NodeStartError::Spawn { program: program.to_owned(), cause })
}

async fn first_line(stdout: OwnedFd) -> io::Result<Vec<u8>> {
    let stdout = pipe::Receiver::from_owned_fd(stdout)?;
    let mut line = Vec::new();
    BufReader::new(stdout.take(READY_LINE_BYTES_MAX)).read_until(b'\n', &mut line).await?;
    Ok(line)
}

/// A longer log is renamed when the next node starts. One renamed log is kept.
const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Renames a long log to `.log.1`, in place of the previous one. If that fails, the log continues
/// to grow.
pub fn rotate_log(log: &Path) {
    if fs::metadata(log).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        let _ = fs::rename(log, log.with_extension("log.1"));
    }
}

/// The log that a started node writes.
struct NodeLog {
    path: PathBuf,
    file: File,
    /// Its length before the start.
    began: u64,
}

impl NodeLog {
    fn open(dirs: &Dirs) -> Result<Self, NodeStartError> {
        let path = dirs.log();
        rotate_log(&path);
        let open = || {
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
            let began = file.metadata()?.len();
            Ok((file, began))
        };
        match open() {
            Ok((file, began)) => Ok(Self { path, file, began }),
            Err(cause) => Err(NodeStartError::Log { path, cause }),
        }
    }

    /// The last lines that were written since the start, as far as they can be read. What earlier nodes wrote would
    /// bury the reason.
    fn tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = fs::File::open(&self.path)?;
            let length = file.metadata()?.len();
            let from = length.saturating_sub(LOG_TAIL_BYTES).max(self.began);
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        };
        read().unwrap_or_else(|cause| format!("(the log cannot be read: {cause})"))
    }
}

fn waiting_thread(name: &str, act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(WAITING_STACK_BYTES)
        .spawn(act)
        .map(drop)
}

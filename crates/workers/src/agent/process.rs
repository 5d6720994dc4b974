//! The engine's process: starts it, passes lines in both directions, and ends it with everything that it started.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf as _, BytesMut};
use rustix::fs::OFlags;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use windlass_procs::tree;
use windlass_procs::twin::kill_children_but;
use windlass_worker_kit::FD_VARIABLE;

use super::engine::EngineCommand;

/// Maximum bytes of one line of an engine. A longer line is skipped, and its size is told.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes to read at once.
const READ_BYTES: usize = 64 * 1024;

/// Bytes that may wait for an engine: a prompt with its images, and answers. Beyond this the engine is not read until
/// it reads.
const UNREAD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of the engine's standard error that the log keeps: the log begins anew at this size.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The engine's standard error, below the home.
pub const LOG_FILE: &str = "engine.log";

/// How long the end of all processes may take. They got SIGKILL, so only the kernel can delay it.
const KILL_TIME: Duration = Duration::from_secs(2);

/// How long to wait for a sign that a process has ended, before the processes are listed again.
const KILL_LOOK_TIME: Duration = Duration::from_millis(50);

/// A running engine.
#[derive(Debug)]
pub struct EngineProcess {
    child: Child,
    output: ChildStdout,
    received: BytesMut,
    /// Bytes of `received` that have no end of a line.
    searched: usize,
    /// Bytes of a line that is too long and is being skipped.
    skipped: usize,
    /// Absent when the input is closed.
    input: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// Bytes that wait until the engine reads them.
    unread: Arc<AtomicUsize>,
}

/// What an engine's process did.
#[derive(Debug)]
pub enum EngineActivity {
    Line(Line),
    /// Its standard output is closed.
    Closed,
}

/// A line of an engine's standard output.
#[derive(Debug)]
pub enum Line {
    Json {
        value: Value,
        bytes: usize,
    },
    /// Text that is not JSON, or a line over the limit.
    Other {
        bytes: usize,
    },
}

impl EngineProcess {
    /// Starts an engine in a process group of its own, in the session's workspace.
    pub fn start(program: &[String], command: &EngineCommand, home: &Path) -> io::Result<Self> {
        for (path, content) in &command.files {
            write_new(&home.join(path), content)?;
        }
        let Some((program, first)) = program.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
        };
        let mut child = Command::new(program)
            .args(first)
            .args(&command.arguments)
            .envs(command.environment.iter().filter(|(name, _)| std::env::var_os(name).is_none()))
            .env_remove(FD_VARIABLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log(home).map_or_else(|_| Stdio::null(), Stdio::from))
            .process_group(0)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        let missing = || io::Error::other("the engine has no pipes");
        let mut stdin = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        // The driver stops to read an engine that leaves too much unread.
        let unread = Arc::new(AtomicUsize::new(0));
        let waiting = unread.clone();
        let (input, mut lines) = mpsc::unbounded_channel::<Vec<u8>>();
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                // An engine that does not read any more is seen by its end.
                if stdin.write_all(&line).await.is_err() || stdin.flush().await.is_err() {
                    return;
                }
                waiting.fetch_sub(line.len(), Ordering::Relaxed);
            }
        });
        Ok(Self {
            child,
            output,
            received: BytesMut::new(),
            searched: 0,
            skipped: 0,
            input: Some(input),
            unread,
        })
    }

    /// Sends a line. Never waits.
    pub fn send(&self, line: &Value) {
        let mut bytes = line.to_string().into_bytes();
        bytes.push(b'\n');
        self.send_bytes(bytes);
    }

    /// Sends a text and closes the input. Never waits.
    pub fn send_last(&mut self, text: String) {
        self.send_bytes(text.into_bytes());
        self.input = None;
    }

    fn send_bytes(&self, bytes: Vec<u8>) {
        let Some(input) = &self.input else { return };
        self.unread.fetch_add(bytes.len(), Ordering::Relaxed);
        let _ = input.send(bytes);
    }

    /// Whether the engine leaves so much unread that nothing more of it is read.
    pub fn is_behind(&self) -> bool {
        self.unread.load(Ordering::Relaxed) > UNREAD_BYTES_MAX
    }

    /// The next line. Cancelling loses nothing.
    pub async fn next(&mut self) -> EngineActivity {
        loop {
            if let Some(line) = self.take_line() {
                return EngineActivity::Line(line);
            }
            self.received.reserve(READ_BYTES);
            match self.output.read_buf(&mut self.received).await {
                Ok(0) | Err(_) => {
                    // The last line counts also without a newline.
                    self.searched = 0;
                    let rest = self.received.split();
                    if rest.is_empty() {
                        return EngineActivity::Closed;
                    }
                    return EngineActivity::Line(parsed(&rest));
                }
                Ok(_) => {}
            }
        }
    }

    /// A whole line among the bytes that were read.
    fn take_line(&mut self) -> Option<Line> {
        loop {
            let rest = &self.received[self.searched..];
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.received.len();
                if self.received.len() > LINE_BYTES_MAX {
                    self.skipped += self.received.len();
                    self.received.clear();
                    self.searched = 0;
                }
                return None;
            };
            let line = self.received.split_to(self.searched + end);
            self.searched = 0;
            self.received.advance(1);
            let skipped = std::mem::take(&mut self.skipped);
            if skipped > 0 {
                return Some(Line::Other { bytes: skipped + line.len() });
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(parsed(&line));
            }
        }
    }

    /// Waits until the process has ended. Cancelling loses nothing.
    pub async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            // The engine has no other parent that could have taken its status.
            Err(_) => std::future::pending().await,
        }
    }

    /// Kills the engine and everything that it started, also what has left its process group.
    pub async fn kill(mut self) {
        let _ = self.child.start_kill();
        let _ = timeout(KILL_TIME, self.child.wait()).await;
        kill_orphans().await;
    }
}

/// Kills all children of the worker. The worker adopts orphans, so grandchildren follow when their parents are gone.
async fn kill_orphans() {
    let Ok(mut ended) = signal(SignalKind::child()) else { return };
    let all = async {
        while kill_children_but(&[]) {
            let _ = timeout(KILL_LOOK_TIME, ended.recv()).await;
            tree::reap_all();
        }
    };
    // What is left then, the keeper ends with the session.
    let _ = timeout(KILL_TIME, all).await;
}

fn parsed(line: &[u8]) -> Line {
    match serde_json::from_slice(line) {
        Ok(value @ Value::Object(_)) => Line::Json { value, bytes: line.len() },
        _ => Line::Other { bytes: line.len() },
    }
}

/// The file for the engine's standard error.
fn log(home: &Path) -> io::Result<File> {
    let path = home.join(LOG_FILE);
    let is_full = path.metadata().is_ok_and(|file| file.len() > LOG_BYTES_MAX);
    let mut options = OpenOptions::new();
    options.create(true).append(!is_full).write(true).truncate(is_full).mode(0o600);
    // The engine can put anything there. A pipe would block the worker.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Writes a file, unless there is one.
fn write_new(path: &Path, content: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let opened = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    match opened {
        Ok(mut file) => io::Write::write_all(&mut file, content.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

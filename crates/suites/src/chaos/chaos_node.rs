//! The node of one seed: starts it, ends it and starts it again, on a given disk, with given limits and
//! clock. Only faults use this module. Clients know only the addresses of the node.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use windlass_client::Token;
use windlass_protocol::api::StopSessions;
use windlass_testkit::{TestNode, processes};

use super::raw_http::NodeEndpoint;

/// The variable that names the file with the milliseconds that the node adds to its clock.
const CLOCK_FILE: &str = "WINDLASS_TEST_CLOCK_OFFSET_FILE";

/// How long a node may take to start again.
const START_MAX: Duration = Duration::from_secs(60);

/// The time between two attempts to start a node.
const START_AGAIN: Duration = Duration::from_millis(300);

/// The variable that names a Python with ipykernel.
pub const JUPYTER_VARIABLE: &str = "WINDLASS_TEST_JUPYTER_PYTHON";

/// Where the kernel of that Python is described.
pub fn kernels() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os(JUPYTER_VARIABLE)?);
    Some(python.parent()?.parent()?.join("share/jupyter"))
}

#[derive(Debug)]
pub struct ChaosNode {
    pub node: TestNode,
    pub directory: TempDir,
    pub state: PathBuf,
    address: SocketAddr,
}

/// How the node ends before it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeExit {
    Killed,
    Stopped,
}

/// The resource limits of the next start of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartLimits {
    Usual,
    FewDescriptors,
    LittleMemory,
}

impl StartLimits {
    /// The shell command that sets the limits.
    fn words(self) -> &'static str {
        match self {
            Self::Usual => "",
            Self::FewDescriptors => "ulimit -n 200",
            // KiB of address space: more than a node and its interpreters use.
            Self::LittleMemory => "ulimit -v 1500000",
        }
    }
}

impl ChaosNode {
    /// Starts a node. With `disk`, its state directory is there. With `cgroup`, the node runs in that cgroup.
    pub async fn start(
        program: &Path,
        start_by: &str,
        disk: Option<&Path>,
        cgroup: Option<&Path>,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("wl-chaos-").tempdir_in("/tmp")?;
        let state = match disk {
            Some(disk) => {
                disk.join(directory.path().file_name().context("a temporary directory has a name")?)
            }
            None => directory.path().join("state"),
        };
        let limits = directory.path().join("limits");
        fs::write(&limits, "")?;
        let clock = directory.path().join("clock");
        fs::write(&clock, "0")?;
        let starter = directory.path().join("windlass");
        let enter = cgroup
            .map(|dir| format!("echo $$ > {}/cgroup.procs\n", dir.display()))
            .unwrap_or_default();
        let script = format!(
            "#!/bin/sh\n{enter}. {}\nexec {} \"$@\"\n",
            limits.display(),
            program.display()
        );
        fs::write(&starter, script)?;
        fs::set_permissions(&starter, fs::Permissions::from_mode(0o755))?;
        let address = free_address()?;
        let mut node = TestNode::builder(&starter)
            .arg("--listen")
            .arg(address.to_string())
            .env("WINDLASS_START", start_by)
            .env(CLOCK_FILE, &clock)
            .env("JUPYTER_PATH", kernels().unwrap_or_default())
            .state_dir(&state)
            .prepare()?;
        node.restart().await?;
        Ok(Self { node, directory, state, address })
    }

    pub fn socket(&self) -> NodeEndpoint {
        NodeEndpoint::Socket(self.node.dirs().socket())
    }

    pub fn tcp(&self) -> Result<NodeEndpoint> {
        let token = Token::read(&self.node.dirs().token())?;
        Ok(NodeEndpoint::Tcp { address: self.address, token: token.as_str().to_owned() })
    }

    pub fn is_alive(&self) -> bool {
        processes::alive(self.node.pid())
    }

    /// The node's log, with the rotated log before it.
    pub fn log(&self) -> String {
        let path = self.node.dirs().log();
        let read =
            |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        read(&path.with_extension("log.1")) + &read(&path)
    }

    pub fn set_limits(&self, limits: StartLimits) -> Result<()> {
        Ok(fs::write(self.directory.path().join("limits"), limits.words())?)
    }

    /// Moves the node's wall clock by `offset_ms`, from its next reading on.
    pub fn set_clock(&self, offset_ms: i64) -> Result<()> {
        // Renamed into place: the node may read the file at any moment.
        let (clock, next) =
            (self.directory.path().join("clock"), self.directory.path().join("clock.next"));
        fs::write(&next, offset_ms.to_string())?;
        Ok(fs::rename(next, clock)?)
    }

    /// Takes the start lock, so that no client starts a node while a fault keeps the node down.
    pub fn hold_starts(&self) -> Result<File> {
        let path = self.node.dirs().start_lock();
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Ends the node.
    pub async fn end(&mut self, exit: NodeExit) -> Result<()> {
        match exit {
            NodeExit::Killed => {
                self.node.kill9();
                Ok(())
            }
            NodeExit::Stopped => self.node.stop(StopSessions::Keep).await,
        }
    }

    /// Starts the node again. Returns why the first attempt failed, if it did.
    pub async fn start_again(&mut self) -> Result<Option<String>> {
        let until = Instant::now() + START_MAX;
        let mut first_failure = None;
        loop {
            match self.node.restart().await {
                Ok(()) => return Ok(first_failure),
                Err(error) if Instant::now() < until => {
                    first_failure.get_or_insert(format!("{error:#}"));
                    tokio::time::sleep(START_AGAIN).await;
                }
                Err(error) => return Err(error.context("the node does not start again")),
            }
        }
    }
}

/// An address on which no process listens now.
fn free_address() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

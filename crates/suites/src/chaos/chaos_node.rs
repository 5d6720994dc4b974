//! The node of one seed: how it is started, killed and started again, on which disk, under which limits and
//! with which clock. Only the faults change it; clients know its doors and nothing else.

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

use super::http::Door;

/// Names the file with the milliseconds that the node adds to its clock.
const CLOCK_FILE: &str = "WINDLASS_TEST_CLOCK_OFFSET_FILE";

/// How long a node may take to be up again.
const START_MAX: Duration = Duration::from_secs(60);

/// Between two attempts to start a node that did not come up.
const START_AGAIN: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub struct ChaosNode {
    pub node: TestNode,
    pub place: TempDir,
    pub state: PathBuf,
    address: SocketAddr,
}

/// How the node goes away before it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Going {
    Killed,
    Stopped,
}

/// What the next start of the node is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartLimits {
    Usual,
    FewDescriptors,
    LittleMemory,
}

impl StartLimits {
    /// As a shell says it.
    fn words(self) -> &'static str {
        match self {
            Self::Usual => "",
            Self::FewDescriptors => "ulimit -n 200",
            // Kibibytes of address space: more than a node and its interpreters use.
            Self::LittleMemory => "ulimit -v 1500000",
        }
    }
}

impl ChaosNode {
    /// Starts a node. With `disk`, its state lies there. `cgroup` is a directory that it is put into.
    pub async fn start(
        program: &Path,
        start_by: &str,
        disk: Option<&Path>,
        cgroup: Option<&Path>,
    ) -> Result<Self> {
        let place = tempfile::Builder::new().prefix("wl-chaos-").tempdir_in("/tmp")?;
        let state = match disk {
            Some(disk) => disk.join(place.path().file_name().context("no name")?),
            None => place.path().join("state"),
        };
        let limits = place.path().join("limits");
        fs::write(&limits, "")?;
        let clock = place.path().join("clock");
        fs::write(&clock, "0")?;
        let starter = place.path().join("windlass");
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
            .state_dir(&state)
            .prepare()?;
        node.restart().await?;
        Ok(Self { node, place, state, address })
    }

    pub fn socket(&self) -> Door {
        Door::Socket(self.node.dirs().socket())
    }

    pub fn tcp(&self) -> Result<Door> {
        let token = Token::read(&self.node.dirs().token())?;
        Ok(Door::Tcp { address: self.address, token: token.as_str().to_owned() })
    }

    pub fn is_alive(&self) -> bool {
        processes::alive(self.node.pid())
    }

    /// What the node wrote to its log, and the log before it.
    pub fn log(&self) -> String {
        let path = self.node.dirs().log();
        let read =
            |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        read(&path.with_extension("log.1")) + &read(&path)
    }

    pub fn set_limits(&self, limits: StartLimits) -> Result<()> {
        Ok(fs::write(self.place.path().join("limits"), limits.words())?)
    }

    /// The node's wall clock is moved by so much, from its next look on.
    pub fn set_clock(&self, offset_ms: i64) -> Result<()> {
        // Renamed into place: the node may look at any moment.
        let (clock, next) = (self.place.path().join("clock"), self.place.path().join("clock.next"));
        fs::write(&next, offset_ms.to_string())?;
        Ok(fs::rename(next, clock)?)
    }

    /// Keeps clients that would start a node from doing so, while this one is away on purpose.
    pub fn hold_starts(&self) -> Result<File> {
        let path = self.node.dirs().start_lock();
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Takes the node away.
    pub async fn go(&mut self, going: Going) -> Result<()> {
        match going {
            Going::Killed => {
                self.node.kill9();
                Ok(())
            }
            Going::Stopped => self.node.stop(StopSessions::Keep).await,
        }
    }

    /// Starts the node again; gives why the first attempt failed, if it did.
    pub async fn come_back(&mut self) -> Result<Option<String>> {
        let until = Instant::now() + START_MAX;
        let mut first_failure = None;
        loop {
            match self.node.restart().await {
                Ok(()) => return Ok(first_failure),
                Err(error) if Instant::now() < until => {
                    first_failure.get_or_insert(format!("{error:#}"));
                    tokio::time::sleep(START_AGAIN).await;
                }
                Err(error) => return Err(error.context("the node does not start any more")),
            }
        }
    }
}

/// A port that nobody listens on now.
fn free_address() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

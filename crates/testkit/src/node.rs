//! A node of a test's own: real binary, real directories (with short paths: sockets live there),
//! and a certain end for everything it started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use tempfile::TempDir;
use windlass_client::protocol::api::{CreateSession, Session, StopSessions};
use windlass_client::protocol::environments::{EnvironmentList, EnvironmentsQuery};
use windlass_client::protocol::policy::PolicyRequest;
use windlass_client::{Client, Dirs, LaunchedNode, StartNode, launch_node};
use windlass_procs::cgroup::{self, CgroupSupport};

use crate::gate::gates_dir;
use crate::processes;
use crate::python::python;

/// Says how the nodes of a run of tests start workers: `exec`, `zygote` or `pool`. Where it is said,
/// tests wait until the node is so far.
const START: &str = "WINDLASS_TEST_START";

/// How long a node may take for that.
const READY_WAIT: Duration = Duration::from_secs(60);

/// Workers that wait in a test's node.
const WAITING: usize = 2;

/// How long a stopped node may take to go.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// A running node, or one that was killed and may be restarted. Dropping it ends everything.
#[derive(Debug)]
pub struct TestNode {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    running: Option<LaunchedNode>,
    dirs: Dirs,
    // Last: removed after everything that uses it has ended.
    base: TempDir,
}

/// How to start a [`TestNode`].
#[derive(Debug)]
pub struct TestNodeBuilder {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    state: Option<PathBuf>,
}

impl TestNodeBuilder {
    /// One more argument of `windlass node`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// One more variable of the node's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The node's state goes here, and is the test's to remove.
    #[must_use]
    pub fn state_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.state = Some(path.into());
        self
    }

    /// Starts the node and waits until it is ready.
    pub async fn start(self) -> anyhow::Result<TestNode> {
        let mut node = self.prepare()?;
        node.restart().await?;
        Ok(node)
    }

    /// Only the directories: the node is started by [`TestNode::restart`] or by a first client.
    pub fn prepare(self) -> anyhow::Result<TestNode> {
        let base = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in("/tmp")?;
        let state = self.state.unwrap_or_else(|| base.path().join("s"));
        let dirs = Dirs::at(base.path().join("r"), state)?;
        let environments = base.path().join("environments.json");
        let entry = json!({"interpreter": python(), "pool": WAITING});
        std::fs::write(&environments, json!({"version": 1, "environments": [entry]}).to_string())?;
        // First: what a test says of its own comes later, and wins.
        let mut env = vec![("WINDLASS_ENVIRONMENTS".into(), environments.into())];
        env.extend(self.env);
        Ok(TestNode { program: self.program, args: self.args, env, running: None, dirs, base })
    }
}

impl TestNode {
    /// `program` is `env!("CARGO_BIN_EXE_windlass")` of the test.
    pub fn builder(program: impl Into<PathBuf>) -> TestNodeBuilder {
        let builder = TestNodeBuilder {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            state: None,
        };
        // Whatever servers the user has: a test names its own.
        builder
            .env("PATH", search_path())
            .env("WINDLASS_MCP_CONFIG", "/dev/null")
            .env("WINDLASS_START", wanted_start())
    }

    /// A node with nothing special about it.
    pub async fn start(program: impl Into<PathBuf>) -> anyhow::Result<Self> {
        Self::builder(program).start().await
    }

    /// A new client of the running node.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(self.dirs.clone(), StartNode::Never).await?)
    }

    /// A new client that may start the node.
    pub async fn starting_client(&self) -> anyhow::Result<Client> {
        let start = StartNode::IfAbsent { program: self.program.clone(), args: Vec::new() };
        Ok(Client::connect(self.dirs.clone(), start).await?)
    }

    /// A session on a real Python, in a workspace of its own.
    pub async fn session(&self, client: &Client) -> anyhow::Result<Session> {
        Ok(client.create_session(&Self::create()).await?.session)
    }

    /// What [`TestNode::session`] asks for, to be changed by a test.
    pub fn create() -> CreateSession {
        let interpreter = python().to_string_lossy().into_owned();
        // The way to gates; everything else is as for everybody.
        let gates = gates_dir().map(|dir| dir.to_string_lossy().into_owned()).into_iter().collect();
        let policy = PolicyRequest { writable: gates, ..PolicyRequest::default() };
        CreateSession {
            interpreter: Some(interpreter),
            policy: Some(policy),
            ..CreateSession::default()
        }
    }

    pub fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// The directory around the node's two; a test may put files of its own there.
    pub fn base(&self) -> &Path {
        self.base.path()
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// What the names of the node's cgroups begin with.
    pub fn cgroup_prefix(&self) -> String {
        cgroup::prefix_of(&self.dirs.runtime)
    }

    /// The node's process.
    ///
    /// # Panics
    /// When no node was started by this, or it was stopped or killed.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the node runs").pid
    }

    /// Kills the node as a crash would, and waits until it is gone. Keepers live on.
    pub fn kill9(&mut self) {
        if let Some(mut node) = self.running.take() {
            processes::kill(node.pid);
            let _ = node.wait();
            processes::wait_gone(node.pid, STOP_WAIT);
        }
    }

    /// Starts the node again in the same directories; kills it first if it runs.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill9();
        let node = launch_node(&self.program, &self.dirs, &self.args, &self.env).await?;
        self.running = Some(node);
        if std::env::var_os(START).is_some() {
            self.await_environments().await?;
        }
        Ok(())
    }

    /// What the node has started for its sessions, once nothing that it keeps ready is on its way.
    pub async fn session_processes(&self) -> anyhow::Result<Vec<u32>> {
        self.await_environments().await?;
        Ok(processes::of_sessions(self.pid()))
    }

    /// Waits until the node has everything ready from which workers can be started.
    pub async fn await_environments(&self) -> anyhow::Result<EnvironmentList> {
        let wait_ms = u64::try_from(READY_WAIT.as_millis())?;
        Ok(self.client().await?.environments(EnvironmentsQuery { wait_ms }).await?)
    }

    /// Stops the node in good order and waits until its process is gone.
    pub async fn stop(&mut self, sessions: StopSessions) -> anyhow::Result<()> {
        self.client().await?.stop_node(sessions).await?;
        let mut node = self.running.take().context("the node does not run")?;
        let gone = tokio::task::spawn_blocking(move || {
            let gone = processes::wait_gone(node.pid, STOP_WAIT);
            if gone {
                let _ = node.wait();
            }
            gone
        });
        if !gone.await? {
            bail!("the node has not ended within {STOP_WAIT:?}");
        }
        Ok(())
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let roots: Vec<u32> = self.running.iter().map(|node| node.pid).collect();
        processes::end_all(&roots, self.base.path());
        if let Some(mut node) = self.running.take() {
            let _ = node.wait();
        }
        // Nobody will start a node in these directories again that would remove them.
        cgroup::sweep(&CgroupSupport::detect(), &cgroup::prefix_of(&self.dirs.runtime), |_| false);
    }
}

/// How nodes are to start workers: by their programs where it is not said, the same each time.
fn wanted_start() -> OsString {
    std::env::var_os(START).unwrap_or_else(|| "exec".into())
}

/// Where the node finds programs: the tests' Python first, and no shims.
pub(crate) fn search_path() -> OsString {
    let mut path = OsString::new();
    if let Some(beside) = python().parent() {
        path.push(beside);
        path.push(":");
    }
    path.push("/usr/local/bin:/usr/bin:/bin");
    path
}

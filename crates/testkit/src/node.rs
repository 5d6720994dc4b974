//! A private node for a test: the real binary and real directories, with short paths because of sockets.
//! Kills everything that the node started when the test ends.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// Variable that selects how the nodes of a test run start workers: `exec`, `zygote` or `pool`. If it is set,
/// tests wait until the environments of a new node are ready.
const START: &str = "WINDLASS_TEST_START";

/// Variable with the range of user ids that the nodes of a test run give to their sessions. Only root can use it.
const SESSION_UIDS: &str = "WINDLASS_TEST_SESSION_UIDS";

/// How long the environments of a node may take to become ready.
const READY_WAIT: Duration = Duration::from_secs(60);

/// Pool size of a test node.
const POOL_SIZE: usize = 2;

/// The name of the configuration file in the parent of the node's directories.
const CONFIG_FILE: &str = "config.toml";

/// How long a stopped node may take to exit.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// A running node, or one that was killed and may be restarted. Dropping it kills everything it started.
#[derive(Debug)]
pub struct TestNode {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    running: Option<LaunchedNode>,
    dirs: Dirs,
    // The last field: removed after everything that uses it has ended.
    base: TempDir,
}

/// How to start a [`TestNode`].
#[derive(Debug)]
pub struct TestNodeBuilder {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    state: Option<PathBuf>,
    /// The configuration file.
    config: String,
    /// Further environments: the kind of worker, and its interpreter.
    environments: Vec<(String, String)>,
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

    /// Sets the state directory. The test must remove it.
    #[must_use]
    pub fn state_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.state = Some(path.into());
        self
    }

    /// Sets the text of the configuration file.
    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = text.into();
        self
    }

    /// One more environment, besides the tests' Python.
    #[must_use]
    pub fn environment(mut self, worker: &str, interpreter: &str) -> Self {
        self.environments.push((worker.to_owned(), interpreter.to_owned()));
        self
    }

    /// Starts the node and waits until it is ready.
    pub async fn start(self) -> anyhow::Result<TestNode> {
        let mut node = self.prepare()?;
        node.restart().await?;
        Ok(node)
    }

    /// Creates only the directories. [`TestNode::restart`] or a first client starts the node.
    pub fn prepare(self) -> anyhow::Result<TestNode> {
        let base = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in("/tmp")?;
        let state = self.state.unwrap_or_else(|| base.path().join("s"));
        let dirs = Dirs::at(base.path().join("r"), state)?;
        let environments = base.path().join("environments.json");
        let mut entries = vec![json!({"interpreter": python(), "pool": POOL_SIZE})];
        for (worker, interpreter) in &self.environments {
            entries.push(json!({"worker": worker, "interpreter": interpreter, "pool": POOL_SIZE}));
        }
        std::fs::write(&environments, json!({"version": 1, "environments": entries}).to_string())?;
        let config = base.path().join(CONFIG_FILE);
        std::fs::write(&config, &self.config)?;
        // The default comes first: a later value that the test sets overrides it.
        let mut env = vec![
            ("WINDLASS_ENVIRONMENTS".into(), environments.into()),
            ("WINDLASS_CONFIG".into(), config.into()),
        ];
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
            config: String::new(),
            environments: Vec::new(),
        };
        // Ignore the MCP servers of the user who runs the tests.
        let builder = builder
            .env("PATH", search_path())
            .env("WINDLASS_MCP_CONFIG", "/dev/null")
            .env("WINDLASS_START", start_method());
        match std::env::var_os(SESSION_UIDS) {
            Some(range) => builder.env("WINDLASS_SESSION_UIDS", range),
            None => builder,
        }
    }

    /// A node with the default settings.
    pub async fn start(program: impl Into<PathBuf>) -> anyhow::Result<Self> {
        Self::builder(program).start().await
    }

    /// A new client of the running node.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(self.dirs.clone(), StartNode::Never).await?)
    }

    /// A new client that starts the node if none is running.
    pub async fn starting_client(&self) -> anyhow::Result<Client> {
        let start = StartNode::IfAbsent { program: self.program.clone(), args: Vec::new() };
        Ok(Client::connect(self.dirs.clone(), start).await?)
    }

    /// A session with the tests' Python, in a new workspace.
    pub async fn session(&self, client: &Client) -> anyhow::Result<Session> {
        Ok(client.create_session(&Self::create()).await?.session)
    }

    /// The request of [`TestNode::session`]. The test may change it.
    pub fn create() -> CreateSession {
        let interpreter = python().to_string_lossy().into_owned();
        // The default policy, plus access to the gates.
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

    /// The parent of the node's two directories. A test may put files there.
    pub fn base(&self) -> &Path {
        self.base.path()
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The configuration file. The node reads it when it starts.
    pub fn config_file(&self) -> PathBuf {
        self.base.path().join(CONFIG_FILE)
    }

    /// A command of the node's program, with the environment of the node.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env("WINDLASS_RUNTIME_DIR", &self.dirs.runtime)
            .env("WINDLASS_STATE_DIR", &self.dirs.state)
            .env_remove("WINDLASS_URL")
            .env_remove("WINDLASS_TOKEN")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.base.path())
            .stdin(Stdio::null());
        command
    }

    /// The prefix of the names of the node's cgroups.
    pub fn cgroup_prefix(&self) -> String {
        cgroup::prefix_of(&self.dirs.runtime)
    }

    /// The pid of the node.
    ///
    /// # Panics
    /// When this did not start the node, or the node was stopped or killed.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the node is running").pid
    }

    /// Kills the node with SIGKILL and waits until it has exited. Keepers keep running.
    pub fn kill9(&mut self) {
        if let Some(mut node) = self.running.take() {
            processes::kill(node.pid);
            let _ = node.wait();
            processes::wait_gone(node.pid, STOP_WAIT);
        }
    }

    /// Starts the node again in the same directories. Kills it first if it is running.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill9();
        let node = launch_node(&self.program, &self.dirs, &self.args, &self.env).await?;
        self.running = Some(node);
        if std::env::var_os(START).is_some() {
            self.await_environments().await?;
        }
        Ok(())
    }

    /// The processes of the node's sessions, read after all environments are ready.
    pub async fn session_processes(&self) -> anyhow::Result<Vec<u32>> {
        self.await_environments().await?;
        Ok(processes::of_sessions(self.pid()))
    }

    /// Waits until the node's environments (zygotes and pools) are ready.
    pub async fn await_environments(&self) -> anyhow::Result<EnvironmentList> {
        let wait_ms = u64::try_from(READY_WAIT.as_millis())?;
        Ok(self.client().await?.environments(EnvironmentsQuery { wait_ms }).await?)
    }

    /// Stops the node by request and waits until its process has exited.
    pub async fn stop(&mut self, sessions: StopSessions) -> anyhow::Result<()> {
        self.client().await?.stop_node(sessions).await?;
        let mut node = self.running.take().context("the node is not running")?;
        let gone = tokio::task::spawn_blocking(move || {
            let gone = processes::wait_gone(node.pid, STOP_WAIT);
            if gone {
                let _ = node.wait();
            }
            gone
        });
        if !gone.await? {
            bail!("the node did not exit within {STOP_WAIT:?}");
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
        // No later node uses these directories, so this removes the leftover cgroups.
        cgroup::sweep(&CgroupSupport::detect(), &cgroup::prefix_of(&self.dirs.runtime), |_| false);
    }
}

/// How test nodes start workers: `exec` by default, so that every run is the same.
fn start_method() -> OsString {
    std::env::var_os(START).unwrap_or_else(|| "exec".into())
}

/// The PATH of the node: the tests' Python first, and no shims.
pub(crate) fn search_path() -> OsString {
    let mut path = OsString::new();
    if let Some(beside) = python().parent() {
        path.push(beside);
        path.push(":");
    }
    path.push("/usr/local/bin:/usr/bin:/bin");
    path
}

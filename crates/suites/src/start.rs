//! A node to measure: it has its own directories and configuration, and starts all sessions by one method.
//!
//! The node's answers about start methods are read as plain JSON, not with the client crate. So a node of
//! another version can be measured too, and a node that ignores the requested method is detected.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, MissedTickBehavior, interval};
use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_testkit::TestNode;
use windlass_testkit::raw_http::{RawHttp, request};

use crate::packages::{Packages, PinnedPackage};

/// The environment variable that selects a node's start method.
pub const START: &str = "WINDLASS_START";

/// How long a zygote may take to import its list, or a pool to fill.
const READY_WAIT: Duration = Duration::from_secs(60);

/// The time between two checks for readiness. Each check costs the node some work.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// The size of the worker pool of a measured environment.
const POOL: usize = 4;

/// pandas, which installs numpy too.
const PANDAS: PinnedPackage = PinnedPackage::pip("pandas", "pandas", "3.1.1");

/// How a node starts the worker of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StartMethod {
    /// A new interpreter for each session
    Exec,
    /// Forked from a process that has imported the environment's preload list
    Zygote,
    /// A pooled worker, forked before the session is requested
    Pool,
}

impl StartMethod {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Zygote => "zygote",
            Self::Pool => "pool",
        }
    }
}

/// An interpreter, and the modules that its zygote imports.
#[derive(Debug, Clone)]
pub struct PythonEnvironment {
    pub interpreter: PathBuf,
    preload: &'static [&'static str],
}

impl PythonEnvironment {
    pub fn bare(interpreter: PathBuf) -> Self {
        Self { interpreter, preload: &[] }
    }

    /// An interpreter with numpy and pandas. Installs both below the target directory if they are missing.
    pub fn with_pandas() -> Result<Self> {
        let interpreter = Packages::prepare(&[PANDAS])?.directory(&PANDAS).join("bin/python");
        Ok(Self { interpreter, preload: &["numpy", "pandas"] })
    }

    fn file(&self) -> Value {
        json!({"version": 1, "environments": [
            {"interpreter": self.interpreter, "preload": self.preload, "pool": POOL},
        ]})
    }
}

/// A node that one measurement starts and owns.
#[derive(Debug)]
pub struct MeasuredNode {
    pub node: TestNode,
    pub client: Client,
    pub start: StartMethod,
    environment: PythonEnvironment,
    // The last field, so that it is dropped last: the node may read it as long as it runs.
    _config: TempDir,
}

impl MeasuredNode {
    /// Starts the node and waits until its zygote or pool is ready.
    pub async fn start(
        program: PathBuf,
        start: StartMethod,
        environment: PythonEnvironment,
    ) -> Result<Self> {
        let config = tempfile::Builder::new().prefix("wl-config-").tempdir_in("/tmp")?;
        let directory = config.path().join("windlass");
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("mcp.json"), "{\"mcpServers\": {}}\n")?;
        std::fs::write(directory.join("environments.json"), environment.file().to_string())?;
        let node = TestNode::builder(program)
            .env(START, start.as_str())
            .env("XDG_CONFIG_HOME", config.path())
            .env("WINDLASS_MCP_CONFIG", directory.join("mcp.json"))
            .env("WINDLASS_ENVIRONMENTS", directory.join("environments.json"))
            .start()
            .await?;
        let client = node.client().await?;
        let started = Self { node, client, start, environment, _config: config };
        started.ready().await?;
        Ok(started)
    }

    /// Waits until the zygote or pool is ready for the next session.
    pub async fn ready(&self) -> Result<()> {
        self.ready_over(&mut self.connection().await?).await
    }

    /// The same as [`Self::ready`], over an existing connection, so that the node's descriptor count does not
    /// change.
    pub async fn ready_over(&self, connection: &mut JsonConnection) -> Result<()> {
        if self.start == StartMethod::Exec {
            return Ok(());
        }
        let until = Instant::now() + READY_WAIT;
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (status, said) = connection.ask("GET", "/v1/environments", &json!(null)).await?;
            ensure!(
                status == 200,
                "the node does not list its environments: GET /v1/environments answered {status}"
            );
            let found = environment_in(&said, &self.environment.interpreter);
            let found = found.with_context(|| {
                format!("the node does not list the measured environment: {said}")
            })?;
            match readiness(found, self.start) {
                Readiness::Ready => return Ok(()),
                Readiness::Failed => bail!("the zygote failed: {found}"),
                Readiness::NotYet if Instant::now() < until => {}
                Readiness::NotYet => {
                    bail!("the environment is not ready within {READY_WAIT:?}: {found}")
                }
            }
        }
    }

    /// Fails if the session was started by a method that is not in `allowed`.
    pub async fn check_started(&self, session: &SessionId, allowed: &[StartMethod]) -> Result<()> {
        let by = self.connection().await?.started_by(session).await?;
        let named: Vec<&str> = allowed.iter().map(|start| start.as_str()).collect();
        ensure!(
            named.contains(&by.as_str()),
            "session {session} was started by {by}, not by {}: the figure would have the wrong name",
            named.join(" or ")
        );
        Ok(())
    }

    /// A new connection to the node.
    pub async fn connection(&self) -> Result<JsonConnection> {
        let socket = self.node.dirs().socket();
        let http = RawHttp::connect(&socket).await;
        Ok(JsonConnection {
            http: http.with_context(|| format!("cannot reach {}", socket.display()))?,
        })
    }

    pub fn interpreter(&self) -> String {
        self.environment.interpreter.to_string_lossy().into_owned()
    }
}

/// A connection for requests that are answered with JSON.
#[derive(Debug)]
pub struct JsonConnection {
    http: RawHttp,
}

impl JsonConnection {
    /// Sends one request and returns the status and body of the answer. A `null` body is sent as an empty
    /// body.
    pub async fn ask(&mut self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        self.http.write(&request(method, path, &body)).await?;
        Ok(self.http.answer().await?)
    }

    /// The start method that the node reports for a session.
    pub async fn started_by(&mut self, session: &SessionId) -> Result<String> {
        let path = format!("/v1/sessions/{session}");
        let (status, said) = self.ask("GET", &path, &json!(null)).await?;
        ensure!(status == 200, "GET {path} answered {status}: {said}");
        // An older node starts sessions only by exec and does not report the method.
        Ok(said["started_by"].as_str().unwrap_or(StartMethod::Exec.as_str()).to_owned())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readiness {
    Ready,
    NotYet,
    Failed,
}

fn environment_in<'a>(said: &'a Value, interpreter: &Path) -> Option<&'a Value> {
    let all = said["environments"].as_array()?;
    all.iter().find(|one| one["interpreter"].as_str().map(Path::new) == Some(interpreter))
}

fn readiness(environment: &Value, start: StartMethod) -> Readiness {
    let pool = &environment["pool"];
    let filled = pool["ready"].as_u64().zip(pool["size"].as_u64());
    match (environment["zygote"]["state"].as_str(), start) {
        (Some("failed"), _) => Readiness::Failed,
        (Some("ready"), StartMethod::Zygote) => Readiness::Ready,
        (Some("ready"), StartMethod::Pool)
            if filled.is_some_and(|(r, size)| size > 0 && r >= size) =>
        {
            Readiness::Ready
        }
        _ => Readiness::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_ready_when_it_is_full_and_its_zygote_is_up() {
        let check = |state: &str, ready: u64, start, expected| {
            let said = json!({"zygote": {"state": state}, "pool": {"size": 4, "ready": ready}});
            assert_eq!(readiness(&said, start), expected, "{said} {start:?}");
        };
        check("starting", 0, StartMethod::Zygote, Readiness::NotYet);
        check("ready", 0, StartMethod::Zygote, Readiness::Ready);
        check("ready", 3, StartMethod::Pool, Readiness::NotYet);
        check("ready", 4, StartMethod::Pool, Readiness::Ready);
        check("starting", 4, StartMethod::Pool, Readiness::NotYet);
        check("failed", 4, StartMethod::Pool, Readiness::Failed);
        let poolless = json!({"zygote": {"state": "ready"}, "pool": {"size": 0, "ready": 0}});
        assert_eq!(readiness(&poolless, StartMethod::Pool), Readiness::NotYet);
    }

    #[test]
    fn an_environment_is_found_by_its_interpreter() {
        let said = json!({"environments": [{"interpreter": "/a"}, {"interpreter": "/b"}]});
        assert_eq!(environment_in(&said, Path::new("/b")), Some(&said["environments"][1]));
        assert_eq!(environment_in(&said, Path::new("/c")), None);
        assert_eq!(environment_in(&json!({}), Path::new("/a")), None);
    }
}

//! The ways a session starts, and a node that starts its sessions in one of them, in directories and
//! with a configuration of its own. What the node says of it is read as JSON and not by the client:
//! a node of another version must be told from one that does something else than was asked for.

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

use crate::packages::{Package, Packages};

/// By which a node is told how to start its sessions.
pub const START: &str = "WINDLASS_START";

/// How long a zygote may take to import its list, or a pool to fill.
const READY_WAIT: Duration = Duration::from_secs(60);

/// Between two questions whether it is so far. It costs the machine what it answers.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// Workers that wait in the pool of a measured environment.
const POOL: usize = 4;

/// The virtual environment with numpy, which comes with pandas.
const PANDAS: Package = Package::pip("pandas", "pandas", "3.1.1");

/// How a node is to start its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StartBy {
    /// An interpreter of its own for each session
    Exec,
    /// Forked from a process that has imported the environment's list
    Zygote,
    /// A pooled worker, forked before its session was asked for
    Pool,
}

impl StartBy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Zygote => "zygote",
            Self::Pool => "pool",
        }
    }
}

/// An interpreter, and what its zygote imports.
#[derive(Debug, Clone)]
pub struct Environment {
    pub interpreter: PathBuf,
    preload: &'static [&'static str],
}

impl Environment {
    pub fn bare(interpreter: PathBuf) -> Self {
        Self { interpreter, preload: &[] }
    }

    /// With numpy and pandas, installed below the target directory if they are not.
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

/// A node of a measurement's own.
#[derive(Debug)]
pub struct StartNode {
    pub node: TestNode,
    pub client: Client,
    pub start: StartBy,
    environment: Environment,
    // Last: the node may look at it as long as it runs.
    _config: TempDir,
}

impl StartNode {
    /// Starts the node; with a zygote or a pool, waits until it is there.
    pub async fn start(program: PathBuf, start: StartBy, environment: Environment) -> Result<Self> {
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

    /// Waits until the next session finds what it is to start from.
    pub async fn ready(&self) -> Result<()> {
        self.ready_at(&mut self.door().await?).await
    }

    /// The same, over a connection that is there already: the node has no descriptor more or less by it.
    pub async fn ready_at(&self, door: &mut Door) -> Result<()> {
        if self.start == StartBy::Exec {
            return Ok(());
        }
        let until = Instant::now() + READY_WAIT;
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (status, said) = door.ask("GET", "/v1/environments", &json!(null)).await?;
            ensure!(status == 200, "the node has no zygotes: GET /v1/environments says {status}");
            let found = environment_in(&said, &self.environment.interpreter);
            let found = found.with_context(|| format!("no such environment in {said}"))?;
            match readiness(found, self.start) {
                Readiness::Ready => return Ok(()),
                Readiness::Failed => bail!("the zygote failed: {found}"),
                Readiness::NotYet if Instant::now() < until => {}
                Readiness::NotYet => bail!("not ready within {READY_WAIT:?}: {found}"),
            }
        }
    }

    /// Fails for a session that was not started in the way that is measured.
    pub async fn check_started(&self, session: &SessionId, allowed: &[StartBy]) -> Result<()> {
        let by = self.door().await?.started_by(session).await?;
        let named: Vec<&str> = allowed.iter().map(|start| start.as_str()).collect();
        ensure!(
            named.contains(&by.as_str()),
            "session {session} was started by {by}, not by {}: this would be measured as what it is \
             not",
            named.join(" or ")
        );
        Ok(())
    }

    /// A connection of its own to the node.
    pub async fn door(&self) -> Result<Door> {
        let socket = self.node.dirs().socket();
        let http = RawHttp::connect(&socket).await;
        Ok(Door { http: http.with_context(|| format!("cannot reach {}", socket.display()))? })
    }

    pub fn interpreter(&self) -> String {
        self.environment.interpreter.to_string_lossy().into_owned()
    }
}

/// A connection on which JSON is asked for.
#[derive(Debug)]
pub struct Door {
    http: RawHttp,
}

impl Door {
    /// The answer's status and body; a body of `null` is sent as none.
    pub async fn ask(&mut self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        self.http.write(&request(method, path, &body)).await?;
        Ok(self.http.answer().await?)
    }

    /// How a session says that it was started.
    pub async fn started_by(&mut self, session: &SessionId) -> Result<String> {
        let path = format!("/v1/sessions/{session}");
        let (status, said) = self.ask("GET", &path, &json!(null)).await?;
        ensure!(status == 200, "no session {session}: {said}");
        // A node that knows one way only does not name it.
        Ok(said["started_by"].as_str().unwrap_or(StartBy::Exec.as_str()).to_owned())
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

fn readiness(environment: &Value, start: StartBy) -> Readiness {
    let pool = &environment["pool"];
    let filled = pool["ready"].as_u64().zip(pool["size"].as_u64());
    match (environment["zygote"]["state"].as_str(), start) {
        (Some("failed"), _) => Readiness::Failed,
        (Some("ready"), StartBy::Zygote) => Readiness::Ready,
        (Some("ready"), StartBy::Pool) if filled.is_some_and(|(r, size)| size > 0 && r >= size) => {
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
        check("starting", 0, StartBy::Zygote, Readiness::NotYet);
        check("ready", 0, StartBy::Zygote, Readiness::Ready);
        check("ready", 3, StartBy::Pool, Readiness::NotYet);
        check("ready", 4, StartBy::Pool, Readiness::Ready);
        check("starting", 4, StartBy::Pool, Readiness::NotYet);
        check("failed", 4, StartBy::Pool, Readiness::Failed);
        let poolless = json!({"zygote": {"state": "ready"}, "pool": {"size": 0, "ready": 0}});
        assert_eq!(readiness(&poolless, StartBy::Pool), Readiness::NotYet);
    }

    #[test]
    fn an_environment_is_found_by_its_interpreter() {
        let said = json!({"environments": [{"interpreter": "/a"}, {"interpreter": "/b"}]});
        assert_eq!(environment_in(&said, Path::new("/b")), Some(&said["environments"][1]));
        assert_eq!(environment_in(&said, Path::new("/c")), None);
        assert_eq!(environment_in(&json!({}), Path::new("/a")), None);
    }
}

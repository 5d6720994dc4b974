//! A node for measurements: a release build in its own directories. Its sessions use the Python of
//! `bench::python`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use windlass_client::Client;
use windlass_protocol::api::{CloseQuery, CreateSession, SubmitTurn, Turn};
use windlass_protocol::{Outcome, SessionId};
use windlass_testkit::{TestNode, TestNodeBuilder};

use super::python;
use crate::start::{START, StartMethod};
use crate::workspace;

/// Closes a session without time for its turn to end.
pub const AT_ONCE: CloseQuery = CloseQuery { grace_ms: Some(0) };

/// How long a submission waits for the end of its turn.
const WAIT_MS: u64 = 60_000;

/// Builds the release program, if `WINDLASS_XTASK_PROGRAM` names none, and returns its path.
pub fn program() -> Result<PathBuf> {
    if let Some(program) = workspace::built()? {
        return Ok(program);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "windlass"])
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "cargo build --release failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")),
        PathBuf::from,
    );
    let program = target.join("release/windlass");
    program.canonicalize().with_context(|| format!("cargo built no {}", program.display()))
}

/// A node with one client.
pub struct BenchNode {
    pub node: TestNode,
    pub client: Client,
}

impl BenchNode {
    pub async fn start() -> Result<Self> {
        Self::started(TestNode::builder(program()?)).await
    }

    /// A node with this start method. It does not wait for a zygote or pool and does not check how sessions
    /// start, so it is only for exec. `crate::start` has a node for the other methods.
    pub async fn start_by(start: StartMethod) -> Result<Self> {
        Self::started(TestNode::builder(program()?).env(START, start.as_str())).await
    }

    /// Starts a node with these settings.
    pub async fn started(builder: TestNodeBuilder) -> Result<Self> {
        let node = builder.start().await?;
        let client = node.client().await?;
        Ok(Self { node, client })
    }

    pub async fn session(&self) -> Result<SessionId> {
        let created = self.client.create_session(&create()).await?;
        self.run(&created.session.id, "None").await?;
        Ok(created.session.id)
    }

    /// Runs code and waits for the end of the turn.
    pub async fn run(&self, session: &SessionId, code: &str) -> Result<Turn> {
        Ok(self.client.submit_turn(session, &turn(code)).await?)
    }
}

/// Creates a session with a first turn, which must print `answer`. Returns the session, and the time from the
/// request to the answer.
pub async fn first_answer(
    client: &Client,
    wanted: &CreateSession,
    answer: &str,
) -> Result<(SessionId, Duration)> {
    let started = Instant::now();
    let created = client.create_session(wanted).await?;
    let took = started.elapsed();
    let turn = created.turn.context("no first turn")?;
    ensure!(turn.outcome == Some(Outcome::Ok), "the turn ended as {:?}", turn.outcome);
    ensure!(turn.output.text == answer, "the turn answered {:?}", turn.output.text);
    Ok((created.session.id, took))
}

pub fn create() -> CreateSession {
    let interpreter = python::path().to_string_lossy().into_owned();
    CreateSession { interpreter: Some(interpreter), ..CreateSession::default() }
}

pub fn turn(code: &str) -> SubmitTurn {
    SubmitTurn { code: code.to_owned(), wait_ms: WAIT_MS, ..SubmitTurn::default() }
}

/// Runs a measurement on a runtime with one thread, as clients do.
pub fn block_on<T>(measurement: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measurement)
}

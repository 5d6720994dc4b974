//! `first_answer_exec`, `_zygote`, `_pool`: the time from the request for a session with the default policy
//! to the answer of its first turn. The baseline is a bare start of the same interpreter to the same answer.
//!
//! - `_np`: the turn imports numpy and pandas. A zygote has imported them before.
//! - `_pool_np_own`: the session has a workspace of its client, so no worker can be confined in advance.

use std::time::Duration;

use anyhow::{Context, Result};
use windlass_protocol::api::CreateSession;

use super::figure::{Figure, millis};
use super::node::{self, AT_ONCE, block_on, program, turn};
use super::{BenchPlan, python};
use crate::start::{MeasuredNode, PythonEnvironment, StartMethod};

/// An interpreter starts in tens of milliseconds. With an import of pandas it takes hundreds.
const EXEC_ROUNDS: usize = 40;
const EXEC_PANDAS_ROUNDS: usize = 15;

/// A start from a zygote or pool takes a few milliseconds, but the pool must be full again before the next
/// round.
const FORK_ROUNDS: usize = 100;

/// Sessions before the first measured one. The first session writes and compiles the worker's files.
const WARM_UP_ROUNDS: usize = 2;

const BARE: &str = "1+1";
const WITH_PANDAS: &str = "import numpy, pandas\n1+1";

pub fn exec(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let bare = measure(plan, StartMethod::Exec, &FirstAnswerCase::bare(), EXEC_ROUNDS)?;
    let pandas =
        measure(plan, StartMethod::Exec, &FirstAnswerCase::with_pandas()?, EXEC_PANDAS_ROUNDS)?;
    Ok(vec![bare, pandas])
}

pub fn zygote(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let bare = measure(plan, StartMethod::Zygote, &FirstAnswerCase::bare(), FORK_ROUNDS)?;
    let pandas = measure(plan, StartMethod::Zygote, &FirstAnswerCase::with_pandas()?, FORK_ROUNDS)?;
    Ok(vec![bare, pandas])
}

pub fn pool(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let bare = measure(plan, StartMethod::Pool, &FirstAnswerCase::bare(), FORK_ROUNDS)?;
    let pandas = measure(plan, StartMethod::Pool, &FirstAnswerCase::with_pandas()?, FORK_ROUNDS)?;
    let own =
        measure(plan, StartMethod::Pool, &FirstAnswerCase::with_own_workspace()?, FORK_ROUNDS)?;
    Ok(vec![bare, pandas, own])
}

/// The interpreter, code and workspace of one figure.
struct FirstAnswerCase {
    environment: PythonEnvironment,
    code: &'static str,
    suffix: &'static str,
    workspace: Option<tempfile::TempDir>,
}

impl FirstAnswerCase {
    fn bare() -> Self {
        let environment = PythonEnvironment::bare(python::path());
        Self { environment, code: BARE, suffix: "", workspace: None }
    }

    fn with_pandas() -> Result<Self> {
        let environment = PythonEnvironment::with_pandas()?;
        Ok(Self { environment, code: WITH_PANDAS, suffix: "_np", workspace: None })
    }

    fn with_own_workspace() -> Result<Self> {
        let workspace = Some(tempfile::tempdir()?);
        Ok(Self { suffix: "_np_own", workspace, ..Self::with_pandas()? })
    }

    fn workspace(&self) -> Option<String> {
        self.workspace.as_ref().map(|workspace| workspace.path().display().to_string())
    }
}

fn measure(
    plan: &BenchPlan,
    start: StartMethod,
    case: &FirstAnswerCase,
    rounds: usize,
) -> Result<Figure> {
    let name = format!("first_answer_{}{}", start.as_str(), case.suffix);
    let times = block_on(async {
        let node = MeasuredNode::start(program()?, start, case.environment.clone()).await?;
        let mut times = Vec::new();
        for round in 0..WARM_UP_ROUNDS + plan.rounds(rounds) {
            let took = first_answer(&node, case).await?;
            if round >= WARM_UP_ROUNDS {
                times.push(took);
            }
            // Not measured: the pool fills while the session already works.
            node.ready().await?;
        }
        Ok(times)
    });
    let times = times.with_context(|| name.clone())?;
    let bare = (0..plan.rounds(EXEC_PANDAS_ROUNDS)).map(|_| bare_start(case));
    let bare = bare.collect::<Result<Vec<Duration>>>()?;
    Ok(Figure::of_times(&name, &times).beside(&millis(&bare)))
}

async fn first_answer(node: &MeasuredNode, case: &FirstAnswerCase) -> Result<Duration> {
    let wanted = CreateSession {
        interpreter: Some(node.interpreter()),
        workspace: case.workspace(),
        turn: Some(turn(case.code)),
        ..CreateSession::default()
    };
    let (session, took) = node::first_answer(&node.client, &wanted, "2\n").await?;
    node.check_started(&session, &[node.start]).await?;
    node.client.close_session(&session, AT_ONCE).await?;
    Ok(took)
}

/// The time of the same interpreter, alone and without a sandbox, to the first byte of its answer.
fn bare_start(case: &FirstAnswerCase) -> Result<Duration> {
    let mut command = python::command_of(&case.environment.interpreter);
    let code = case.code.replace("1+1", "print(1+1)");
    python::first_byte(command.args(["-c", &code]))
}

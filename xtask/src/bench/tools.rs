//! Host tools with Python on both ends: the Python SDK offers the tools, and code in a session calls them and
//! takes the times.
//!
//! - `tool_round_trip`: one call. The baseline is a bare socket between two Python processes.
//! - `tool_950kb`: one call with 950 kB of JSON each way. The baseline sends the same over a bare socket.
//! - `tool_38_concurrent`: 38 concurrent calls that take 100 ms each.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use windlass_protocol::{Outcome, SessionId};

use super::figure::{Figure, millis};
use super::node::{BenchNode, block_on};
use super::{BenchPlan, python};
use crate::workspace;

/// The script with the tool host and the baseline.
const SCRIPT: &str = "xtask/src/bench/tools.py";

/// The directory of the Python SDK.
const SDK: &str = "sdk/python/src";

const ROUNDS: usize = 4000;
const LARGE_ROUNDS: usize = 80;
const CONCURRENT_ROUNDS: usize = 20;
const LARGE_BYTES: usize = 950_000;

/// Both sides alternate in this many parts, so that noise of the machine affects both.
const PARTS: usize = 4;

/// Code that defines `times(n, act)`, which returns the nanoseconds of each round, and the measured
/// functions.
const PRELUDE: &str = "
import asyncio, json, time
text = 'x' * 950_000
def times(rounds, act):
    taken = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        act()
        taken.append(time.perf_counter_ns() - started)
    return taken
def large():
    assert len(tools.echo(value=text)) == len(text)
async def at_once():
    assert await asyncio.gather(*[tools.wait(ms=100) for _ in range(38)]) == [100] * 38
";

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start().await?;
        let session = bench.session().await?;
        let _host = ToolHost::start(&bench, &session)?;
        let ran = bench.run(&session, PRELUDE).await?;
        ensure!(ran.outcome == Some(Outcome::Ok), "the code failed: {}", ran.output.text);
        let small = |rounds| format!("times({rounds}, lambda: tools.echo(value=1))");
        let large = |rounds| format!("times({rounds}, large)");
        times(&bench, &session, &small(300)).await?;
        let (mut calls, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..PARTS {
            let rounds = plan.rounds(ROUNDS) / PARTS;
            calls.extend(times(&bench, &session, &small(rounds)).await?);
            bare.extend(bare_round_trips(rounds, 0)?);
        }
        let (mut large_calls, mut bare_large) = (Vec::new(), Vec::new());
        for _ in 0..PARTS {
            let rounds = plan.rounds(LARGE_ROUNDS) / PARTS;
            large_calls.extend(times(&bench, &session, &large(rounds)).await?);
            bare_large.extend(bare_round_trips(rounds, LARGE_BYTES)?);
        }
        // The first concurrent calls start the threads of the tool host.
        let at_once = |rounds| format!("times({rounds}, lambda: asyncio.run(at_once()))");
        times(&bench, &session, &at_once(1)).await?;
        let concurrent = times(&bench, &session, &at_once(plan.rounds(CONCURRENT_ROUNDS))).await?;
        Ok(vec![
            Figure::of_times("tool_round_trip", &calls).beside(&millis(&bare)),
            Figure::of_times("tool_950kb", &large_calls).beside(&millis(&bare_large)),
            Figure::of_times("tool_38_concurrent", &concurrent).beside(&[100.0]),
        ])
    })
}

/// Runs code that prints its times as JSON, and returns them.
async fn times(bench: &BenchNode, session: &SessionId, code: &str) -> Result<Vec<Duration>> {
    let submit = windlass_protocol::api::SubmitTurn {
        output_bytes_max: Some(1 << 20),
        ..super::node::turn(&format!("print(json.dumps({code}))"))
    };
    let turn = bench.client.submit_turn(session, &submit).await?;
    ensure!(turn.outcome == Some(Outcome::Ok), "the code failed: {}", turn.output.text);
    nanoseconds(&turn.output.text)
}

fn bare_round_trips(rounds: usize, bytes: usize) -> Result<Vec<Duration>> {
    let ran = script().args(["bare", &rounds.to_string(), &bytes.to_string()]).output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    nanoseconds(&String::from_utf8_lossy(&ran.stdout))
}

fn nanoseconds(json: &str) -> Result<Vec<Duration>> {
    let times: Vec<u64> =
        serde_json::from_str(json).with_context(|| format!("the code printed no times: {json}"))?;
    Ok(times.into_iter().map(Duration::from_nanos).collect())
}

fn script() -> Command {
    let mut command = python::command();
    command.arg(workspace::root().join(SCRIPT));
    command
}

/// The process that offers the tools. Dropping it ends the process.
struct ToolHost {
    child: Child,
}

impl ToolHost {
    fn start(bench: &BenchNode, session: &SessionId) -> Result<Self> {
        let dirs = bench.node.dirs();
        let mut child = script()
            .args(["host", session.as_str()])
            .env("PYTHONPATH", workspace::root().join(SDK))
            .env("WINDLASS_RUNTIME_DIR", &dirs.runtime)
            .env("WINDLASS_STATE_DIR", &dirs.state)
            .env("WINDLASS_BIN", bench.node.program())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("the tool host has no standard output")?)
            .read_line(&mut line)?;
        ensure!(line == "ready\n", "the tool host printed {line:?} instead of ready");
        Ok(Self { child })
    }
}

impl Drop for ToolHost {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! The cost of confinement for a session that is started by exec. Level `full` and level `none` alternate in
//! one run. bubblewrap around the same interpreter is measured for comparison.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use windlass_protocol::SessionId;
use windlass_protocol::api::CreateSession;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::PolicyRequest;

use super::figure::{Figure, millis};
use super::node::{self, AT_ONCE, BenchNode, block_on, create, turn};
use super::{BenchPlan, python};
use crate::start::StartMethod;

const FIRST_ROUNDS: usize = 40;
const WARM_ROUNDS: usize = 4000;
const WARM_UP_ROUNDS: usize = 300;

/// The number of turns at one level before the next turns at the other, so that noise of the machine affects
/// both.
const WARM_BATCH: usize = 50;

/// Three figures:
///
/// - `confined_first_answer`: the time from a request for a session at level `full` to its first answer. The
///   baseline is the same at level `none`.
/// - `confined_added`: the difference between the two levels in each round.
/// - `bwrap_exec`: the time that bubblewrap adds to the start of the bare interpreter. The baseline is
///   `confined_added`.
pub fn first_answers(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start_by(StartMethod::Exec).await?;
        let bwrap = bwrap_is_installed();
        let (mut full, mut none, mut added, mut wrapped) = (vec![], vec![], vec![], vec![]);
        // The first round does not count: it compiles the worker's files for this interpreter.
        for round in 0..=plan.rounds(FIRST_ROUNDS) {
            let (bare, confined) = both(&bench, round % 2 == 0).await?;
            let by_bwrap = match bwrap {
                true => Some(bwrap_start()?.as_secs_f64() - bare_start()?.as_secs_f64()),
                false => None,
            };
            if round > 0 {
                added.push((confined.as_secs_f64() - bare.as_secs_f64()) * 1000.0);
                wrapped.extend(by_bwrap.map(|seconds| seconds * 1000.0));
                full.push(confined);
                none.push(bare);
            }
        }
        let mut figures = vec![
            Figure::of_times("confined_first_answer", &full).beside(&millis(&none)),
            Figure::of("confined_added", "ms", &added),
        ];
        match bwrap {
            true => figures.push(Figure::of("bwrap_exec", "ms", &wrapped).beside(&added)),
            false => {
                eprintln!("skipped: bwrap_exec: bwrap is not installed; `--peers` installs it")
            }
        }
        Ok(figures)
    })
}

/// The times of the first answers at level `none` and at level `full`. The order of the levels alternates,
/// because the first session may warm caches for the second.
async fn both(bench: &BenchNode, full_first: bool) -> Result<(Duration, Duration)> {
    if full_first {
        let full = first_answer(bench, Isolation::Full).await?;
        return Ok((first_answer(bench, Isolation::None).await?, full));
    }
    let none = first_answer(bench, Isolation::None).await?;
    Ok((none, first_answer(bench, Isolation::Full).await?))
}

async fn first_answer(bench: &BenchNode, level: Isolation) -> Result<Duration> {
    let wanted = CreateSession { turn: Some(turn("1+1")), ..at_level(level) };
    let (session, took) = node::first_answer(&bench.client, &wanted, "2\n").await?;
    bench.client.close_session(&session, AT_ONCE).await?;
    Ok(took)
}

fn at_level(level: Isolation) -> CreateSession {
    let policy = PolicyRequest { isolation: Some(level), ..PolicyRequest::default() };
    CreateSession { policy: Some(policy), ..create() }
}

/// `confined_warm_turn`: `1+1` in a warm session at level `full`. The baseline is a session at level `none`.
pub fn warm_turns(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start().await?;
        let none = warm_session(&bench, Isolation::None).await?;
        let full = warm_session(&bench, Isolation::Full).await?;
        let (mut bare, mut confined) = (vec![], vec![]);
        while confined.len() < plan.rounds(WARM_ROUNDS) {
            warm_batch(&bench, &none, &mut bare).await?;
            warm_batch(&bench, &full, &mut confined).await?;
        }
        Ok(vec![Figure::of_times("confined_warm_turn", &confined).beside(&millis(&bare))])
    })
}

async fn warm_session(bench: &BenchNode, level: Isolation) -> Result<SessionId> {
    let session = bench.client.create_session(&at_level(level)).await?.session.id;
    for _ in 0..WARM_UP_ROUNDS {
        bench.run(&session, "1+1").await?;
    }
    Ok(session)
}

async fn warm_batch(
    bench: &BenchNode,
    session: &SessionId,
    times: &mut Vec<Duration>,
) -> Result<()> {
    for _ in 0..WARM_BATCH {
        let started = Instant::now();
        let turn = bench.run(session, "1+1").await?;
        times.push(started.elapsed());
        ensure!(turn.output.text == "2\n", "the turn answered {:?}", turn.output.text);
    }
    Ok(())
}

pub fn bwrap_is_installed() -> bool {
    let asked = Command::new("bwrap").arg("--version").stdout(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// A Python command in a bubblewrap sandbox with all namespaces.
pub fn bwrap(interpreter: &Path, code: &str) -> Command {
    let mut command = python::command_of("bwrap");
    command
        .args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"])
        .args(["--tmpfs", "/tmp"])
        .arg(interpreter)
        .args(["-c", code]);
    command
}

fn bwrap_start() -> Result<Duration> {
    time_of(&mut bwrap(&python::path(), "1"))
}

fn bare_start() -> Result<Duration> {
    time_of(python::command().args(["-c", "1"]))
}

fn time_of(command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    let status = command.status()?;
    ensure!(status.success(), "{command:?} failed");
    Ok(started.elapsed())
}

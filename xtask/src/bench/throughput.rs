//! `turns_per_s_1`, `_10`, `_100`: turns of `1+1` per second with 1, 10 or 100 sessions at once. Each session
//! has one client and one task, which sends the next turn when the last is answered. All tasks run in one
//! thread. The baseline is the same number of bare Python loops, driven in the same way over pipes.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinSet;
use windlass_client::Client;
use windlass_protocol::SessionId;

use super::BenchPlan;
use super::bare_pipe::{BareLoop, LoopProcess};
use super::figure::Figure;
use super::node::{BenchNode, block_on, turn};

/// Both sides alternate in this many parts, so that noise of the machine affects both.
const PARTS: usize = 5;

/// The length of one part of one side, in tenths. A quick run measures one tenth.
const TENTHS: usize = 10;
const TENTH: Duration = Duration::from_millis(100);

/// Turns of each session, or lines of each loop, before the measurement.
const WARM_UP_ROUNDS: usize = 50;

pub fn one(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(side_by_side(1, plan))
}

pub fn ten(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(side_by_side(10, plan))
}

pub fn hundred(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(side_by_side(100, plan))
}

async fn side_by_side(width: usize, plan: &BenchPlan) -> Result<Vec<Figure>> {
    let time = TENTH * u32::try_from(plan.rounds(TENTHS))?;
    let bench = BenchNode::start().await?;
    let mut sessions = Vec::new();
    for _ in 0..width {
        let session =
            SessionDriver { client: bench.node.client().await?, id: bench.session().await? };
        sessions.push(Responder::SessionDriver(session));
    }
    let mut loops = (0..width)
        .map(|_| AsyncPipe::start().map(Responder::AsyncPipe))
        .collect::<Result<Vec<_>>>()?;
    warm_up(&mut sessions).await?;
    warm_up(&mut loops).await?;
    let (mut turns, mut lines) = (Vec::new(), Vec::new());
    for _ in 0..PARTS {
        turns.push(rate(&mut sessions, time).await?);
        lines.push(rate(&mut loops, time).await?);
    }
    Ok(vec![Figure::of(&format!("turns_per_s_{width}"), "1/s", &turns).beside(&lines)])
}

/// A session or a bare loop. The same code drives both.
enum Responder {
    SessionDriver(SessionDriver),
    AsyncPipe(AsyncPipe),
}

impl Responder {
    async fn round(&mut self) -> Result<()> {
        match self {
            Self::SessionDriver(session) => session.round().await,
            Self::AsyncPipe(pipe) => pipe.round().await,
        }
    }
}

async fn warm_up(all: &mut [Responder]) -> Result<()> {
    for one in all {
        for _ in 0..WARM_UP_ROUNDS {
            one.round().await?;
        }
    }
    Ok(())
}

/// Answers per second of all responders together. Each gets its next request when it has answered.
async fn rate(all: &mut Vec<Responder>, time: Duration) -> Result<f64> {
    let mut loops = JoinSet::new();
    let began = Instant::now();
    for mut one in all.drain(..) {
        loops.spawn(async move {
            let mut rounds = 0_usize;
            while began.elapsed() < time {
                one.round().await?;
                rounds += 1;
            }
            anyhow::Ok((one, rounds))
        });
    }
    let mut rounds = 0;
    while let Some(done) = loops.join_next().await {
        let (one, its) = done??;
        rounds += its;
        all.push(one);
    }
    Ok(rounds as f64 / began.elapsed().as_secs_f64())
}

struct SessionDriver {
    client: Client,
    id: SessionId,
}

impl SessionDriver {
    async fn round(&mut self) -> Result<()> {
        let turn = self.client.submit_turn(&self.id, &turn("1+1")).await?;
        ensure!(turn.output.text == "2\n", "the turn answered {:?}", turn.output.text);
        Ok(())
    }
}

/// A bare loop with asynchronous pipes.
struct AsyncPipe {
    _loop: LoopProcess,
    stdin: Sender,
    stdout: BufReader<Receiver>,
    answer: String,
}

impl AsyncPipe {
    fn start() -> Result<Self> {
        let (of, stdin, stdout) = LoopProcess::start(&mut BareLoop::python())?;
        let ends = Sender::from_owned_fd(stdin.into())
            .and_then(|stdin| Ok((stdin, Receiver::from_owned_fd(stdout.into())?)));
        let (stdin, stdout) = ends.context("cannot wait for the loop's pipes")?;
        Ok(Self { _loop: of, stdin, stdout: BufReader::new(stdout), answer: String::new() })
    }

    async fn round(&mut self) -> Result<()> {
        self.answer.clear();
        self.exchange().await.context("the loop has ended")?;
        ensure!(self.answer == "2\n", "the loop answered {:?}", self.answer);
        Ok(())
    }

    async fn exchange(&mut self) -> io::Result<()> {
        self.stdin.write_all(b"1+1\n").await?;
        self.stdout.read_line(&mut self.answer).await.map(drop)
    }
}

//! `first_answer_exec`: from the request for a new session to the answer of its first turn, by the
//! plain exec path: keeper, interpreter and worker start for it. Beside a bare start of the same
//! interpreter.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use windlass_protocol::api::{CloseQuery, CreateSession};

use super::figure::{Figure, millis};
use super::node::{Bench, block_on, create, turn};
use super::{Plan, python};

const ROUNDS: usize = 40;

const AT_ONCE: CloseQuery = CloseQuery { grace_ms: Some(0) };

pub fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = Bench::start().await?;
        let wanted = CreateSession { turn: Some(turn("1+1")), ..create() };
        let (mut times, mut bare) = (Vec::new(), Vec::new());
        // The first one compiles the worker's files for this interpreter.
        for round in 0..=plan.rounds(ROUNDS) {
            let started = Instant::now();
            let created = bench.client.create_session(&wanted).await?;
            let took = started.elapsed();
            let answer = created.turn.context("no first turn")?;
            ensure!(answer.output.text == "2\n", "the turn answered {:?}", answer.output.text);
            bench.client.close_session(&created.session.id, AT_ONCE).await?;
            if round > 0 {
                times.push(took);
                bare.push(bare_start()?);
            }
        }
        Ok(vec![Figure::of_times("first_answer_exec", &times).beside(&millis(&bare))])
    })
}

fn bare_start() -> Result<Duration> {
    let started = Instant::now();
    let status = python::command().args(["-c", "print(1+1)"]).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "the interpreter failed");
    Ok(started.elapsed())
}

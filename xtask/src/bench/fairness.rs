//! `turn_beside_busy` and `work_beside_busy`: turns of a session beside four sessions that compute without
//! end. The baseline of a short turn is the same turn alone. The baseline of a turn that computes is its time
//! with an equal share of the processors.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use windlass_protocol::api::SubmitTurn;
use windlass_protocol::{Outcome, SessionId};

use super::BenchPlan;
use super::figure::{Figure, millis};
use super::node::{BenchNode, block_on, turn};

/// The number of sessions that compute all the time.
const BUSY: usize = 4;

const BRIEF: &str = "1+1";
const BRIEF_ROUNDS: usize = 1000;

/// Takes some tenths of a second on one processor.
const WORK: &str = "n = 0\nwhile n < 5_000_000: n += 1";
const WORK_ROUNDS: usize = 10;

const WARM_UP_ROUNDS: usize = 300;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start().await?;
        let session = bench.session().await?;
        times(&bench, &session, BRIEF, WARM_UP_ROUNDS).await?;
        let (briefs, works) = (plan.rounds(BRIEF_ROUNDS), plan.rounds(WORK_ROUNDS));
        let brief_alone = times(&bench, &session, BRIEF, briefs).await?;
        let work_alone = times(&bench, &session, WORK, works).await?;
        for _ in 0..BUSY {
            let busy = bench.session().await?;
            let endless = SubmitTurn { wait_ms: 0, ..turn("while True: pass") };
            bench.client.submit_turn(&busy, &endless).await?;
        }
        let brief = times(&bench, &session, BRIEF, briefs).await?;
        let work = times(&bench, &session, WORK, works).await?;
        let of_all = (BUSY + 1) as f64 / std::thread::available_parallelism()?.get() as f64;
        let share: Vec<f64> =
            millis(&work_alone).into_iter().map(|alone| alone * of_all.max(1.0)).collect();
        Ok(vec![
            Figure::of_times("turn_beside_busy", &brief).beside(&millis(&brief_alone)),
            Figure::of_times("work_beside_busy", &work).beside(&share),
        ])
    })
}

async fn times(
    bench: &BenchNode,
    session: &SessionId,
    code: &str,
    rounds: usize,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        let turn = bench.run(session, code).await?;
        times.push(started.elapsed());
        ensure!(turn.outcome == Some(Outcome::Ok), "the turn ended {:?}", turn.outcome);
    }
    Ok(times)
}

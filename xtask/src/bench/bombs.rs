//! `neighbour_quiet_p95` and `neighbour_bombed_p95`: `1+1` in a warm session, alone and beside four sessions
//! that push against their limits with a fork bomb, a memory bomb, a disk filler and an output flood. A bomb
//! that has ended is started again. The first figure is the baseline of the second.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_testkit::bombs::{WITH_A_FLOOD, small_limits};

use super::BenchPlan;
use super::figure::{Figure, millis, percentile};
use super::node::{BenchNode, block_on, create, turn};

/// Each side is measured for this many tenths of the full time. A quick run measures one tenth.
const TENTHS: usize = 10;
const TENTH: Duration = Duration::from_millis(1000);

const WARM_UP_ROUNDS: usize = 300;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let time = TENTH * u32::try_from(plan.rounds(TENTHS))?;
    block_on(async {
        let bench = BenchNode::start().await?;
        let neighbour = bench.session().await?;
        for _ in 0..WARM_UP_ROUNDS {
            bench.run(&neighbour, "1+1").await?;
        }
        let quiet = turns(&bench, &neighbour, time).await?;
        let mut bombing = JoinSet::new();
        for code in WITH_A_FLOOD {
            let id = bombed_session(&bench.client).await?;
            let client = bench.node.client().await?;
            bombing
                .spawn(async move { while client.submit_turn(&id, &turn(code)).await.is_ok() {} });
        }
        let bombed = turns(&bench, &neighbour, time).await?;
        bombing.shutdown().await;
        let p95 = |times: &[Duration]| percentile(&millis(times), 95.0).into_iter().collect();
        let (quiet, bombed): (Vec<f64>, Vec<f64>) = (p95(&quiet), p95(&bombed));
        Ok(vec![
            Figure::of("neighbour_quiet_p95", "ms", &quiet),
            Figure::of("neighbour_bombed_p95", "ms", &bombed).beside(&quiet),
        ])
    })
}

async fn bombed_session(client: &Client) -> Result<SessionId> {
    let mut wanted = create();
    wanted.policy.get_or_insert_default().limits = small_limits();
    Ok(client.create_session(&wanted).await?.session.id)
}

async fn turns(bench: &BenchNode, session: &SessionId, time: Duration) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let began = Instant::now();
    while began.elapsed() < time {
        let started = Instant::now();
        let turn = bench.run(session, "1+1").await?;
        times.push(started.elapsed());
        ensure!(turn.output.text == "2\n", "the turn answered {:?}", turn.output.text);
    }
    Ok(times)
}

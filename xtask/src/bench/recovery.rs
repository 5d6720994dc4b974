//! `kill_recovery`: the time from SIGKILL of the node, while a turn prints, until a new node answers a
//! request for that turn. `kill_lost_bytes`: the number of output bytes that are lost, doubled or out of
//! order after all kills.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use windlass_protocol::Outcome;
use windlass_protocol::api::{CreateSession, OutputQuery, SubmitTurn, TurnQuery};
use windlass_testkit::turn_ended;

use super::BenchPlan;
use super::figure::Figure;
use super::node::{BenchNode, block_on, create};

const KILLS: usize = 50;
const END_WAIT: Duration = Duration::from_secs(120);

const QUOTA_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// The longest time between two kills.
const PAUSE_MAX_MS: u64 = 60;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let kills = plan.rounds(KILLS);
        let mut bench = BenchNode::start().await?;
        // The quota is large, so that the complete output of a long run stays readable.
        let create = CreateSession { output_quota_bytes: Some(QUOTA_BYTES), ..create() };
        let session = bench.client.create_session(&create).await?.session.id;
        // The turn prints until the file `stop` exists, so that every kill happens while it prints. The file
        // is in the workspace, because the session cannot see other directories below /tmp.
        let workspace = bench.client.session(&session).await?.workspace;
        let stop = std::path::Path::new(&workspace).join("stop");
        let code = format!(
            "import os\nn = 0\nwhile not os.path.exists({:?}):\n    print('line', n)\n    n += 1\nn",
            stop.display().to_string()
        );
        let submit = SubmitTurn { code, ..SubmitTurn::default() };
        let turn = bench.client.submit_turn(&session, &submit).await?;
        let mut times = Vec::new();
        let mut random = Random(std::process::id().into());
        for _ in 0..kills {
            let pause = random.next() % PAUSE_MAX_MS;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let started = Instant::now();
            bench.node.kill9();
            bench.node.restart().await?;
            bench.client = bench.node.client().await?;
            bench.client.turn(&session, &turn.id, TurnQuery::default()).await?;
            times.push(started.elapsed());
        }
        std::fs::write(&stop, "")?;
        let ended = turn_ended(&bench.client, &session, &turn.id, END_WAIT).await?;
        ensure!(ended.outcome == Some(Outcome::Ok), "the turn ended as {:?}", ended.outcome);
        let wrong = wrong_bytes(&bench, &session, &turn.id.to_string()).await?;
        let mut lost = Figure::of("kill_lost_bytes", "bytes", &[wrong]);
        lost.n = kills;
        Ok(vec![Figure::of_times("kill_recovery", &times), lost])
    })
}

/// The number of bytes of the output that differ from the expected output.
async fn wrong_bytes(
    bench: &BenchNode,
    session: &windlass_protocol::SessionId,
    turn: &str,
) -> Result<f64> {
    let mut all = Vec::new();
    loop {
        let query = OutputQuery {
            turn: Some(turn.to_owned()),
            from: Some(all.len() as u64),
            ..OutputQuery::default()
        };
        let part = bench.client.output(session, &query).await?;
        if part.bytes.is_empty() {
            break;
        }
        all.extend_from_slice(&part.bytes);
    }
    let text = String::from_utf8(all).context("the output is not text")?;
    let count: u64 = text.lines().last().context("no output")?.parse()?;
    let mut expected: String = (0..count).map(|n| format!("line {n}\n")).collect();
    expected.push_str(&format!("{count}\n"));
    let differing = text.bytes().zip(expected.bytes()).filter(|(a, b)| a != b).count();
    Ok((differing + text.len().abs_diff(expected.len())) as f64)
}

/// A random generator. Its seed is the process id, so the times of the kills differ from run to run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

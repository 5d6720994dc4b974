//! `interrupt_sleep` and `interrupt_busy`: one call waits for a turn, and another interrupts it. The time is
//! from the interrupt to the answer of the waiting call.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use windlass_client::protocol::Seq;
use windlass_protocol::api::SubmitTurn;
use windlass_protocol::event::EventKind;
use windlass_protocol::{Outcome, SessionId};
use windlass_testkit::{turn_ended, wait_for_event};

use super::BenchPlan;
use super::figure::Figure;
use super::node::{BenchNode, block_on};

const ROUNDS: usize = 100;
const EVENT_WAIT: Duration = Duration::from_secs(30);

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let kinds = [
        ("interrupt_sleep", "import time; print('go'); time.sleep(60)"),
        ("interrupt_busy", "print('go')\nwhile True: pass"),
    ];
    block_on(async {
        let bench = BenchNode::start().await?;
        let session = bench.session().await?;
        let mut figures = Vec::new();
        for (name, code) in kinds {
            let mut times = Vec::new();
            for _ in 0..plan.rounds(ROUNDS) {
                times.push(one(&bench, &session, code).await?);
            }
            figures.push(Figure::of_times(name, &times));
        }
        Ok(figures)
    })
}

/// The time until an interrupted turn has ended. The code prints before it sleeps or spins.
pub async fn one(bench: &BenchNode, session: &SessionId, code: &str) -> Result<Duration> {
    let before = bench.client.session(session).await?.seq;
    let submit = SubmitTurn { code: code.to_owned(), ..SubmitTurn::default() };
    let turn = bench.client.submit_turn(session, &submit).await?;
    // The turn has started to sleep or spin when its output arrives.
    wait_for_event(&bench.client, session, Seq(before.0), EVENT_WAIT, |item| {
        item.event.turn == Some(turn.number) && matches!(item.event.kind, EventKind::Output { .. })
    })
    .await?;
    let started = Instant::now();
    let (asked, ended) = tokio::join!(
        bench.client.interrupt_turn(session, &turn.id),
        turn_ended(&bench.client, session, &turn.id, EVENT_WAIT),
    );
    let took = started.elapsed();
    asked?;
    let outcome = ended?.outcome;
    ensure!(outcome == Some(Outcome::Interrupted), "the turn ended as {outcome:?}");
    Ok(took)
}

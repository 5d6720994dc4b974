//! `warm_turn`: the time of `1+1` in a warm session, from the client's call to its answer.
//! `warm_turn_followed`: the same as the CLI does it, which submits the turn and follows the session's events
//! until the turn ends. The baseline of both is the bare pipe in the same run.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use windlass_protocol::Seq;
use windlass_protocol::api::SubmitTurn;
use windlass_protocol::event::EventKind;

use super::figure::{Figure, millis};
use super::node::{BenchNode, block_on};
use super::{BenchPlan, bare_pipe};

const ROUNDS: usize = 4000;
const WARM_UP_ROUNDS: usize = 300;

/// Both sides alternate in this many parts, so that noise of the machine affects both.
const PARTS: usize = 4;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start().await?;
        let session = bench.session().await?;
        for _ in 0..WARM_UP_ROUNDS {
            bench.run(&session, "1+1").await?;
        }
        let (mut turns, mut pipes) = (Vec::new(), Vec::new());
        for _ in 0..PARTS {
            for _ in 0..plan.rounds(ROUNDS) / PARTS {
                let started = Instant::now();
                let turn = bench.run(&session, "1+1").await?;
                turns.push(started.elapsed());
                ensure!(turn.output.text == "2\n", "the turn answered {:?}", turn.output.text);
            }
            pipes.extend(bare_pipe::round_trips(plan.rounds(ROUNDS) / PARTS)?);
        }
        let mut followed = Vec::new();
        let mut events = bench.client.events(&session, Seq(0));
        let submit = SubmitTurn { code: "1+1".into(), ..SubmitTurn::default() };
        let mut last = 0;
        for _ in 0..plan.rounds(ROUNDS) / PARTS {
            let started = Instant::now();
            let turn = bench.client.submit_turn(&session, &submit).await?;
            loop {
                let item = events.next().await?.context("the session ended")?;
                ensure!(item.event.seq.0 > last, "an event came twice");
                last = item.event.seq.0;
                let ended = matches!(item.event.kind, EventKind::TurnEnded { .. });
                if ended && item.event.turn == Some(turn.number) {
                    break;
                }
            }
            followed.push(started.elapsed());
        }
        let pipes = millis(&pipes);
        Ok(vec![
            Figure::of_times("warm_turn", &turns).beside(&pipes),
            // The first round also reads all earlier events, so it does not count.
            Figure::of_times("warm_turn_followed", &followed[1..]).beside(&pipes),
        ])
    })
}

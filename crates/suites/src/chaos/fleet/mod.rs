//! `cargo xtask chaos --fleet`: clients and faults against a fleet of real nodes and a store of three real servers, each
//! in a network namespace of its own. A seed decides the faults and what the clients try. The clients record what they
//! were told; after the faults, `checker` judges the record. `docs/chaos.md` describes the suite.

mod abilities;
mod checker;
mod coverage;
mod disk;
mod namespaces;
mod network;
mod player;
mod record;
mod run;
mod schedule;
mod store;
mod views;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::signal::unix::{SignalKind, signal};

use self::abilities::Abilities;
use super::isolation;
use crate::RunVerdict;

/// What to run.
#[derive(Debug)]
pub struct FleetRunPlan {
    pub program: PathBuf,
    pub seeds: Range<u64>,
    /// How long the clients of each seed work.
    pub work: Duration,
    /// No further seed begins after this time.
    pub until: Option<Duration>,
    /// The command that repeats a seed, without the seed itself.
    pub again: String,
}

pub fn run(plan: &FleetRunPlan) -> Result<RunVerdict> {
    ensure!(
        isolation::is_root(),
        "chaos --fleet needs root: it makes network namespaces and mounts"
    );
    if !namespaces::is_inside() {
        return namespaces::enter(&plan.program);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        // What is dropped here ends the processes of the run.
        tokio::select! {
            verdict = run_all(plan) => verdict,
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    })
}

async fn run_all(plan: &FleetRunPlan) -> Result<RunVerdict> {
    ensure!(!plan.seeds.is_empty(), "there is no seed to run: {:?}", plan.seeds);
    let abilities = Abilities::find();
    let began = Instant::now();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    let mut seeds = 0_u64;
    for seed in plan.seeds.clone() {
        if seeds > 0 && plan.until.is_some_and(|until| began.elapsed() > until) {
            break;
        }
        seeds += 1;
        let begun = Instant::now();
        let done = run::run(&plan.program, seed, plan.work, abilities).await?;
        for (what, count) in &done.counts {
            *counts.entry(what.clone()).or_default() += count;
        }
        for broken in &done.broken {
            println!("VIOLATION seed={seed} {broken}");
        }
        let (turns, faults) = (done.count(coverage::TURNS_ENDED), done.count("faults"));
        println!(
            "seed {seed}: {turns} ended turns, {faults} faults, {} violations, {:.0} s",
            done.broken.len(),
            begun.elapsed().as_secs_f64()
        );
        if let Some(kept) = &done.kept {
            println!("  to repeat it: {} --seed {seed}", plan.again);
            println!("  the record and the logs: {}", kept.display());
            failed.push(seed);
        }
    }
    println!("\ntotals of {seeds} seeds");
    for (what, count) in &counts {
        println!("  {what:<36} {count:>9}");
    }
    println!("  {:<36} {:>9.0}", "seconds", began.elapsed().as_secs_f64());
    if failed.is_empty() {
        return Ok(RunVerdict::Good);
    }
    println!("  failing seeds: {failed:?}");
    Ok(RunVerdict::Bad)
}

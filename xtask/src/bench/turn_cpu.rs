//! `turn_cpu_us`: the processor time of one warm turn in worker, node and keeper together. `turn_cpu_worker_us`,
//! `_node_us` and `_keeper_us`: the same for each of them. The kernel counts the time of each thread, so noise
//! of the machine hardly changes the figures.

use anyhow::{Context, Result, ensure};

use super::BenchPlan;
use super::figure::Figure;
use super::node::{BenchNode, block_on};
use crate::machine::{Tree, cpu_us, pids_inwards};

/// MiB of output in one sample of `output_cpu_node_us`.
const OUTPUT_MIB: usize = 64;
const OUTPUT_SAMPLES: usize = 5;

const PARTS: usize = 20;
const TURNS: usize = 4000;
const WARM_UP_TURNS: usize = 500;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start().await?;
        let session = bench.session().await?;
        for _ in 0..WARM_UP_TURNS {
            bench.run(&session, "1+1").await?;
        }
        let known = bench.client.session(&session).await?;
        let keeper = known.keeper_pid.context("the session has no keeper")?;
        let worker = known.worker_pid.context("the session has no worker")?;
        let is_worker = |pid: &u32| pids_inwards(*pid).get(1) == Some(&worker);
        let below = Tree::now().whole(keeper);
        let worker =
            below.into_iter().find(is_worker).context("the worker is not below its keeper")?;
        let processes = [worker, bench.node.pid(), keeper];
        let turns = (plan.rounds(TURNS) / PARTS).max(1);
        let mut samples: [Vec<f64>; 3] = Default::default();
        for _ in 0..PARTS {
            let before = processes.map(cpu_us);
            for _ in 0..turns {
                let turn = bench.run(&session, "1+1").await?;
                ensure!(turn.output.text == "2\n", "the turn answered {:?}", turn.output.text);
            }
            for ((of_one, pid), before) in samples.iter_mut().zip(processes).zip(before) {
                of_one.push((cpu_us(pid)? - before?) / turns as f64);
            }
        }
        let [worker, node, keeper] = &samples;
        let all: Vec<f64> =
            (0..PARTS).map(|part| worker[part] + node[part] + keeper[part]).collect();
        Ok(vec![
            Figure::of("turn_cpu_us", "us", &all),
            Figure::of("turn_cpu_worker_us", "us", worker),
            Figure::of("turn_cpu_node_us", "us", node),
            Figure::of("turn_cpu_keeper_us", "us", keeper),
        ])
    })
}

pub fn output(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start().await?;
        let session = bench.session().await?;
        let known = bench.client.session(&session).await?;
        let keeper = known.keeper_pid.context("the session has no keeper")?;
        let processes = [bench.node.pid(), keeper];
        let code = format!("for _ in range({OUTPUT_MIB}): print('x' * 1048575)");
        let mut samples: [Vec<f64>; 2] = Default::default();
        for _ in 0..plan.rounds(OUTPUT_SAMPLES) {
            let before = processes.map(cpu_us);
            let turn = bench.run(&session, &code).await?;
            ensure!(turn.output.bytes == (OUTPUT_MIB << 20) as u64, "{} bytes", turn.output.bytes);
            for ((of_one, pid), before) in samples.iter_mut().zip(processes).zip(before) {
                of_one.push((cpu_us(pid)? - before?) / OUTPUT_MIB as f64);
            }
        }
        let [node, keeper] = &samples;
        Ok(vec![
            Figure::of("output_cpu_node_us", "us", node),
            Figure::of("output_cpu_keeper_us", "us", keeper),
        ])
    })
}

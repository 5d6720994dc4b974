//! `turn_cpu_us`: the processor time of one warm turn in worker, node and keeper together. `turn_cpu_worker_us`,
//! `_node_us` and `_keeper_us`: the same for each of them. The kernel counts the time of each thread, so noise
//! of the machine hardly changes the figures.

use anyhow::{Context, Result, ensure};

use super::BenchPlan;
use super::figure::Figure;
use super::node::{BenchNode, block_on};
use crate::machine::{Tree, cpu_us, pids_inwards};

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

//! `turn_cpu_us`: the processor time of one warm turn in worker, node and keeper together. `turn_cpu_worker_us`,
//! `_node_us` and `_keeper_us`: the same for each of them. The kernel counts the time of each thread, so noise
//! of the machine hardly changes the figures. `turn_cpu_traced_us`: the first one on a node that sends spans.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use windlass_protocol::SessionId;
use windlass_testkit::TestNode;

use super::BenchPlan;
use super::figure::Figure;
use super::node::{self, BenchNode, block_on};
use crate::machine::{Tree, cpu_us, pids_inwards};

/// MiB of output in one sample of `output_cpu_node_us`.
const OUTPUT_MIB: usize = 64;
const OUTPUT_SAMPLES: usize = 5;

const PARTS: usize = 20;
const TURNS: usize = 4000;
const WARM_UP_TURNS: usize = 500;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let warm = WarmSession::start(BenchNode::start().await?).await?;
        let turns = (plan.rounds(TURNS) / PARTS).max(1);
        let mut samples: [Vec<f64>; 3] = Default::default();
        for _ in 0..PARTS {
            for (of_one, cpu) in samples.iter_mut().zip(warm.turns(turns).await?) {
                of_one.push(cpu);
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

/// The same with spans to a collector on this machine, beside a node without telemetry. The two take turns, so that both
/// meet the same noise. The collector's own time does not count.
pub fn traced(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let collector = SilentCollector::start()?;
    block_on(async {
        let endpoint = format!("[telemetry]\nendpoint = \"{}\"\n", collector.url);
        let builder = TestNode::builder(node::program()?).config(endpoint);
        let traced = WarmSession::start(BenchNode::started(builder).await?).await?;
        let plain = WarmSession::start(BenchNode::start().await?).await?;
        let turns = (plan.rounds(TURNS) / PARTS).max(1);
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..PARTS {
            with.push(traced.turns(turns).await?.iter().sum());
            without.push(plain.turns(turns).await?.iter().sum());
        }
        let requests = collector.requests.load(Ordering::Relaxed);
        ensure!(requests > 0, "the node sent no spans to the collector");
        Ok(vec![Figure::of("turn_cpu_traced_us", "us", &with).beside(&without)])
    })
}

/// A session that has run turns, and the processes that have a part in them.
struct WarmSession {
    bench: BenchNode,
    session: SessionId,
    /// Worker, node and keeper.
    processes: [u32; 3],
}

impl WarmSession {
    async fn start(bench: BenchNode) -> Result<Self> {
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
        Ok(Self { bench, session, processes })
    }

    /// The processor time of one turn in each process, from so many turns.
    async fn turns(&self, turns: usize) -> Result<[f64; 3]> {
        let before = self.processes.map(cpu_us);
        for _ in 0..turns {
            let turn = self.bench.run(&self.session, "1+1").await?;
            ensure!(turn.output.text == "2\n", "the turn answered {:?}", turn.output.text);
        }
        let mut spent = [0.0; 3];
        for ((spent, pid), before) in spent.iter_mut().zip(self.processes).zip(before) {
            *spent = (cpu_us(pid)? - before?) / turns as f64;
        }
        Ok(spent)
    }
}

/// Accepts what a node sends, and looks at none of it. Its thread ends with the program.
struct SilentCollector {
    url: String,
    requests: Arc<AtomicU64>,
}

impl SilentCollector {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let requests = Arc::new(AtomicU64::new(0));
        let counted = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection that breaks is opened again by the node.
                let _ = answer_all(stream, &counted);
            }
        });
        Ok(Self { url, requests })
    }
}

/// Answers the requests of one connection until the client closes it.
fn answer_all(stream: TcpStream, counted: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut body_bytes = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(length) = line.strip_prefix("content-length:") {
                body_bytes = length.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.is_empty() {
                break;
            }
        }
        std::io::copy(&mut reader.by_ref().take(body_bytes), &mut std::io::sink())?;
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        counted.fetch_add(1, Ordering::Relaxed);
    }
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

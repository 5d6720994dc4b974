//! `output_rate`: the rate in MiB/s at which a turn prints 1 GiB, until the turn has ended. The baseline is
//! the same program with a pipe to a reader that discards the bytes. `output_rss_growth_mib`: the largest
//! growth of the node's resident memory meanwhile.

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use windlass_protocol::Outcome;
use windlass_testkit::processes::rss_bytes;

use super::figure::Figure;
use super::node::{BenchNode, block_on};
use super::{BenchPlan, Effort, python};

const MIB: f64 = 1024.0 * 1024.0;
const ROUNDS: usize = 3;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let mebibytes = match plan.effort {
        Effort::Full | Effort::Rounds(_) => 1024,
        Effort::Quick => 128,
    };
    let code = format!(
        "import sys\nblock = (b'x' * 127 + b'\\n') * 8192\nfor _ in range({mebibytes}):\n    sys.stdout.buffer.write(block)\n"
    );
    block_on(async {
        let (mut rates, mut bare, mut growths) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let bench = BenchNode::start().await?;
            let session = bench.session().await?;
            let watch = MemoryWatch::start(bench.node.pid())?;
            let started = Instant::now();
            let turn = bench.run(&session, &code).await?;
            let took = started.elapsed();
            growths.push(watch.end() / MIB);
            ensure!(turn.outcome == Some(Outcome::Ok), "the turn ended as {:?}", turn.outcome);
            ensure!(
                turn.output.bytes == mebibytes << 20,
                "the turn printed {} bytes",
                turn.output.bytes
            );
            rates.push(mebibytes as f64 / took.as_secs_f64());
            bare.push(discarding_rate(&code, mebibytes)?);
        }
        Ok(vec![
            Figure::of("output_rate", "MiB/s", &rates).beside(&bare),
            Figure::of("output_rss_growth_mib", "MiB", &growths),
        ])
    })
}

fn discarding_rate(code: &str, mebibytes: u64) -> Result<f64> {
    let mut child = python::command().args(["-c", code]).stdout(Stdio::piped()).spawn()?;
    let mut pipe = child.stdout.take().context("no standard output")?;
    let mut buffer = vec![0; 64 * 1024];
    let mut bytes = 0u64;
    // The clock starts with the first byte, so the start of the interpreter does not count.
    let mut started = None;
    loop {
        let read = pipe.read(&mut buffer)?;
        started.get_or_insert_with(Instant::now);
        if read == 0 {
            break;
        }
        bytes += read as u64;
    }
    let took = started.context("nothing was read")?.elapsed();
    ensure!(
        child.wait()?.success() && bytes == mebibytes << 20,
        "the baseline printed {bytes} bytes"
    );
    Ok(mebibytes as f64 / took.as_secs_f64())
}

/// Samples the resident memory of a process in a thread.
struct MemoryWatch {
    before: u64,
    most: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl MemoryWatch {
    fn start(pid: u32) -> Result<Self> {
        let before = rss_bytes(pid).context("the node has ended")?;
        let most = Arc::new(AtomicU64::new(before));
        let done = Arc::new(AtomicBool::new(false));
        let (shared_most, shared_done) = (most.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            while !shared_done.load(Ordering::Relaxed) {
                shared_most.fetch_max(rss_bytes(pid).unwrap_or(0), Ordering::Relaxed);
                // More samples would slow down the measured turn.
                std::thread::park_timeout(std::time::Duration::from_millis(5));
            }
        });
        Ok(Self { before, most, done, thread })
    }

    /// Stops the thread and returns the largest growth in bytes.
    fn end(self) -> f64 {
        self.done.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // If the thread panicked, `most` still has the samples before.
        let _ = self.thread.join();
        self.most.load(Ordering::Relaxed).saturating_sub(self.before) as f64
    }
}

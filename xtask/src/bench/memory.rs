//! `session_mib`: what one idle session takes, keeper and worker together, as proportional set
//! size: shared pages count by their share. Beside a bare interpreter. `node_mib`: the node itself.

use std::process::Stdio;

use anyhow::{Context, Result};
use windlass_testkit::processes::below;

use super::figure::Figure;
use super::node::{Bench, block_on};
use super::{Plan, python};

const SESSIONS: usize = 20;
const KIB_PER_MIB: f64 = 1024.0;

pub fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = Bench::start().await?;
        let mut keepers = Vec::new();
        for _ in 0..plan.rounds(SESSIONS) {
            let session = bench.session().await?;
            let known = bench.client.session(&session).await?;
            keepers.push(known.keeper_pid.context("the session has no keeper")?);
        }
        let mut sizes = Vec::new();
        for keeper in keepers {
            let tree: Vec<u32> = below(keeper).into_iter().chain([keeper]).collect();
            let each = tree.into_iter().map(pss_mib).collect::<Result<Vec<f64>>>()?;
            sizes.push(each.iter().sum());
        }
        let node = pss_mib(bench.node.pid())?;
        Ok(vec![
            Figure::of("session_mib", "MiB", &sizes).beside(&[bare()?]),
            Figure::of("node_mib", "MiB", &[node]),
        ])
    })
}

pub fn pss_mib(pid: u32) -> Result<f64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).context("no Pss")?;
    let kib: f64 = line.split_ascii_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib / KIB_PER_MIB)
}

/// An interpreter that only waits, while it waits.
fn bare() -> Result<f64> {
    let mut child = python::command()
        .args(["-c", "print('up', flush=True); input()"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut up = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().context("no output")?, &mut up)?;
    let size = pss_mib(child.id());
    child.kill()?;
    child.wait()?;
    size
}

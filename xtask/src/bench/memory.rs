//! `session_mib`: what one idle session started by exec takes, keeper and worker together, as proportional set
//! size: shared pages count by their share. Beside a bare interpreter. `node_mib`: the node itself.

use std::process::Stdio;

use anyhow::{Context, Result};

use super::figure::Figure;
use super::node::{BenchNode, block_on};
use super::{BenchPlan, python};
use crate::machine::{Tree, pss_mib, pss_mib_of};
use crate::start::StartMethod;

const SESSIONS: usize = 20;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start_by(StartMethod::Exec).await?;
        let mut keepers = Vec::new();
        for _ in 0..plan.rounds(SESSIONS) {
            let session = bench.session().await?;
            let known = bench.client.session(&session).await?;
            keepers.push(known.keeper_pid.context("the session has no keeper")?);
        }
        let tree = Tree::now();
        let sizes = keepers.into_iter().map(|keeper| pss_mib_of(&tree.whole(keeper)));
        let sizes = sizes.collect::<Result<Vec<f64>>>()?;
        let node = pss_mib(bench.node.pid())?;
        Ok(vec![
            Figure::of("session_mib", "MiB", &sizes).beside(&[bare()?]),
            Figure::of("node_mib", "MiB", &[node]),
        ])
    })
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

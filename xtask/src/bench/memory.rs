//! `session_mib`: the memory of one idle session that is started by exec, keeper and worker together, as
//! proportional set size. The baseline is a bare interpreter. `node_mib`: the memory of the node.

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

/// The memory of an interpreter that waits for input.
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

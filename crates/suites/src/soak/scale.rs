//! `cargo xtask scale`: counts the resources that a node uses with no session, and with 1, 10 and 100 idle
//! sessions that have answered a turn. Prints how much each session adds. `docs/scale.md` shows the table.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::census::{Census, NodeProbe};
use super::report::shown;
use super::{cgroup_prefix, stable_census, wanted};
use crate::start::{MeasuredNode, PythonEnvironment, StartMethod};
use crate::{RunVerdict, workspace};

/// The number of sessions at each census. The first census has the node alone.
const STEPS: [usize; 4] = [0, 1, 10, 100];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How the sessions start
    #[arg(long, value_enum, default_value_t = StartMethod::Pool)]
    start: StartMethod,
    /// Import numpy and pandas in each session
    #[arg(long)]
    pandas: bool,
    /// Print one JSON object per line instead of the table
    #[arg(long)]
    json: bool,
}

/// One resource, at each step.
#[derive(Debug, PartialEq, Serialize)]
struct ScaleRow {
    what: &'static str,
    counts: Vec<f64>,
    /// The growth from the last step but one to the last, divided by the sessions that were added.
    per_session: f64,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let lines = lines(&runtime.block_on(counts(args))?);
    if !args.json {
        let heads: String = STEPS.iter().map(|step| format!(" {step:>9}")).collect();
        println!("{:<26}{heads}  per session", "live sessions");
    }
    for line in &lines {
        match args.json {
            true => println!("{}", serde_json::to_string(line)?),
            false => println!("{}", line.shown()),
        }
    }
    Ok(RunVerdict::Good)
}

async fn counts(args: &Args) -> Result<Vec<Census>> {
    let environment = match args.pandas {
        true => PythonEnvironment::with_pandas()?,
        false => PythonEnvironment::bare(windlass_testkit::python()),
    };
    let node = MeasuredNode::start(workspace::windlass()?, args.start, environment).await?;
    let mut wanted = wanted(&node);
    if let Some(turn) = wanted.turn.as_mut().filter(|_| args.pandas) {
        turn.code = "import numpy, pandas\n1+1".into();
    }
    // Finding the prefix starts a session, which also creates everything that a node creates only once.
    let probe = NodeProbe::of(&node, cgroup_prefix(&node).await?);
    let (mut counts, mut sessions) = (Vec::new(), 0);
    for step in STEPS {
        while sessions < step {
            let created = node.client.create_session(&wanted).await?;
            let answer = created.turn.map(|turn| turn.output.text).unwrap_or_default();
            ensure!(answer == "2\n", "the turn answered {answer:?}");
            sessions += 1;
        }
        counts.push(stable_census(&node, &probe).await?);
    }
    Ok(counts)
}

/// Selects one count of a census.
type CensusField = fn(&Census) -> f64;

fn lines(counts: &[Census]) -> Vec<ScaleRow> {
    let named: [(&str, CensusField); 12] = [
        ("processes", |census| census.processes as f64),
        ("threads of the node", |census| census.node.threads as f64),
        ("threads of others", |census| census.others.threads as f64),
        ("descriptors of the node", |census| census.node.descriptors as f64),
        ("descriptors of others", |census| census.others.descriptors as f64),
        ("cgroups", |census| census.cgroups as f64),
        ("namespaces", |census| census.namespaces as f64),
        ("mounts", |census| census.mounts as f64),
        ("files", |census| census.files as f64),
        ("kept directories", |census| census.kept_directories as f64),
        ("MiB of the node", |census| census.node.mib),
        ("MiB of others", |census| census.others.mib),
    ];
    named.into_iter().map(|(what, count)| line(what, counts.iter().map(count).collect())).collect()
}

fn line(what: &'static str, counts: Vec<f64>) -> ScaleRow {
    let per_session = match (counts.as_slice(), STEPS) {
        ([.., before, last], [.., few, many]) => (last - before) / (many - few) as f64,
        _ => 0.0,
    };
    ScaleRow { what, counts, per_session }
}

impl ScaleRow {
    fn shown(&self) -> String {
        let counts: String =
            self.counts.iter().map(|count| format!(" {:>9}", shown(*count))).collect();
        format!("{:<26}{counts}  {:>11.2}", self.what, self.per_session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_adds_is_what_the_last_step_added() {
        let line = line("processes", vec![1.0, 4.0, 31.0, 301.0]);
        assert_eq!(line.per_session, 3.0);
        assert_eq!(line.shown().split_ascii_whitespace().last(), Some("3.00"));
    }
}

//! `cargo xtask conformance`: runs the official MCP conformance suite, in its stable and its alpha version,
//! against a node. Every scenario that applies must pass. The list of scenarios that do not apply must be
//! right, too.

mod docs;
mod fixtures;
mod forward;
mod judge;
mod results;
mod scenarios;
mod suite;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use windlass_client::Token;
use windlass_testkit::TestNode;

use self::fixtures::{FixtureSession, Translator};
use self::forward::Forwarder;
use self::judge::{ScenarioRow, judge};
use self::results::Check;
use self::suite::{Suite, SuiteRound, Suites};
use crate::{RunVerdict, workspace};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only this suite
    #[arg(long, value_enum)]
    suite: Option<Suite>,
    /// Run only this scenario
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// Print one JSON object per line instead of the table
    #[arg(long)]
    json: bool,
    /// Test this program instead of building one
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// Keep the results of the suites in this directory, which must not exist yet
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Run no suite; write docs/mcp-conformance.md
    #[arg(long, conflicts_with_all = ["suite", "scenario", "json", "program", "keep"])]
    write_docs: bool,
}

/// A round, and the scenarios of it to run.
#[derive(Debug)]
struct RoundPlan {
    round: SuiteRound,
    scenarios: Vec<String>,
}

/// The results of a round: the checks of each scenario.
#[derive(Debug)]
struct RoundResults {
    planned: RoundPlan,
    results: BTreeMap<String, Vec<Check>>,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    if args.write_docs {
        fs::write(workspace::root().join(docs::PATH), docs::text())?;
        return Ok(RunVerdict::Good);
    }
    let began = Instant::now();
    let suites = args.suite.map_or(Suite::ALL.to_vec(), |suite| vec![suite]);
    let installed = Suites::prepare(&suites)?;
    let plan = plan(&installed, &suites, args.scenario.as_deref())?;
    let program = match &args.program {
        Some(program) => std::path::absolute(program)?,
        None => workspace::windlass()?,
    };
    let temporary = tempfile::tempdir()?;
    let directory = match &args.keep {
        Some(kept) => {
            fs::create_dir(kept)?;
            std::path::absolute(kept)?
        }
        None => temporary.path().to_owned(),
    };
    let rounds = with_node(program, move |url| {
        let one = |planned| play(&installed, planned, url, &directory);
        plan.into_iter().map(one).collect::<Result<Vec<RoundResults>>>()
    })?;
    let rows: Vec<ScenarioRow> = rounds.iter().flat_map(RoundResults::rows).collect();
    match args.json {
        true => rows.iter().for_each(|row| println!("{}", row.json())),
        false => print!("{}", table::table(&rows, began.elapsed())),
    }
    // Printed last, because the end of a long run is what a terminal or CI log shows first.
    let mut complaints: Vec<String> = rows.iter().filter_map(complaint).collect();
    complaints.extend(judge::stale(rounds.iter().flat_map(RoundResults::wanted)));
    if args.suite.is_none() && args.scenario.is_none() {
        complaints.extend(judge::unconfirmed(&rows));
    }
    complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
    Ok(if complaints.is_empty() { RunVerdict::Good } else { RunVerdict::Bad })
}

/// The rounds that have a scenario to run.
fn plan(installed: &Suites, suites: &[Suite], scenario: Option<&str>) -> Result<Vec<RoundPlan>> {
    let mut plan = Vec::new();
    for suite in suites {
        let listed = installed.list(*suite)?;
        for round in suite.rounds() {
            let of_round = listed.iter().filter(|one| round.has(one)).map(|one| one.name.clone());
            let wanted = of_round.filter(|name| scenario.is_none_or(|scenario| name == scenario));
            let scenarios: Vec<String> = wanted.collect();
            if !scenarios.is_empty() {
                plan.push(RoundPlan { round: *round, scenarios });
            }
        }
    }
    ensure!(!plan.is_empty(), "the chosen suites have no such scenario");
    Ok(plan)
}

/// Starts a node of this program and runs `suites` with its URL.
fn with_node<T: Send + 'static>(
    program: PathBuf,
    suites: impl FnOnce(&str) -> Result<T> + Send + 'static,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let node = TestNode::builder(program).arg("--listen").arg("127.0.0.1:0").start().await?;
        let listen = node.client().await?.node_status().await?.listen;
        let address: SocketAddr = listen.context("the node does not listen")?.parse()?;
        let token = Token::read(&node.dirs().token())?;
        let translator = Translator::new(FixtureSession::make(&node).await?);
        let forwarder = Forwarder::start(address, token.as_str(), translator).await?;
        let url = format!("http://{}/mcp", forwarder.address);
        // The suites run in their own thread, because the forwarder needs this one.
        let done = tokio::task::spawn_blocking(move || suites(&url));
        done.await.context("the suites panicked")?
    })
}

fn play(
    installed: &Suites,
    planned: RoundPlan,
    url: &str,
    directory: &Path,
) -> Result<RoundResults> {
    let results = installed.run(planned.round, &planned.scenarios, url, directory)?;
    Ok(RoundResults { planned, results })
}

impl RoundResults {
    fn rows(&self) -> impl Iterator<Item = ScenarioRow> {
        let label = self.planned.round.label();
        let scenarios = self.planned.scenarios.iter();
        scenarios.map(move |name| judge(&label, name, self.results.get(name).map(Vec::as_slice)))
    }

    /// The results of the planned scenarios. A round may also have results of scenarios of other rounds.
    fn wanted(&self) -> impl Iterator<Item = (&str, &[Check])> + Clone {
        let scenarios = self.planned.scenarios.iter();
        scenarios.filter_map(|name| Some((name.as_str(), self.results.get(name)?.as_slice())))
    }
}

fn complaint(row: &ScenarioRow) -> Option<String> {
    let ScenarioRow { round, scenario, verdict, words, .. } = row;
    row.is_bad().then(|| format!("{round}: {scenario} {}: {words}", table::word(*verdict)))
}

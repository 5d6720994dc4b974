//! `cargo xtask conformance`: the official MCP suite, in its stable and its newest version, against
//! a node of its own. What applies has to pass, and the list of what does not has to be true.

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

use self::fixtures::{Prepared, Translator};
use self::forward::Forwarder;
use self::judge::{Row, judge};
use self::results::Check;
use self::suite::{Round, Suite, Suites};
use crate::{Verdict, workspace};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this suite
    #[arg(long, value_enum)]
    suite: Option<Suite>,
    /// Only this scenario
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// One JSON object a line instead of the table
    #[arg(long)]
    json: bool,
    /// This program instead of the one that is built here
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// Keep what the suites write, in this directory, which must not be there
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Only write docs/mcp-conformance.md anew
    #[arg(long, conflicts_with_all = ["suite", "scenario", "json", "program", "keep"])]
    write_docs: bool,
}

/// A round, and which scenarios of it are wanted.
#[derive(Debug)]
struct Planned {
    round: Round,
    scenarios: Vec<String>,
}

/// A round that was played: the checks that each scenario left.
#[derive(Debug)]
struct Played {
    planned: Planned,
    results: BTreeMap<String, Vec<Check>>,
}

pub fn run(args: &Args) -> Result<Verdict> {
    if args.write_docs {
        fs::write(workspace::root().join(docs::PATH), docs::text())?;
        return Ok(Verdict::Good);
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
    let place = match &args.keep {
        Some(directory) => {
            fs::create_dir(directory)?;
            std::path::absolute(directory)?
        }
        None => temporary.path().to_owned(),
    };
    let played = with_node(program, move |url| {
        let one = |planned| play(&installed, planned, url, &place);
        plan.into_iter().map(one).collect::<Result<Vec<Played>>>()
    })?;
    let rows: Vec<Row> = played.iter().flat_map(Played::rows).collect();
    match args.json {
        true => rows.iter().for_each(|row| println!("{}", row.json())),
        false => print!("{}", table::table(&rows, began.elapsed())),
    }
    // Last, where the end of a long run is all that is seen of it.
    let mut complaints: Vec<String> = rows.iter().filter_map(complaint).collect();
    complaints.extend(judge::stale(played.iter().flat_map(Played::wanted)));
    if args.suite.is_none() && args.scenario.is_none() {
        complaints.extend(judge::hollow(&rows));
    }
    complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
    Ok(if complaints.is_empty() { Verdict::Good } else { Verdict::Bad })
}

/// The rounds that have something to play.
fn plan(installed: &Suites, suites: &[Suite], scenario: Option<&str>) -> Result<Vec<Planned>> {
    let mut plan = Vec::new();
    for suite in suites {
        let listed = installed.list(*suite)?;
        for round in suite.rounds() {
            let of_round = listed.iter().filter(|one| round.has(one)).map(|one| one.name.clone());
            let wanted = of_round.filter(|name| scenario.is_none_or(|scenario| name == scenario));
            let scenarios: Vec<String> = wanted.collect();
            if !scenarios.is_empty() {
                plan.push(Planned { round: *round, scenarios });
            }
        }
    }
    ensure!(!plan.is_empty(), "no such scenario in these suites");
    Ok(plan)
}

/// Gives `suites` the address of a node of this program, for as long as they run.
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
        let translator = Translator::new(Prepared::make(&node).await?);
        let forwarder = Forwarder::start(address, token.as_str(), translator).await?;
        let url = format!("http://{}/mcp", forwarder.address);
        // The forwarder works meanwhile.
        let done = tokio::task::spawn_blocking(move || suites(&url));
        done.await.context("the suites panicked")?
    })
}

fn play(installed: &Suites, planned: Planned, url: &str, place: &Path) -> Result<Played> {
    let results = installed.run(planned.round, &planned.scenarios, url, place)?;
    Ok(Played { planned, results })
}

impl Played {
    fn rows(&self) -> impl Iterator<Item = Row> {
        let label = self.planned.round.label();
        let scenarios = self.planned.scenarios.iter();
        scenarios.map(move |name| judge(&label, name, self.results.get(name).map(Vec::as_slice)))
    }

    /// A round may leave results that another one is about.
    fn wanted(&self) -> impl Iterator<Item = (&str, &[Check])> + Clone {
        let scenarios = self.planned.scenarios.iter();
        scenarios.filter_map(|name| Some((name.as_str(), self.results.get(name)?.as_slice())))
    }
}

fn complaint(row: &Row) -> Option<String> {
    let Row { round, scenario, verdict, words, .. } = row;
    row.is_bad().then(|| format!("{round}: {scenario} {}: {words}", table::word(*verdict)))
}

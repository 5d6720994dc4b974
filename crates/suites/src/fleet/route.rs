//! What a fleet costs on the path of a turn: a warm turn on the owner's socket, through another node's socket, and on
//! a node without a fleet. Also how soon a session is found again after its owner was killed and started again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_protocol::api::SubmitTurn;
use windlass_testkit::{TestFleet, TestFleetPlan, TestNode};

use super::servers::{ms, percentile};
use crate::machine::{Tree, cpu_us};
use crate::{RunVerdict, workspace};

/// The default times of leases.
const PLAN: TestFleetPlan = TestFleetPlan { nodes: 2, lease: "30s", lost_after: "5m" };

/// The node that has the sessions, and the other one.
const OWNER: usize = 0;
const OTHER: usize = 1;

/// Turns of one kind in a row. The kinds alternate, so that noise of the machine affects all of them.
const BLOCK_TURNS: usize = 20;

const WARM_UP_TURNS: usize = 300;

/// How long one turn may take before the measurement fails.
const TURN_WAIT_MS: u64 = 60_000;

/// How much longer a turn may take through another node, at p50.
const ROUTED_ADDS_MAX_MS: f64 = 1.0;

/// How much more processor time a turn on its own node may take in a fleet, at p50, as a factor.
const LOCAL_FACTOR_MAX: f64 = 1.03;

/// How soon a session is found through another node after its owner is ready again.
const FOUND_WITHIN: Duration = Duration::from_secs(1);

/// When the measurement gives up to look for the session.
const FOUND_WAIT: Duration = Duration::from_secs(30);

/// The pause between two lookups: the resolution of the figure.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of turns of each kind
    #[arg(long, default_value_t = 2_000)]
    turns: usize,
    /// How often the owner is killed and started again
    #[arg(long, default_value_t = 5)]
    restarts: usize,
    /// The program to measure. Default: the one that WINDLASS_XTASK_PROGRAM names, else a release build
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// A way to a session, and the turns that were measured through it.
struct MeasuredDoor {
    name: &'static str,
    client: Client,
    session: SessionId,
    /// The processes that work for a turn: nodes, keeper and worker.
    processes: Vec<u32>,
    times: Vec<Duration>,
    /// The processor time of one turn in microseconds, for each block.
    cpu_us: Vec<f64>,
}

impl MeasuredDoor {
    /// A door of `nodes[0]` to a session. The session is in the last of the nodes.
    async fn open(name: &'static str, nodes: &[&TestNode], session: &SessionId) -> Result<Self> {
        let first = nodes.first().context("a door has a node")?;
        let client = first.client().await?;
        let (session, times) = (session.clone(), Vec::new());
        let mut door =
            Self { name, client, session, processes: Vec::new(), times, cpu_us: Vec::new() };
        // A session has told its processes once it has run a turn.
        door.turn().await?;
        let keeper = door.client.session(&door.session).await?.keeper_pid;
        door.processes = Tree::now().whole(keeper.context("the session has no keeper")?);
        door.processes.extend(nodes.iter().map(|node| node.pid()));
        Ok(door)
    }

    async fn turn(&self) -> Result<Duration> {
        let submit =
            SubmitTurn { code: "1".to_owned(), wait_ms: TURN_WAIT_MS, ..SubmitTurn::default() };
        let begun = Instant::now();
        let turn = self.client.submit_turn(&self.session, &submit).await?;
        let took = begun.elapsed();
        ensure!(
            turn.output.text == "1\n",
            "{}: the turn printed {:?}",
            self.name,
            turn.output.text
        );
        Ok(took)
    }

    async fn block(&mut self) -> Result<()> {
        let before = self.cpu()?;
        for _ in 0..BLOCK_TURNS {
            let took = self.turn().await?;
            self.times.push(took);
        }
        self.cpu_us.push((self.cpu()? - before) / BLOCK_TURNS as f64);
        Ok(())
    }

    fn cpu(&self) -> Result<f64> {
        self.processes.iter().try_fold(0.0, |sum, pid| Ok(sum + cpu_us(*pid)?))
    }

    /// Prints the figures. Returns the p50 of the time in milliseconds and that of the processor time in microseconds.
    fn print(&mut self) -> (f64, f64) {
        let p50 = ms(percentile(&mut self.times, 0.5));
        let p95 = ms(percentile(&mut self.times, 0.95));
        self.cpu_us.sort_by(f64::total_cmp);
        let cpu = self.cpu_us.get(self.cpu_us.len() / 2).copied().unwrap_or_default();
        println!("  {:<28} {p50:>8.3} ms {p95:>8.3} ms {cpu:>10.0} us", self.name);
        (p50, cpu)
    }
}

pub(super) async fn run(args: &Args) -> Result<RunVerdict> {
    let program = program(args)?;
    let alone = TestNode::start(&program).await?;
    let fleet = TestFleet::start(&program, PLAN).await?;
    let mut fleet =
        fleet.context("no nats-server: set WINDLASS_TEST_NATS, or put it on the PATH")?;
    let session = alone.session(&alone.client().await?).await?.id;
    let (owner, other) = (fleet.node(OWNER), fleet.node(OTHER));
    let in_fleet = owner.session(&owner.client().await?).await?.id;
    let mut doors = [
        MeasuredDoor::open("without a fleet", &[&alone], &session).await?,
        MeasuredDoor::open("in a fleet, its own node", &[owner], &in_fleet).await?,
        MeasuredDoor::open("in a fleet, another node", &[other, owner], &in_fleet).await?,
    ];
    measure(&mut doors, args.turns).await?;
    println!("{} warm turns of each kind, interleaved", doors[0].times.len());
    println!("  {:<28} {:>11} {:>11} {:>13}", "", "p50", "p95", "processors");
    let [bare, local, routed] = &mut doors;
    let ((_, bare_cpu), (local, local_cpu)) = (bare.print(), local.print());
    let (routed, _) = routed.print();
    let limits = [
        holds(
            "processors on its own node, as a factor of no fleet",
            local_cpu / bare_cpu,
            LOCAL_FACTOR_MAX,
        ),
        holds("another node adds, in ms", routed - local, ROUTED_ADDS_MAX_MS),
        found_again(&mut fleet, &in_fleet, args.restarts).await?,
    ];
    Ok(if limits.iter().all(|holds| *holds) { RunVerdict::Good } else { RunVerdict::Bad })
}

async fn measure(doors: &mut [MeasuredDoor; 3], turns: usize) -> Result<()> {
    for door in doors.iter() {
        for _ in 0..WARM_UP_TURNS {
            door.turn().await?;
        }
    }
    for round in 0..turns.div_ceil(BLOCK_TURNS) {
        for place in 0..doors.len() {
            // Each kind comes first in a third of the rounds.
            let place = (round + place) % doors.len();
            doors[place].block().await?;
        }
    }
    Ok(())
}

/// Prints a figure beside its limit. Returns whether the limit holds.
fn holds(what: &str, found: f64, most: f64) -> bool {
    let holds = found <= most;
    let word = if holds { "holds" } else { "BROKEN" };
    println!("  {what}: {found:.3}, at most {most:.3}: {word}");
    holds
}

/// Kills the owner and starts it again, and measures how soon another node finds the session.
async fn found_again(fleet: &mut TestFleet, session: &SessionId, times: usize) -> Result<bool> {
    let client = fleet.client(OTHER).await?;
    let mut slowest = Duration::ZERO;
    for _ in 0..times {
        fleet.kill9(OWNER);
        fleet.restart(OWNER).await?;
        let ready = Instant::now();
        loop {
            match client.session(session).await {
                Ok(_) => break,
                Err(error) if ready.elapsed() > FOUND_WAIT => {
                    bail!("session {session} is not found after its owner came back: {error}")
                }
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
        slowest = slowest.max(ready.elapsed());
        let submit =
            SubmitTurn { code: "2".to_owned(), wait_ms: TURN_WAIT_MS, ..SubmitTurn::default() };
        let turn = client.submit_turn(session, &submit).await?;
        ensure!(turn.output.text == "2\n", "the turn printed {:?}", turn.output.text);
    }
    let what = format!("found again after {times} kills of the owner, slowest in ms");
    Ok(holds(&what, ms(slowest), ms(FOUND_WITHIN)))
}

/// The program to measure. Builds it in release if no option or variable names one.
fn program(args: &Args) -> Result<PathBuf> {
    let named = match &args.program {
        Some(program) => Some(program.clone()),
        None => workspace::built()?,
    };
    let program = match named {
        Some(program) => program,
        None => {
            let build = ["build", "--release", "--quiet", "--package", "windlass"];
            let built = workspace::cargo().args(build).status().context("cannot run cargo")?;
            ensure!(built.success(), "cargo build --release failed");
            workspace::target().join("release/windlass")
        }
    };
    program.canonicalize().with_context(|| format!("there is no program {}", program.display()))
}

//! `cargo xtask soak`: creates and closes many sessions on one node, several at a time, and compares the
//! resources that the node uses before and after. A small leak per session is visible after thousands of
//! sessions.

mod census;
mod report;
pub mod scale;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};
use windlass_client::Client;
use windlass_protocol::api::{CloseQuery, CreateSession, StopSessions, SubmitTurn};
use windlass_protocol::policy::{Network, PolicyRequest, Preset};
use windlass_testkit::processes;

use self::census::{Census, NodeProbe};
use self::report::{GrowthRow, Leftovers, SoakReport};
use crate::start::{JsonConnection, MeasuredNode, PythonEnvironment, StartMethod};
use crate::{RunVerdict, machine, workspace};

/// The number of sessions that live at the same time.
const AT_ONCE: usize = 8;

/// Sessions before the first census. They create everything that a node creates only once, such as worker
/// files and threads.
const WARM_UP: usize = 64;

/// How long the node may take to release the resources of the last sessions. An idle thread of the runtime's
/// blocking pool lives for ten seconds.
const SETTLE_WAIT: Duration = Duration::from_secs(60);

/// How long processes may live after their node has ended.
const END_WAIT: Duration = Duration::from_secs(10);

/// The time between two censuses while the suite waits.
const CENSUS_EVERY: Duration = Duration::from_millis(100);

/// The node is stable when this many censuses in a row have equal counts.
const STABLE_CENSUSES: usize = 10;

/// How long a session's first answer may take.
const ANSWER_WAIT_MS: u64 = 60_000;

/// How many progress lines a long run prints.
const PROGRESS_LINES: usize = 10;

const NO_GRACE: CloseQuery = CloseQuery { grace_ms: Some(0) };

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The number of sessions
    #[arg(default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// How the sessions start
    #[arg(long, value_enum, default_value_t = StartMethod::Pool)]
    start: StartMethod,
    /// Create sessions with three policies, in workspaces of their clients
    #[arg(long)]
    mixed: bool,
    /// The number of sessions to request per second; without it, as many as possible
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    per_second: Option<u32>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(soak(usize::try_from(args.count)?, args))?;
    match args.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => println!("{}", report.table()),
    }
    Ok(if report.leaks() { RunVerdict::Bad } else { RunVerdict::Good })
}

async fn soak(count: usize, args: &Args) -> Result<SoakReport> {
    let start = args.start;
    let environment = PythonEnvironment::bare(windlass_testkit::python());
    let mut node = MeasuredNode::start(workspace::windlass()?, start, environment).await?;
    let cgroup_prefix = cgroup_prefix(&node).await?;
    let (kinds, _directories) = kinds(&node, args.mixed)?;
    churn(&node, WARM_UP, &kinds, None).await?;
    let probe = NodeProbe::of(&node, cgroup_prefix.clone());
    let before = stable_census(&node, &probe).await?;
    eprintln!("{count} sessions by {}, {AT_ONCE} at a time", start.as_str());
    let began = Instant::now();
    let pause = args.per_second.map(|asked| Duration::from_secs(1) / asked);
    let started = churn(&node, count, &kinds, pause).await?;
    let seconds = began.elapsed().as_secs_f64();
    let rows = settled(&node, &probe, &before, count).await?;
    let left = after_the_end(&mut node, cgroup_prefix.as_deref()).await?;
    Ok(SoakReport { sessions: count, start, started, seconds, rows, left })
}

/// The prefix of the names of this node's cgroups, read from a session's cgroup. `None` without cgroups.
async fn cgroup_prefix(node: &MeasuredNode) -> Result<Option<String>> {
    let created = node.client.create_session(&wanted(node)).await?.session.id;
    let keeper =
        node.client.session(&created).await?.keeper_pid.context("the session has no keeper")?;
    let below = machine::Tree::now().whole(keeper);
    let prefix = below.iter().find_map(|pid| {
        census::prefix_in(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
    });
    node.client.close_session(&created, NO_GRACE).await?;
    Ok(prefix)
}

/// Creates and closes `count` sessions. Returns how many of them each start method has started.
async fn churn(
    node: &MeasuredNode,
    count: usize,
    kinds: &[CreateSession],
    pause: Option<Duration>,
) -> Result<BTreeMap<String, usize>> {
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE.min(count) {
        let task = ChurnTask {
            client: node.node.client().await?,
            connection: node.connection().await?,
            kinds: kinds.to_vec(),
            next: Arc::clone(&next),
            count,
            began,
            pause,
        };
        tasks.spawn(task.run());
    }
    let mut started = BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        for by in done?? {
            *started.entry(by).or_insert(0) += 1;
        }
    }
    let may_not_exec = node.start != StartMethod::Exec;
    if let Some(sessions) = started.get(StartMethod::Exec.as_str()).filter(|_| may_not_exec) {
        bail!(
            "{sessions} of {count} sessions were started by exec, not by {}",
            node.start.as_str()
        );
    }
    Ok(started)
}

fn wanted(node: &MeasuredNode) -> CreateSession {
    let turn = SubmitTurn { code: "1+1".into(), wait_ms: ANSWER_WAIT_MS, ..SubmitTurn::default() };
    CreateSession {
        interpreter: Some(node.interpreter()),
        turn: Some(turn),
        ..CreateSession::default()
    }
}

/// The requests to send in rotation, and the workspaces that they name.
fn kinds(node: &MeasuredNode, mixed: bool) -> Result<(Vec<CreateSession>, Vec<TempDir>)> {
    if !mixed {
        return Ok((vec![wanted(node)], Vec::new()));
    }
    let policies = [
        PolicyRequest::default(),
        PolicyRequest { preset: Some(Preset::ReadOnly), ..PolicyRequest::default() },
        PolicyRequest { network: Some(Network::Open), ..PolicyRequest::default() },
    ];
    let directories: Vec<TempDir> = (0..AT_ONCE)
        .map(|_| tempfile::tempdir_in(node.node.base()))
        .collect::<std::io::Result<_>>()?;
    let kind = |(directory, policy): (&TempDir, &PolicyRequest)| CreateSession {
        workspace: Some(directory.path().display().to_string()),
        policy: Some(policy.clone()),
        ..wanted(node)
    };
    let all = directories.iter().flat_map(|place| policies.iter().map(move |one| (place, one)));
    Ok((all.map(kind).collect(), directories))
}

/// A task that creates and closes one session after the other. Several of them run at the same time.
struct ChurnTask {
    client: Client,
    connection: JsonConnection,
    kinds: Vec<CreateSession>,
    next: Arc<AtomicUsize>,
    count: usize,
    began: Instant,
    /// The time between two session requests of all tasks together.
    pause: Option<Duration>,
}

impl ChurnTask {
    /// Returns the start method of each of its sessions.
    async fn run(mut self) -> Result<Vec<String>> {
        let mut started = Vec::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return Ok(started);
            }
            if let Some(pause) = self.pause {
                let due = self.began + pause * u32::try_from(number)?;
                tokio::time::sleep_until(due.into()).await;
            }
            let one = self.one(number).await;
            started.push(one.with_context(|| format!("session number {number}"))?);
            let progress_every = (self.count / PROGRESS_LINES).max(1);
            if self.count > WARM_UP && (number + 1).is_multiple_of(progress_every) {
                eprintln!("{} of {} sessions", number + 1, self.count);
            }
        }
    }

    async fn one(&mut self, number: usize) -> Result<String> {
        let wanted = &self.kinds[number % self.kinds.len()];
        let created = self.client.create_session(wanted).await?;
        let answer = created.turn.context("no first turn")?;
        ensure!(answer.output.text == "2\n", "the turn answered {:?}", answer.output.text);
        let by = self.connection.started_by(&created.session.id).await?;
        self.client.close_session(&created.session.id, NO_GRACE).await?;
        Ok(by)
    }
}

/// Waits until the counts no longer change, and returns them.
async fn stable_census(node: &MeasuredNode, probe: &NodeProbe) -> Result<Census> {
    let until = Instant::now() + SETTLE_WAIT;
    let mut looks = looks();
    let mut connection = node.connection().await?;
    let (mut last, mut unchanged) = (probe.census(), 0);
    let mut change = String::new();
    while unchanged < STABLE_CENSUSES {
        ensure!(
            Instant::now() < until,
            "the node's counts still change after {SETTLE_WAIT:?}; the last change: {change}"
        );
        looks.tick().await;
        node.ready_over(&mut connection).await?;
        let now = probe.census();
        match now.same_counts(&last) {
            true => unchanged += 1,
            false => {
                unchanged = 0;
                change = format!("from {last:?} to {now:?}");
            }
        }
        last = now;
    }
    Ok(last)
}

/// Waits until the comparison shows no leak, or until [`SETTLE_WAIT`] has passed, and returns it.
async fn settled(
    node: &MeasuredNode,
    probe: &NodeProbe,
    before: &Census,
    count: usize,
) -> Result<Vec<GrowthRow>> {
    let until = Instant::now() + SETTLE_WAIT;
    let mut looks = looks();
    let mut connection = node.connection().await?;
    loop {
        looks.tick().await;
        node.ready_over(&mut connection).await?;
        let rows = report::compare(before, &probe.census(), count);
        if !rows.iter().any(GrowthRow::leaked) || Instant::now() >= until {
            return Ok(rows);
        }
    }
}

fn looks() -> Interval {
    let mut looks = interval(CENSUS_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// Stops the node and counts what is left. Nothing may be left after [`END_WAIT`]: a process that ends because its node
/// has ended needs a moment.
async fn after_the_end(node: &mut MeasuredNode, cgroup_prefix: Option<&str>) -> Result<Leftovers> {
    node.node.stop(StopSessions::Keep).await?;
    let until = Instant::now() + END_WAIT;
    let mut looks = looks();
    loop {
        looks.tick().await;
        let left = Leftovers {
            processes: processes::belonging(node.node.base()).len(),
            cgroups: cgroup_prefix.map_or(0, machine::cgroups),
        };
        if left == (Leftovers { processes: 0, cgroups: 0 }) || Instant::now() >= until {
            return Ok(left);
        }
    }
}

//! `cargo xtask soak`: creates and closes many sessions on one node, some at a time, and compares what
//! the node held of the machine before and after. What a session leaves behind, a thousand show.

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

use self::census::{Census, Place};
use self::report::{Left, Report, Row};
use crate::start::{Door, Environment, StartBy, StartNode};
use crate::{Verdict, machine, workspace};

/// Sessions that live at once.
const AT_ONCE: usize = 8;

/// Sessions before the first count: they make what is made once, from worker files to threads.
const WARM_UP: usize = 64;

/// How long the node may take to let go of what the last sessions held. Threads that blocked once
/// stay for ten seconds.
const SETTLE_WAIT: Duration = Duration::from_secs(60);

/// Between two looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Before the sessions, nothing may change for so many looks.
const STILL_LOOKS: usize = 10;

/// How long a session's first answer may take.
const ANSWER_WAIT_MS: u64 = 60_000;

/// How often a long run says how far it is, in parts of the whole.
const SAID_PARTS: usize = 10;

const NO_GRACE: CloseQuery = CloseQuery { grace_ms: Some(0) };

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many sessions
    #[arg(default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// How they start
    #[arg(long, value_enum, default_value_t = StartBy::Pool)]
    start: StartBy,
    /// Sessions over three policies, in directories of their clients
    #[arg(long)]
    mixed: bool,
    /// How many are asked for in a second; without it, as many as there can be
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    per_second: Option<u32>,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(soak(usize::try_from(args.count)?, args))?;
    match args.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => println!("{}", report.table()),
    }
    Ok(if report.leaks() { Verdict::Bad } else { Verdict::Good })
}

async fn soak(count: usize, args: &Args) -> Result<Report> {
    let start = args.start;
    let environment = Environment::bare(windlass_testkit::python());
    let mut node = StartNode::start(workspace::windlass()?, start, environment).await?;
    let cgroup_prefix = cgroup_prefix(&node).await?;
    let (kinds, _directories) = kinds(&node, args.mixed)?;
    churn(&node, WARM_UP, &kinds, None).await?;
    let place = Place::of(&node, cgroup_prefix.clone());
    let before = still(&node, &place).await?;
    eprintln!("{count} sessions by {}, {AT_ONCE} at a time", start.as_str());
    let began = Instant::now();
    let pause = args.per_second.map(|asked| Duration::from_secs(1) / asked);
    let started = churn(&node, count, &kinds, pause).await?;
    let seconds = began.elapsed().as_secs_f64();
    let rows = settled(&node, &place, &before, count).await?;
    let left = after_the_end(&mut node, cgroup_prefix.as_deref()).await?;
    Ok(Report { sessions: count, start, started, seconds, rows, left })
}

/// What the names of this node's cgroups begin with, found at a session's; none without cgroups.
async fn cgroup_prefix(node: &StartNode) -> Result<Option<String>> {
    let created = node.client.create_session(&wanted(node)).await?.session.id;
    let keeper = node.client.session(&created).await?.keeper_pid.context("no keeper")?;
    let below = machine::Tree::now().whole(keeper);
    let prefix = below.iter().find_map(|pid| {
        census::prefix_in(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
    });
    node.client.close_session(&created, NO_GRACE).await?;
    Ok(prefix)
}

/// Creates and closes so many sessions; gives how they say that they were started.
async fn churn(
    node: &StartNode,
    count: usize,
    kinds: &[CreateSession],
    pause: Option<Duration>,
) -> Result<BTreeMap<String, usize>> {
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut lanes = JoinSet::new();
    for _ in 0..AT_ONCE.min(count) {
        let lane = Lane {
            client: node.node.client().await?,
            door: node.door().await?,
            kinds: kinds.to_vec(),
            next: Arc::clone(&next),
            count,
            began,
            pause,
        };
        lanes.spawn(lane.run());
    }
    let mut started = BTreeMap::new();
    while let Some(done) = lanes.join_next().await {
        for by in done?? {
            *started.entry(by).or_insert(0) += 1;
        }
    }
    let asked_for_more = node.start != StartBy::Exec;
    if let Some(sessions) = started.get(StartBy::Exec.as_str()).filter(|_| asked_for_more) {
        bail!(
            "{sessions} of {count} sessions were started by exec, not by {}",
            node.start.as_str()
        );
    }
    Ok(started)
}

fn wanted(node: &StartNode) -> CreateSession {
    let turn = SubmitTurn { code: "1+1".into(), wait_ms: ANSWER_WAIT_MS, ..SubmitTurn::default() };
    CreateSession {
        interpreter: Some(node.interpreter()),
        turn: Some(turn),
        ..CreateSession::default()
    }
}

/// What sessions are asked for, one after the other, and the directories of their clients.
fn kinds(node: &StartNode, mixed: bool) -> Result<(Vec<CreateSession>, Vec<TempDir>)> {
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

/// One of those that create and close, one session after the other.
struct Lane {
    client: Client,
    door: Door,
    kinds: Vec<CreateSession>,
    next: Arc<AtomicUsize>,
    count: usize,
    began: Instant,
    /// Between two sessions of all lanes.
    pause: Option<Duration>,
}

impl Lane {
    /// Gives how each of its sessions was started.
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
            let said_every = (self.count / SAID_PARTS).max(1);
            if self.count > WARM_UP && (number + 1).is_multiple_of(said_every) {
                eprintln!("{} of {}", number + 1, self.count);
            }
        }
    }

    async fn one(&mut self, number: usize) -> Result<String> {
        let wanted = &self.kinds[number % self.kinds.len()];
        let created = self.client.create_session(wanted).await?;
        let answer = created.turn.context("no first turn")?;
        ensure!(answer.output.text == "2\n", "the turn answered {:?}", answer.output.text);
        let by = self.door.started_by(&created.session.id).await?;
        self.client.close_session(&created.session.id, NO_GRACE).await?;
        Ok(by)
    }
}

/// The count once nothing changes any more.
async fn still(node: &StartNode, place: &Place) -> Result<Census> {
    let until = Instant::now() + SETTLE_WAIT;
    let mut looks = looks();
    let mut door = node.door().await?;
    let (mut last, mut unchanged) = (place.census(), 0);
    let mut change = String::new();
    while unchanged < STILL_LOOKS {
        ensure!(
            Instant::now() < until,
            "the node is not still within {SETTLE_WAIT:?}; it changed last {change}"
        );
        looks.tick().await;
        node.ready_at(&mut door).await?;
        let now = place.census();
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

/// The comparison, once it shows no leak, or as it is after the longest wait.
async fn settled(
    node: &StartNode,
    place: &Place,
    before: &Census,
    count: usize,
) -> Result<Vec<Row>> {
    let until = Instant::now() + SETTLE_WAIT;
    let mut looks = looks();
    let mut door = node.door().await?;
    loop {
        looks.tick().await;
        node.ready_at(&mut door).await?;
        let rows = report::compare(before, &place.census(), count);
        if !rows.iter().any(Row::leaked) || Instant::now() >= until {
            return Ok(rows);
        }
    }
}

fn looks() -> Interval {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// What is still there when the node has ended: nothing may be.
async fn after_the_end(node: &mut StartNode, cgroup_prefix: Option<&str>) -> Result<Left> {
    node.node.stop(StopSessions::Keep).await?;
    Ok(Left {
        processes: processes::belonging(node.node.base()).len(),
        cgroups: cgroup_prefix.map_or(0, machine::cgroups),
    })
}

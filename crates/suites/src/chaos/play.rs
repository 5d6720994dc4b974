//! Runs one seed: a node with clients and faults for some seconds, and the checks at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use windlass_protocol::api::{SessionList, StopSessions};

use super::chaos_node::{ChaosNode, StartLimits};
use super::client::ChaosClient;
use super::faults::{FaultInjector, FaultKind};
use super::guests;
use super::http_client::HttpClient;
use super::leftovers;
use super::random::Random;
use super::raw_http::{NodeEndpoint, RawRequest};
use super::small_disk::SmallDisk;
use super::world::World;

/// The number of clients on the node's socket and on its TCP door.
const SOCKET_CLIENTS: u64 = 4;
const TCP_CLIENTS: u64 = 2;

/// How long clients may take to finish their operation and to check and close their sessions.
const FINISH_MAX: Duration = Duration::from_secs(240);

/// The start methods of sessions. The seed picks one.
const STARTS: [&str; 3] = ["exec", "zygote", "pool"];

/// The number of the random generator of the faults. No client has this number.
const FAULTS_GENERATOR: u64 = 1 << 32;

/// The settings that all seeds of a run share.
#[derive(Debug)]
pub struct RunSetup {
    pub program: PathBuf,
    pub seconds: u64,
    /// How many guests more count with each kind of worker.
    pub per_kind: usize,
    pub faults: Vec<FaultKind>,
    /// The small disk, if one could be mounted.
    pub disk: Option<PathBuf>,
    /// The cgroup that can limit processes, if one could be created.
    pub cgroup: Option<PathBuf>,
}

/// The result of one seed.
#[derive(Debug)]
pub struct SeedResult {
    pub counts: BTreeMap<String, u64>,
    pub violations: u64,
    pub seconds: f64,
    /// The copy of the node's state and log. Only for a seed with violations.
    pub kept: Option<PathBuf>,
}

pub async fn play(stage: &RunSetup, seed: u64) -> Result<SeedResult> {
    let began = Instant::now();
    let world = Arc::new(World::new(seed, windlass_testkit::python())?);
    let disk = stage.disk.as_deref().map(SmallDisk::new);
    let start_by = Random::of(&[seed]).pick(&STARTS).to_owned();
    let root = disk.as_ref().map(SmallDisk::root);
    let node = ChaosNode::start(&stage.program, start_by, root, stage.cgroup.as_deref()).await?;
    let clients = clients(&world, &node)?;
    let guests = guests::start(&world, &node, &stage.program, stage.per_kind)?;
    let faults = FaultInjector {
        http: HttpClient::new(&world, "faults", &node.socket()),
        node,
        kinds: stage.faults.clone(),
        disk: disk.clone(),
        processes: stage.cgroup.clone(),
        random: Random::of(&[seed, FAULTS_GENERATOR]),
    };
    let faults = tokio::spawn(faults.run());
    tokio::time::sleep(Duration::from_secs(stage.seconds)).await;
    world.finish();
    let mut faults = faults.await??;
    // The checks at the end run without resource limits.
    faults.node.set_limits(StartLimits::Usual)?;
    finish(&world, clients).await;
    guests.finish(&world).await;
    let kept = end(&world, &mut faults, disk.as_ref()).await?;
    Ok(SeedResult {
        counts: world.ledger.counts(),
        violations: world.ledger.violations(),
        seconds: began.elapsed().as_secs_f64(),
        kept,
    })
}

fn clients(world: &Arc<World>, node: &ChaosNode) -> Result<JoinSet<()>> {
    let mut clients = JoinSet::new();
    let tcp = node.tcp()?;
    for number in 0..SOCKET_CLIENTS + TCP_CLIENTS {
        let endpoint: NodeEndpoint =
            if number < SOCKET_CLIENTS { node.socket() } else { tcp.clone() };
        let http = HttpClient::new(world, &number.to_string(), &endpoint);
        clients.spawn(ChaosClient::new(http, number).run());
    }
    Ok(clients)
}

async fn finish(world: &World, mut clients: JoinSet<()>) {
    let all = async {
        while let Some(ended) = clients.join_next().await {
            if let Err(error) = ended {
                world.ledger.violation("-", "client", &format!("a client failed: {error}"));
            }
        }
    };
    if tokio::time::timeout(FINISH_MAX, all).await.is_err() {
        let text = format!("clients did not finish within {FINISH_MAX:?}");
        world.ledger.violation("-", "hang", &text);
    }
}

/// Closes the remaining sessions, stops the node, and looks for leftovers and panics.
async fn end(
    world: &Arc<World>,
    faults: &mut FaultInjector,
    disk: Option<&SmallDisk>,
) -> Result<Option<PathBuf>> {
    let mut http = HttpClient::new(world, "end", &faults.node.socket());
    close_all(&mut http).await;
    if let Some(left) = leftovers::of_sessions(&faults.node.node).await {
        http.violation("left", left);
    }
    if let Err(error) = faults.node.node.stop(StopSessions::End).await {
        http.violation("stop", format!("{error:#}"));
    }
    if let Some(left) = leftovers::of_node(&faults.node.node, &faults.node.state).await {
        http.violation("left", left);
    }
    let log = faults.node.log();
    if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
        http.violation("panic", line);
    }
    let kept = match world.ledger.violations() {
        0 => None,
        _ => Some(keep(&faults.node)?),
    };
    if disk.is_some() {
        let _ = std::fs::remove_dir_all(&faults.node.state);
    }
    Ok(kept)
}

/// Closes the sessions that malformed requests created or that clients could not close.
async fn close_all(http: &mut HttpClient) {
    let Ok(answer) = http.send_with_retry(&RawRequest::get("/v1/sessions"), 0).await else {
        return;
    };
    let Some(list) = http.read::<SessionList>("the sessions", &answer) else { return };
    for session in list.sessions {
        http.world.ledger.count("sessions closed at the end");
        let request = RawRequest::delete(format!("/v1/sessions/{}?grace_ms=0", session.id));
        if let Ok(answer) = http.send_with_retry(&request, 0).await
            && answer.status != 200
        {
            http.violation("close", format!("{}: {}", session.id, answer.shown()));
        }
    }
}

/// Copies the node's state and log to a directory that outlives the run.
fn keep(node: &ChaosNode) -> Result<PathBuf> {
    let kept = tempfile::Builder::new().prefix("wl-kept-").tempdir_in(kept_below())?.keep();
    let copied = Command::new("cp").arg("-a").arg(&node.state).arg(&kept).status();
    if !copied.is_ok_and(|status| status.success()) {
        eprintln!("could not copy everything in {}", node.state.display());
    }
    Ok(kept)
}

fn kept_below() -> &'static Path {
    Path::new("/var/tmp")
}

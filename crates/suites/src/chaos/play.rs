//! One seed: a node, its clients and its faults for some seconds, and what is left of them at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use windlass_protocol::api::{SessionList, StopSessions};

use super::asker::Asker;
use super::chaos_node::{ChaosNode, StartLimits};
use super::client::ChaosClient;
use super::faults::{Fault, Faults};
use super::guests;
use super::http::{Door, Request};
use super::leftovers;
use super::random::Random;
use super::small_disk::SmallDisk;
use super::world::World;

/// Clients at the node's socket, and at its TCP door.
const SOCKET_CLIENTS: u64 = 4;
const TCP_CLIENTS: u64 = 2;

/// How long clients may take to finish what they are at, and to check and close their sessions.
const FINISH_MAX: Duration = Duration::from_secs(240);

/// How sessions start, seed by seed.
const STARTS: [&str; 3] = ["exec", "zygote", "pool"];

/// The number in the seed's path that the faults draw from.
const FAULTS_PATH: u64 = 1 << 32;

/// What every seed of a run has in common.
#[derive(Debug)]
pub struct Stage {
    pub program: PathBuf,
    pub seconds: u64,
    pub faults: Vec<Fault>,
    /// A small file system, where one could be mounted.
    pub disk: Option<PathBuf>,
    /// A cgroup that can limit processes.
    pub cgroup: Option<PathBuf>,
}

/// What one seed gave.
#[derive(Debug)]
pub struct Played {
    pub counts: BTreeMap<String, u64>,
    pub violations: u64,
    pub seconds: f64,
    /// Where the node's state and log were kept.
    pub kept: Option<PathBuf>,
}

pub async fn play(stage: &Stage, seed: u64) -> Result<Played> {
    let began = Instant::now();
    let world = Arc::new(World::new(seed, windlass_testkit::python())?);
    let disk = stage.disk.as_deref().map(SmallDisk::new);
    let start_by = Random::of(&[seed]).pick(&STARTS).to_owned();
    let root = disk.as_ref().map(SmallDisk::root);
    let node = ChaosNode::start(&stage.program, start_by, root, stage.cgroup.as_deref()).await?;
    let clients = clients(&world, &node)?;
    let guests = guests::start(&world, &node, &stage.program)?;
    let faults = Faults {
        asker: Asker::new(&world, "faults", &node.socket()),
        node,
        kinds: stage.faults.clone(),
        disk: disk.clone(),
        processes: stage.cgroup.clone(),
        random: Random::of(&[seed, FAULTS_PATH]),
    };
    let faults = tokio::spawn(faults.run());
    tokio::time::sleep(Duration::from_secs(stage.seconds)).await;
    world.finish();
    let mut faults = faults.await??;
    // The end is looked at without shortages.
    faults.node.set_limits(StartLimits::Usual)?;
    finish(&world, clients).await;
    guests.finish(&world).await;
    let kept = end(&world, &mut faults, disk.as_ref()).await?;
    Ok(Played {
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
        let door: Door = if number < SOCKET_CLIENTS { node.socket() } else { tcp.clone() };
        let asker = Asker::new(world, &number.to_string(), &door);
        clients.spawn(ChaosClient::new(asker, number).run());
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
        let text = format!("clients have not finished within {FINISH_MAX:?}");
        world.ledger.violation("-", "hang", &text);
    }
}

/// Closes what is left, stops the node, and looks for what stays behind.
async fn end(
    world: &Arc<World>,
    faults: &mut Faults,
    disk: Option<&SmallDisk>,
) -> Result<Option<PathBuf>> {
    let mut asker = Asker::new(world, "end", &faults.node.socket());
    close_all(&mut asker).await;
    if let Some(left) = leftovers::of_sessions(&faults.node.node).await {
        asker.violation("left", left);
    }
    if let Err(error) = faults.node.node.stop(StopSessions::End).await {
        asker.violation("stop", format!("{error:#}"));
    }
    if let Some(left) = leftovers::of_node(&faults.node.node, &faults.node.state).await {
        asker.violation("left", left);
    }
    let log = faults.node.log();
    if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
        asker.violation("panic", line);
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

/// Sessions that malformed requests made, and that clients could not close.
async fn close_all(asker: &mut Asker) {
    let Ok(answer) = asker.patient(&Request::get("/v1/sessions"), 0).await else { return };
    let Some(list) = asker.read::<SessionList>("the sessions", &answer) else { return };
    for session in list.sessions {
        asker.world.ledger.count("sessions closed at the end");
        let request = Request::delete(format!("/v1/sessions/{}?grace_ms=0", session.id));
        if let Ok(answer) = asker.patient(&request, 0).await
            && answer.status != 200
        {
            asker.violation("close", format!("{}: {}", session.id, answer.shown()));
        }
    }
}

/// Copies the node's state, with its log, to where it stays.
fn keep(node: &ChaosNode) -> Result<PathBuf> {
    let kept = tempfile::Builder::new().prefix("wl-kept-").tempdir_in(kept_below())?.keep();
    let copied = Command::new("cp").arg("-a").arg(&node.state).arg(&kept).status();
    if !copied.is_ok_and(|status| status.success()) {
        eprintln!("not everything of {} could be kept", node.state.display());
    }
    Ok(kept)
}

fn kept_below() -> &'static Path {
    Path::new("/var/tmp")
}

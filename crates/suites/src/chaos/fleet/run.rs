//! Runs one seed: a fleet with clients and faults for some seconds, and the checks at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::abilities::Abilities;
use super::checker::{self, BrokenPromise};
use super::coverage;
use super::player::{FleetDoor, FleetPlayer};
use super::record::SessionHistory;
use super::schedule::{FleetSchedule, ScheduledFault};
use super::views;
use super::world::FleetWorld;
use crate::workspace;

/// The number of clients.
const CLIENTS: u64 = 6;

/// How long the last turns of all sessions may take, after the faults.
const LAST_TURNS_WAIT: Duration = Duration::from_secs(90);

/// The result of one seed.
#[derive(Debug)]
pub struct FleetRunResult {
    pub counts: BTreeMap<String, u64>,
    pub broken: Vec<BrokenPromise>,
    /// The directory with the record and the logs. Only for a seed with violations.
    pub kept: Option<PathBuf>,
}

impl FleetRunResult {
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }
}

/// What happened in the world, besides what the clients were told.
#[derive(Debug, Default)]
struct WorldNotes {
    /// Each fault, with the time at which it began or ended.
    lines: Vec<String>,
    counts: BTreeMap<String, u64>,
    broken: Vec<BrokenPromise>,
}

impl WorldNotes {
    fn count(&mut self, what: String) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn broken(&mut self, text: String) {
        self.broken.push(BrokenPromise { kind: "away", session: "fleet".to_owned(), text });
    }
}

pub async fn run(
    program: &Path,
    seed: u64,
    work: Duration,
    abilities: Abilities,
) -> Result<FleetRunResult> {
    let schedule = FleetSchedule::of(seed, u64::try_from(work.as_millis())?);
    let mut world = FleetWorld::start(program, &schedule, abilities).await?;
    let doors = Arc::new(world.doors().await?);
    let began = Instant::now();
    let mut players = JoinSet::new();
    for number in 0..CLIENTS {
        players.spawn(FleetPlayer::new(seed, number, doors.clone()).play(began + work));
    }
    let mut notes = WorldNotes::default();
    let FleetSchedule { nodes, lease, lost_after, .. } = schedule;
    notes.lines.push(format!("{nodes} nodes, lease {lease}, lost after {lost_after}"));
    inflict(&mut world, &schedule.faults, began, abilities, &mut notes).await;
    let mut players = players.join_all().await;
    for node in world.dead_nodes() {
        notes.broken(format!("{node} does not run after the faults"));
    }
    if let Err(error) = world.serve().await {
        notes.broken(format!("after the faults, {error:#}"));
    }
    let until = Instant::now() + LAST_TURNS_WAIT;
    for player in &mut players {
        player.last_turns(until).await;
    }
    judge(seed, &world, &doors, players, notes).await
}

/// Begins and ends the faults, each at its time.
async fn inflict(
    world: &mut FleetWorld,
    faults: &[ScheduledFault],
    began: Instant,
    abilities: Abilities,
    notes: &mut WorldNotes,
) {
    let mut moments: Vec<(u64, bool, &ScheduledFault)> = Vec::new();
    for planned in faults {
        if abilities.allow(&planned.fault) {
            moments.push((planned.begin_ms, true, planned));
            moments.push((planned.end_ms, false, planned));
            notes.count("faults".to_owned());
            notes.count(format!("fault: {}", planned.fault.name()));
        } else {
            notes.count(format!("skipped fault: {}", planned.fault.name()));
        }
    }
    moments.sort_by_key(|(at_ms, begins, _)| (*at_ms, *begins));
    for (at_ms, begins, planned) in moments {
        sleep_until((began + Duration::from_millis(at_ms)).into()).await;
        let (word, done) = match begins {
            true => ("begins", world.begin(&planned.fault).await),
            false => ("ends", world.end(&planned.fault).await),
        };
        let at = began.elapsed().as_millis();
        notes.lines.push(format!("{at:>7} ms {word}: {:?}", planned.fault));
        if let Err(error) = done {
            notes.broken(format!("a fault {word}: {:?}: {error:#}", planned.fault));
        }
    }
}

/// Looks at every session through every node, and judges the record.
async fn judge(
    seed: u64,
    world: &FleetWorld,
    doors: &[FleetDoor],
    players: Vec<FleetPlayer>,
    notes: WorldNotes,
) -> Result<FleetRunResult> {
    let WorldNotes { lines, mut counts, mut broken } = notes;
    let mut histories: Vec<SessionHistory> = Vec::new();
    for player in players {
        for (what, count) in player.counts {
            *counts.entry(what).or_default() += count;
        }
        let odd = player.odd.into_iter();
        let session = format!("client {}", player.number);
        broken.extend(odd.map(|text| BrokenPromise {
            kind: "refusal",
            session: session.clone(),
            text,
        }));
        histories.extend(player.histories);
    }
    views::complete(doors, &mut histories).await;
    broken.extend(checker::check(&histories));
    counts.extend(coverage::counts(&histories));
    broken.extend(coverage::too_little(&counts));
    let kept = match broken.is_empty() {
        true => None,
        false => Some(keep(seed, world, &lines, &broken, &histories)?),
    };
    Ok(FleetRunResult { counts, broken, kept })
}

/// Keeps what explains a violation: the faults, the violations, the record and the logs.
fn keep(
    seed: u64,
    world: &FleetWorld,
    lines: &[String],
    broken: &[BrokenPromise],
    histories: &[SessionHistory],
) -> Result<PathBuf> {
    let directory = workspace::target().join(format!("chaos-fleet/seed-{seed}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
    fs::write(directory.join("faults.txt"), lines.join("\n"))?;
    fs::write(directory.join("violations.txt"), broken.join("\n"))?;
    fs::write(directory.join("record.txt"), format!("{histories:#?}"))?;
    world.keep_logs(&directory);
    Ok(directory)
}

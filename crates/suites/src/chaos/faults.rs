//! What goes wrong around the clients, and when: the seed decides. Each fault notes what it may cost in the
//! facts before it is done, and in the ledger once it is.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use windlass_protocol::api::{Session, SessionList};
use windlass_testkit::processes;

use super::asker::Asker;
use super::chaos_node::{ChaosNode, Going, StartLimits};
use super::http::Request;
use super::random::Random;
use super::small_disk::SmallDisk;
use super::world::{Facts, World, set};

/// Between two faults.
const PAUSE_MS_MIN: u64 = 200;
const PAUSE_MS_MAX: u64 = 1800;

/// A stopped process goes on after this at the latest.
const STOPPED_MS_MAX: u64 = 2000;

/// How long a disk stays full, and how long forks are refused.
const SHORTAGE_MS_MAX: u64 = 1500;

/// What a dead keeper held is gone after this, also under load.
const HELD_GONE: Duration = Duration::from_secs(3);

/// The clock moves by up to so much, either way: less than what is on disk is kept for.
const CLOCK_MS_MAX: u64 = 12 * 60 * 60 * 1000;

/// Processes that may still be started while few may.
const FORKS_LEFT: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Fault {
    /// The node is killed -9 and started again
    Node,
    /// The node is stopped for an upgrade and started again
    Upgrade,
    /// The node is stopped (SIGSTOP) for a moment
    Pause,
    /// A keeper is killed -9
    Keeper,
    /// A keeper is stopped for a moment
    KeeperPause,
    /// A worker is killed -9
    Worker,
    /// The nursery is killed -9
    Nursery,
    /// All connections of the clients are cut
    Connections,
    /// The disk is full for a moment; sometimes the node is killed meanwhile
    Disk,
    /// The node is started again with 200 descriptors
    Descriptors,
    /// The node is started again with little memory
    Memory,
    /// Few processes can be started for a moment
    Processes,
    /// The node's wall clock jumps
    Clock,
}

impl Fault {
    fn name(self) -> String {
        format!("{self:?}")
    }
}

#[derive(Debug)]
pub struct Faults {
    pub node: ChaosNode,
    pub asker: Asker,
    pub kinds: Vec<Fault>,
    pub disk: Option<SmallDisk>,
    /// The cgroup that the node is in, with a limit on processes.
    pub processes: Option<PathBuf>,
    pub random: Random,
}

impl Faults {
    /// Does one fault after the other until the run is over.
    pub async fn run(mut self) -> Result<Self> {
        let world = Arc::clone(&self.asker.world);
        while !world.is_over() && !self.kinds.is_empty() {
            let pause = self.random.within(PAUSE_MS_MIN, PAUSE_MS_MAX);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.check_alive().await?;
            let fault = *self.random.pick(&self.kinds);
            if self.cause(fault).await? {
                world.ledger.count(&format!("fault {}", fault.name()));
                world.ledger.count("faults");
            }
        }
        self.check_alive().await?;
        Ok(self)
    }

    /// The node ends only when a fault ends it.
    async fn check_alive(&mut self) -> Result<()> {
        if self.node.is_alive() {
            return Ok(());
        }
        let log = self.node.log();
        let tail: String = log.chars().rev().take(900).collect();
        let tail: String = tail.chars().rev().collect();
        self.asker.violation("died", format!("the node is gone; its log ends: {tail}"));
        self.come_back().await
    }

    /// Whether the fault could be done.
    async fn cause(&mut self, fault: Fault) -> Result<bool> {
        match fault {
            Fault::Node => self.restart(Going::Killed, StartLimits::Usual).await?,
            Fault::Upgrade => self.restart(Going::Stopped, StartLimits::Usual).await?,
            Fault::Descriptors => self.restart(Going::Stopped, StartLimits::FewDescriptors).await?,
            Fault::Memory => self.restart(Going::Killed, StartLimits::LittleMemory).await?,
            Fault::Pause => {
                let pid = self.node.node.pid();
                self.pause(pid).await;
            }
            Fault::Keeper => return self.kill_keeper().await,
            Fault::KeeperPause => return self.pause_keeper().await,
            Fault::Worker => return self.kill_worker().await,
            Fault::Nursery => return Ok(self.kill_nursery()),
            Fault::Connections => self.asker.world.cut_connections(),
            Fault::Disk => return self.fill_disk().await,
            Fault::Processes => return self.few_processes().await,
            Fault::Clock => {
                let offset = i64::try_from(self.random.below(2 * CLOCK_MS_MAX))?;
                self.node.set_clock(offset - i64::try_from(CLOCK_MS_MAX)?)?;
            }
        }
        Ok(true)
    }

    async fn restart(&mut self, going: Going, limits: StartLimits) -> Result<()> {
        let world = Arc::clone(&self.asker.world);
        world.node.begin();
        let starts = self.node.hold_starts()?;
        if let Err(error) = self.node.go(going).await {
            self.asker.violation("stop", format!("the node does not stop: {error:#}"));
        }
        let away = *self.random.pick(&[0, 0, 0, 200, 1000]);
        tokio::time::sleep(Duration::from_millis(away)).await;
        self.node.set_limits(limits)?;
        match limits {
            StartLimits::Usual if world.limits.active() => world.limits.end(),
            StartLimits::Usual => {}
            _ if world.limits.active() => {}
            _ => world.limits.begin(),
        }
        self.come_back().await?;
        drop(starts);
        world.node.end();
        self.check_sessions().await;
        Ok(())
    }

    async fn come_back(&mut self) -> Result<()> {
        if let Some(failure) = self.node.come_back().await? {
            self.asker.violation("start", failure);
        }
        Ok(())
    }

    /// Every session that was there and was not told as ended is there after a restart.
    async fn check_sessions(&mut self) {
        let world = Arc::clone(&self.asker.world);
        let before = world.live();
        let Ok(answer) = self.asker.patient(&Request::get("/v1/sessions"), 0).await else { return };
        let Some(list) = self.asker.read::<SessionList>("the sessions", &answer) else { return };
        for facts in before {
            let starved = world.scarcity.since(facts.scarcity);
            let excused = facts.may_end() || facts.worker_killed() || facts.closing() || starved;
            let is_there = list.sessions.iter().any(|found| found.id.as_str() == facts.session);
            if !is_there && !excused {
                let request = Request::get(format!("/v1/sessions/{}", facts.session));
                let said = self.asker.patient(&request, 0).await;
                let said = said.map(|answer| answer.shown()).unwrap_or_default();
                // The session's own client may have closed it during the restart.
                if !facts.closing() {
                    let text = format!("{} is not there after a restart: {said}", facts.session);
                    self.asker.violation("session", text);
                }
            }
        }
    }

    async fn pause(&mut self, pid: u32) {
        let Some(process) = process_handle(pid) else { return };
        let millis = self.random.within(50, STOPPED_MS_MAX);
        let _ = kill_process(process, Signal::STOP);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        let _ = kill_process(process, Signal::CONT);
    }

    /// One of the sessions, and its keeper's process.
    async fn a_keeper(&mut self) -> Option<(Arc<Facts>, u32)> {
        let live = self.asker.world.live();
        let live: Vec<_> = live.into_iter().filter(|facts| !facts.closing()).collect();
        if live.is_empty() {
            return None;
        }
        let facts = Arc::clone(self.random.pick(&live));
        let request = Request::get(format!("/v1/sessions/{}", facts.session));
        let answer = self.asker.patient(&request, 0).await.ok()?;
        let found: Session = serde_json::from_slice(&answer.body).ok()?;
        let keeper = found.keeper_pid.filter(|_| found.ended.is_none())?;
        // Never a process that only has the number of one that is gone.
        let is_ours = processes::name(keeper).is_some_and(|name| name.starts_with("windlass"));
        is_ours.then_some((facts, keeper))
    }

    fn family(&self, facts: &Facts) -> Vec<Arc<Facts>> {
        let live = self.asker.world.live();
        live.into_iter().filter(|one| one.family == facts.family).collect()
    }

    async fn kill_keeper(&mut self) -> Result<bool> {
        let Some((facts, keeper)) = self.a_keeper().await else { return Ok(false) };
        for one in self.family(&facts) {
            set(&one.may_end);
        }
        let held = processes::descendants(keeper);
        processes::kill(keeper);
        let gone = tokio::task::spawn_blocking(move || {
            held.into_iter()
                .filter(|pid| !processes::wait_gone(*pid, HELD_GONE))
                .collect::<Vec<_>>()
        });
        let mut left = gone.await?;
        if !left.is_empty() {
            let others = self.held_by_family(&facts).await;
            left.retain(|pid| !others.contains(pid));
        }
        let left: Vec<_> = left.into_iter().map(processes::arguments).collect();
        if !left.is_empty() {
            let text = format!("{}: its keeper is dead, these live: {left:?}", facts.session);
            self.asker.violation("left", text);
        }
        Ok(true)
    }

    /// The processes of the sessions that were forked from this one: they were below its keeper, and live on.
    async fn held_by_family(&mut self, facts: &Facts) -> BTreeSet<u32> {
        let mut held = BTreeSet::new();
        for one in self.family(facts) {
            let request = Request::get(format!("/v1/sessions/{}", one.session));
            let Ok(answer) = self.asker.patient(&request, 0).await else { continue };
            let found = serde_json::from_slice::<Session>(&answer.body).ok();
            let found = found.filter(|found| found.ended.is_none());
            if let Some(keeper) = found.and_then(|found| found.keeper_pid) {
                held.insert(keeper);
                held.extend(processes::descendants(keeper));
            }
        }
        held
    }

    async fn pause_keeper(&mut self) -> Result<bool> {
        let Some((facts, keeper)) = self.a_keeper().await else { return Ok(false) };
        set(&facts.worker_hurt);
        self.pause(keeper).await;
        Ok(true)
    }

    async fn kill_worker(&mut self) -> Result<bool> {
        let Some((facts, keeper)) = self.a_keeper().await else { return Ok(false) };
        // Below a family's first keeper are the workers of all.
        for one in self.family(&facts) {
            set(&one.worker_hurt);
            set(&one.worker_killed);
        }
        let workers = processes::workers(keeper);
        if workers.is_empty() {
            return Ok(false);
        }
        processes::kill(*self.random.pick(&workers));
        Ok(true)
    }

    fn kill_nursery(&mut self) -> bool {
        let nurseries = processes::nurseries(self.node.node.pid());
        nurseries.iter().for_each(|pid| processes::kill(*pid));
        !nurseries.is_empty()
    }

    async fn fill_disk(&mut self) -> Result<bool> {
        let Some(disk) = &self.disk else { return Ok(false) };
        let world = Arc::clone(&self.asker.world);
        world.disk.begin();
        disk.fill(*self.random.pick(&[0, 0, 4096, 65_536]))?;
        let millis = self.random.within(50, SHORTAGE_MS_MAX);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        if self.random.chance(20) {
            let going = *self.random.pick(&[Going::Killed, Going::Stopped]);
            world.node.begin();
            let starts = self.node.hold_starts()?;
            if let Err(error) = self.node.go(going).await {
                self.asker.violation("stop", format!("on a full disk: {error:#}"));
            }
            if self.random.chance(50)
                && let Some(disk) = &self.disk
            {
                disk.free()?;
            }
            self.start_on_full_disk().await?;
            drop(starts);
            world.node.end();
        }
        if let Some(disk) = &self.disk {
            disk.free()?;
        }
        world.disk.end();
        Ok(true)
    }

    /// One attempt with what room there is; the next ones with room.
    async fn start_on_full_disk(&mut self) -> Result<()> {
        if let Err(error) = self.node.node.restart().await {
            self.asker.violation("start", format!("on a full disk: {error:#}"));
            if let Some(disk) = &self.disk {
                disk.free()?;
            }
            self.come_back().await?;
        }
        Ok(())
    }

    async fn few_processes(&mut self) -> Result<bool> {
        let Some(cgroup) = self.processes.clone() else { return Ok(false) };
        let world: Arc<World> = Arc::clone(&self.asker.world);
        let current = std::fs::read_to_string(cgroup.join("pids.current"))?;
        let current: u64 = current.trim().parse()?;
        world.scarcity.begin();
        std::fs::write(cgroup.join("pids.max"), (current + FORKS_LEFT).to_string())?;
        let millis = self.random.within(50, SHORTAGE_MS_MAX);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        std::fs::write(cgroup.join("pids.max"), "max")?;
        world.scarcity.end();
        Ok(true)
    }
}

fn process_handle(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

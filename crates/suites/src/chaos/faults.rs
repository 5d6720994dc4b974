//! Injects faults while the clients work. The seed decides which fault comes when. Before a fault happens,
//! the session facts record what it may cause. After it has happened, the ledger counts it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use windlass_protocol::api::{Session, SessionList};
use windlass_testkit::processes;

use super::chaos_node::{ChaosNode, NodeExit, StartLimits};
use super::http_client::HttpClient;
use super::random::Random;
use super::raw_http::RawRequest;
use super::small_disk::SmallDisk;
use super::world::{ChaosSession, World, set};

/// The shortest and longest time between two faults.
const PAUSE_MS_MIN: u64 = 200;
const PAUSE_MS_MAX: u64 = 1800;

/// The longest time that a process is stopped (SIGSTOP).
const STOPPED_MS_MAX: u64 = 2000;

/// The longest time that a disk is full or processes are limited.
const SHORTAGE_MS_MAX: u64 = 1500;

/// How long the processes below a dead keeper may live, also under load.
const ORPHANS_GONE: Duration = Duration::from_secs(3);

/// The clock jumps by at most this, either way. The node keeps files of ended sessions for longer.
const CLOCK_MS_MAX: u64 = 12 * 60 * 60 * 1000;

/// The number of processes that can still be started while processes are limited.
const FORKS_LEFT: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum FaultKind {
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
    /// Only a few processes can be started for a moment
    Processes,
    /// The node's wall clock jumps
    Clock,
}

impl FaultKind {
    fn name(self) -> String {
        format!("{self:?}")
    }
}

#[derive(Debug)]
pub struct FaultInjector {
    pub node: ChaosNode,
    pub http: HttpClient,
    pub kinds: Vec<FaultKind>,
    pub disk: Option<SmallDisk>,
    /// The cgroup of the node, which can limit processes.
    pub processes: Option<PathBuf>,
    pub random: Random,
}

impl FaultInjector {
    /// Injects one fault after the other until the run is over.
    pub async fn run(mut self) -> Result<Self> {
        let world = Arc::clone(&self.http.world);
        while !world.is_over() && !self.kinds.is_empty() {
            let pause = self.random.within(PAUSE_MS_MIN, PAUSE_MS_MAX);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.check_alive().await?;
            let fault = *self.random.pick(&self.kinds);
            if self.inject(fault).await? {
                world.ledger.count(&format!("fault {}", fault.name()));
                world.ledger.count("faults");
            }
        }
        self.check_alive().await?;
        Ok(self)
    }

    /// Checks that the node runs: only a fault may end it.
    async fn check_alive(&mut self) -> Result<()> {
        if self.node.is_alive() {
            return Ok(());
        }
        let log = self.node.log();
        let tail: String = log.chars().rev().take(900).collect();
        let tail: String = tail.chars().rev().collect();
        self.http
            .violation("died", format!("the node has ended without a fault; its log ends: {tail}"));
        self.start_again().await
    }

    /// Injects a fault. Returns `false` if it is not possible now.
    async fn inject(&mut self, fault: FaultKind) -> Result<bool> {
        match fault {
            FaultKind::Node => self.restart(NodeExit::Killed, StartLimits::Usual).await?,
            FaultKind::Upgrade => self.restart(NodeExit::Stopped, StartLimits::Usual).await?,
            FaultKind::Descriptors => {
                self.restart(NodeExit::Stopped, StartLimits::FewDescriptors).await?
            }
            FaultKind::Memory => self.restart(NodeExit::Killed, StartLimits::LittleMemory).await?,
            FaultKind::Pause => {
                let pid = self.node.node.pid();
                self.pause(pid).await;
            }
            FaultKind::Keeper => return self.kill_keeper().await,
            FaultKind::KeeperPause => return self.pause_keeper().await,
            FaultKind::Worker => return self.kill_worker().await,
            FaultKind::Nursery => return Ok(self.kill_nursery()),
            FaultKind::Connections => self.http.world.cut_connections(),
            FaultKind::Disk => return self.fill_disk().await,
            FaultKind::Processes => return self.few_processes().await,
            FaultKind::Clock => {
                let offset = i64::try_from(self.random.below(2 * CLOCK_MS_MAX))?;
                self.node.set_clock(offset - i64::try_from(CLOCK_MS_MAX)?)?;
            }
        }
        Ok(true)
    }

    async fn restart(&mut self, exit: NodeExit, limits: StartLimits) -> Result<()> {
        let world = Arc::clone(&self.http.world);
        world.node.begin();
        let starts = self.node.hold_starts()?;
        if let Err(error) = self.node.end(exit).await {
            self.http.violation("stop", format!("the node does not stop: {error:#}"));
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
        self.start_again().await?;
        drop(starts);
        world.node.end();
        self.check_sessions().await;
        Ok(())
    }

    async fn start_again(&mut self) -> Result<()> {
        if let Some(failure) = self.node.start_again().await? {
            self.http.violation("start", failure);
        }
        Ok(())
    }

    /// Checks that a restart lost no session, except sessions that may have ended.
    async fn check_sessions(&mut self) {
        let world = Arc::clone(&self.http.world);
        let before = world.live();
        let Ok(answer) = self.http.send_with_retry(&RawRequest::get("/v1/sessions"), 0).await
        else {
            return;
        };
        let Some(list) = self.http.read::<SessionList>("the sessions", &answer) else { return };
        for facts in before {
            let starved = world.scarcity.since(facts.scarcity);
            let may_be_gone =
                facts.may_end() || facts.worker_killed() || facts.closing() || starved;
            let is_there = list.sessions.iter().any(|found| found.id.as_str() == facts.session);
            if !is_there && !may_be_gone {
                let request = RawRequest::get(format!("/v1/sessions/{}", facts.session));
                let said = self.http.send_with_retry(&request, 0).await;
                let said = said.map(|answer| answer.shown()).unwrap_or_default();
                // The session's client may have closed it during the restart.
                if !facts.closing() {
                    let text = format!("{} is missing after a restart: {said}", facts.session);
                    self.http.violation("session", text);
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

    /// Picks a session. Returns its facts and the pid of its keeper.
    async fn pick_keeper(&mut self) -> Option<(Arc<ChaosSession>, u32)> {
        let live = self.http.world.live();
        let live: Vec<_> = live.into_iter().filter(|facts| !facts.closing()).collect();
        if live.is_empty() {
            return None;
        }
        let facts = Arc::clone(self.random.pick(&live));
        let request = RawRequest::get(format!("/v1/sessions/{}", facts.session));
        let answer = self.http.send_with_retry(&request, 0).await.ok()?;
        let found: Session = serde_json::from_slice(&answer.body).ok()?;
        let keeper = found.keeper_pid.filter(|_| found.ended.is_none())?;
        // The pid of an ended keeper may belong to another process now.
        let is_ours = processes::name(keeper).is_some_and(|name| name.starts_with("windlass"));
        is_ours.then_some((facts, keeper))
    }

    fn family(&self, facts: &ChaosSession) -> Vec<Arc<ChaosSession>> {
        let live = self.http.world.live();
        live.into_iter().filter(|one| one.family == facts.family).collect()
    }

    async fn kill_keeper(&mut self) -> Result<bool> {
        let Some((facts, keeper)) = self.pick_keeper().await else { return Ok(false) };
        for one in self.family(&facts) {
            set(&one.may_end);
        }
        let below = processes::descendants(keeper);
        processes::kill(keeper);
        let gone = tokio::task::spawn_blocking(move || {
            below
                .into_iter()
                .filter(|pid| !processes::wait_gone(*pid, ORPHANS_GONE))
                .collect::<Vec<_>>()
        });
        let mut left = gone.await?;
        if !left.is_empty() {
            let others = self.processes_of_family(&facts).await;
            left.retain(|pid| !others.contains(pid));
        }
        let left: Vec<_> = left.into_iter().map(processes::arguments).collect();
        if !left.is_empty() {
            let text = format!(
                "{}: its keeper is dead, but these processes live: {left:?}",
                facts.session
            );
            self.http.violation("left", text);
        }
        Ok(true)
    }

    /// The processes of all sessions of a family. Twins live on when the keeper of the original dies,
    /// although their processes were below it.
    async fn processes_of_family(&mut self, facts: &ChaosSession) -> BTreeSet<u32> {
        let mut held = BTreeSet::new();
        for one in self.family(facts) {
            let request = RawRequest::get(format!("/v1/sessions/{}", one.session));
            let Ok(answer) = self.http.send_with_retry(&request, 0).await else { continue };
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
        let Some((facts, keeper)) = self.pick_keeper().await else { return Ok(false) };
        set(&facts.worker_hurt);
        self.pause(keeper).await;
        Ok(true)
    }

    async fn kill_worker(&mut self) -> Result<bool> {
        let Some((facts, keeper)) = self.pick_keeper().await else { return Ok(false) };
        // The workers of a whole family are below the keeper of its first session.
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
        let world = Arc::clone(&self.http.world);
        world.disk.begin();
        disk.fill(*self.random.pick(&[0, 0, 4096, 65_536]))?;
        let millis = self.random.within(50, SHORTAGE_MS_MAX);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        if self.random.chance(20) {
            let exit = *self.random.pick(&[NodeExit::Killed, NodeExit::Stopped]);
            world.node.begin();
            let starts = self.node.hold_starts()?;
            if let Err(error) = self.node.end(exit).await {
                self.http.violation("stop", format!("on a full disk: {error:#}"));
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

    /// Starts the node on the disk as it is. If that fails, frees the disk and starts the node again.
    async fn start_on_full_disk(&mut self) -> Result<()> {
        if let Err(error) = self.node.node.restart().await {
            self.http.violation("start", format!("on a full disk: {error:#}"));
            if let Some(disk) = &self.disk {
                disk.free()?;
            }
            self.start_again().await?;
        }
        Ok(())
    }

    async fn few_processes(&mut self) -> Result<bool> {
        let Some(cgroup) = self.processes.clone() else { return Ok(false) };
        let world: Arc<World> = Arc::clone(&self.http.world);
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

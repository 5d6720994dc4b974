//! The fleet of a run: real nodes and servers, each in a network namespace of its own. It begins and ends faults.
//!
//! The clients reach each node by its unix socket, which no network fault affects, as programs on the node's machine do.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use windlass_client::protocol::api::CloseQuery;
use windlass_testkit::fleet::node_name;
use windlass_testkit::{TestNode, processes};

use super::abilities::{Abilities, clocks_ahead};
use super::network::{ChaosNetwork, address, enter};
use super::player::{FleetDoor, asked};
use super::schedule::{FleetFault, FleetSchedule, NetworkMember, SERVERS, ServerRole};
use super::store::ChaosStore;
use crate::workspace::output_of;

/// The port where nodes listen for each other.
const NODE_PORT: u16 = 7421;

/// The start of each token that `windlass fleet invite` prints.
const JOIN_TOKEN: &str = "wlfleet1.";

/// How long a node may take to start while other faults go on.
const START_WAIT: Duration = Duration::from_secs(60);

/// The pause between two attempts to start a node, or to create a session.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// How long a node may take to answer the creation of a session.
const CREATE_WAIT: Duration = Duration::from_secs(10);

/// How long a node may take to create a session after the faults. A connection that was cut for 20 s may try again only
/// half a minute later.
const SERVE_WAIT: Duration = Duration::from_secs(120);

/// How much further the monotonic clock of each node is ahead of that of the node before.
const CLOCK_STEP_S: u64 = 40_000;

const CLOCK_FILE: &str = "WINDLASS_TEST_CLOCK_OFFSET_FILE";

/// A running fleet. It ends with this value.
#[derive(Debug)]
pub struct FleetWorld {
    // Dropped in this order: the network and the files are in use until all processes have ended.
    nodes: Vec<TestNode>,
    store: ChaosStore,
    network: ChaosNetwork,
    files: TempDir,
    abilities: Abilities,
    /// The server of the fault that goes on.
    server: usize,
    /// Nodes that were killed and not started again.
    down: BTreeSet<usize>,
}

impl FleetWorld {
    pub async fn start(
        program: &Path,
        schedule: &FleetSchedule,
        abilities: Abilities,
    ) -> Result<Self> {
        let files = tempfile::Builder::new().prefix("wl-fleet-").tempdir_in("/tmp")?;
        let network = ChaosNetwork::make(schedule.nodes)?;
        let store = ChaosStore::start(files.path(), abilities.has_disks)?;
        let mut world = Self {
            nodes: Vec::new(),
            store,
            network,
            files,
            abilities,
            server: 0,
            down: BTreeSet::new(),
        };
        for number in 0..schedule.nodes {
            let node = world.join(program, schedule, number).await;
            world
                .nodes
                .push(node.with_context(|| format!("{} does not start", node_name(number)))?);
        }
        world.serve().await?;
        Ok(world)
    }

    /// Makes the next node of the fleet and starts it.
    async fn join(
        &self,
        program: &Path,
        schedule: &FleetSchedule,
        number: usize,
    ) -> Result<TestNode> {
        let starter = self.starter(program, number)?;
        let clock = self.clock_file(number);
        fs::write(&clock, "0")?;
        let mut node = TestNode::builder(starter).env(CLOCK_FILE, clock).prepare()?;
        let (name, address) = (node_name(number), address(NetworkMember::Node(number)));
        let address = format!("{address}:{NODE_PORT}");
        match self.nodes.first() {
            None => {
                let mut arguments = vec!["fleet", "init", "--node", &name, "--address", &address];
                arguments.extend(["--lease", schedule.lease, "--lost-after", schedule.lost_after]);
                let urls = ChaosStore::urls();
                for url in &urls {
                    arguments.extend(["--store", url.as_str()]);
                }
                output_of(&mut node.command(&arguments))?;
            }
            Some(first) => {
                let said = output_of(&mut first.command(&["fleet", "invite"]))?;
                let token = said.split_ascii_whitespace().find(|word| word.starts_with(JOIN_TOKEN));
                let token = token.context("`windlass fleet invite` printed no token")?;
                let join = ["fleet", "join", token, "--node", &name, "--address", &address];
                output_of(&mut node.command(&join))?;
            }
        }
        node.restart().await?;
        Ok(node)
    }

    /// A script that runs the program in the namespace of a node, and with the clocks of that node.
    fn starter(&self, program: &Path, number: usize) -> Result<PathBuf> {
        let clocks = match self.abilities.has_clocks {
            true => {
                let ahead = CLOCK_STEP_S * u64::try_from(number)?;
                format!("unshare {} -- ", clocks_ahead(ahead).join(" "))
            }
            false => String::new(),
        };
        let enter = enter(NetworkMember::Node(number));
        let script =
            format!("#!/bin/sh\nexec nsenter {enter} -- {clocks}{} \"$@\"\n", program.display());
        let starter = self.files.path().join(format!("windlass{number}"));
        fs::write(&starter, script)?;
        fs::set_permissions(&starter, fs::Permissions::from_mode(0o755))?;
        Ok(starter)
    }

    fn clock_file(&self, number: usize) -> PathBuf {
        self.files.path().join(format!("clock{number}"))
    }

    fn set_clock(&self, number: usize, offset_ms: i64) -> Result<()> {
        // Renamed into place: the node may read the file at any moment.
        let (clock, next) = (self.clock_file(number), self.files.path().join("clock.next"));
        fs::write(&next, offset_ms.to_string())?;
        Ok(fs::rename(next, clock)?)
    }

    /// A way to each node. A request is sent once: the clients record what became of it.
    pub async fn doors(&self) -> Result<Vec<FleetDoor>> {
        let mut doors = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let client = node.client().await?.with_retry_for(Duration::ZERO);
            doors.push(FleetDoor { node: node_name(number), client });
        }
        Ok(doors)
    }

    /// Begins a fault.
    pub async fn begin(&mut self, fault: &FleetFault) -> Result<()> {
        match fault {
            FleetFault::NodeKilled(node) => {
                self.down.insert(*node);
                self.nodes[*node].kill9();
            }
            FleetFault::NodeStopped(node) => self.pid(*node).into_iter().for_each(processes::stop),
            FleetFault::ServerKilled(role) => {
                self.choose(*role).await;
                self.store.kill(self.server)?;
            }
            FleetFault::ServerStopped(role) => {
                self.choose(*role).await;
                self.store.stop(self.server);
            }
            FleetFault::ServerPowerLoss(role) => {
                self.choose(*role).await;
                self.store.lose_power(self.server)?;
            }
            FleetFault::AllServersKilled => {
                (0..SERVERS).try_for_each(|server| self.store.kill(server))?;
            }
            FleetFault::AllServersPowerLoss => {
                // All are stopped before the first one loses its power, as if all lost it at once.
                (0..SERVERS).for_each(|server| self.store.stop(server));
                (0..SERVERS).try_for_each(|server| self.store.lose_power(server))?;
            }
            FleetFault::Partition { side, way } => self.network.cut(side, *way)?,
            FleetFault::LinkDown(member) => self.network.unplug(*member)?,
            FleetFault::SlowLink(member) => {
                if let Some(discipline) = self.abilities.slow_link {
                    self.network.slow(*member, discipline)?;
                }
            }
            FleetFault::ClockJump { node, offset_ms } => self.set_clock(*node, *offset_ms)?,
        }
        Ok(())
    }

    async fn choose(&mut self, role: ServerRole) {
        self.server = self.store.in_role(role).await;
    }

    /// Ends a fault.
    pub async fn end(&mut self, fault: &FleetFault) -> Result<()> {
        match fault {
            FleetFault::NodeKilled(node) => self.start_again(*node).await?,
            FleetFault::NodeStopped(node) => {
                self.pid(*node).into_iter().for_each(processes::resume);
            }
            FleetFault::ServerKilled(_) | FleetFault::ServerPowerLoss(_) => {
                self.store.run(self.server)?;
            }
            FleetFault::ServerStopped(_) => self.store.resume(self.server),
            FleetFault::AllServersKilled | FleetFault::AllServersPowerLoss => {
                (0..SERVERS).try_for_each(|server| self.store.run(server))?;
            }
            FleetFault::Partition { .. } => self.network.join()?,
            FleetFault::LinkDown(member) => self.network.plug(*member)?,
            FleetFault::SlowLink(member) => self.network.quicken(*member)?,
            FleetFault::ClockJump { node, .. } => self.set_clock(*node, 0)?,
        }
        Ok(())
    }

    async fn start_again(&mut self, node: usize) -> Result<()> {
        let until = Instant::now() + START_WAIT;
        loop {
            match self.nodes[node].restart().await {
                Ok(()) => {
                    self.down.remove(&node);
                    return Ok(());
                }
                Err(error) if Instant::now() > until => {
                    let name = node_name(node);
                    return Err(error.context(format!("{name} does not start again")));
                }
                Err(_) => tokio::time::sleep(TRY_EVERY).await,
            }
        }
    }

    /// Waits until each node creates sessions.
    pub async fn serve(&self) -> Result<()> {
        for (number, node) in self.nodes.iter().enumerate() {
            let served = serves(node).await;
            served.with_context(|| format!("{} does not serve", node_name(number)))?;
        }
        Ok(())
    }

    /// The process of a node, unless the node was killed.
    fn pid(&self, node: usize) -> Option<u32> {
        (!self.down.contains(&node)).then(|| self.nodes[node].pid())
    }

    /// The nodes that do not run.
    pub fn dead_nodes(&self) -> Vec<String> {
        let is_dead = |node: &usize| !self.pid(*node).is_some_and(processes::alive);
        (0..self.nodes.len()).filter(is_dead).map(node_name).collect()
    }

    /// Copies the logs of nodes and servers into a directory.
    pub fn keep_logs(&self, directory: &Path) {
        for (number, node) in self.nodes.iter().enumerate() {
            let to = directory.join(format!("{}.log", node_name(number)));
            let _ = fs::copy(node.dirs().log(), to);
        }
        self.store.keep_logs(directory);
    }
}

/// Creates a session on a node and closes it, as soon as the node does that.
async fn serves(node: &TestNode) -> Result<()> {
    let client = node.client().await?.with_retry_for(Duration::ZERO);
    let until = Instant::now() + SERVE_WAIT;
    loop {
        match asked(CREATE_WAIT, client.create_session(&TestNode::create())).await {
            Ok(created) => {
                let close = CloseQuery { grace_ms: Some(0) };
                // The run ends it otherwise.
                let _ = asked(CREATE_WAIT, client.close_session(&created.session.id, close)).await;
                return Ok(());
            }
            Err(code) if Instant::now() > until => {
                bail!("no session within {SERVE_WAIT:?}: {code}")
            }
            Err(_) => tokio::time::sleep(TRY_EVERY).await,
        }
    }
}

//! A fleet for tests: three servers of the store, and real nodes with credentials that `windlass fleet` makes. A test
//! can kill, stop and restart each of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use windlass_client::Client;
use windlass_client::protocol::api::{CloseQuery, CreateSession, Session};

use crate::nats::{NatsServers, SERVERS, free_ports};
use crate::{TestNode, TestNodeBuilder, processes};

/// How long a node may take to join: first, the servers of the store elect a leader.
pub const JOIN_WAIT: Duration = Duration::from_secs(20);

/// How long a command of `windlass fleet` may take.
const COMMAND_WAIT: Duration = Duration::from_secs(30);

/// The pause between two attempts to create a session.
const CREATE_EVERY: Duration = Duration::from_millis(100);

/// The start of each token that `windlass fleet invite` prints.
const JOIN_TOKEN: &str = "wlfleet1.";

/// The code of a request that needs the store while the store does not answer.
pub const FLEET_UNAVAILABLE: &str = "fleet_unavailable";

/// The size of a fleet and the times of its leases.
#[derive(Debug, Clone, Copy)]
pub struct TestFleetPlan {
    pub nodes: usize,
    /// The key `lease` of `[fleet]`.
    pub lease: &'static str,
    /// The key `lost_after` of `[fleet]`.
    pub lost_after: &'static str,
}

impl TestFleetPlan {
    /// Short leases. After its last renewal a node takes no new sessions from 2.2 s on, has no lease from 3 s on, and
    /// fences itself after 7.35 s. Others declare it lost after 13 s.
    pub fn short(nodes: usize) -> Self {
        Self { nodes, lease: "3s", lost_after: "10s" }
    }

    /// Leases that outlast the election of a leader after all servers were killed: a node fences itself after 42.5 s.
    pub fn patient(nodes: usize) -> Self {
        Self { nodes, lease: "10s", lost_after: "40s" }
    }
}

/// A running fleet. Nodes are counted from 0 and named `n1`, `n2` and so on. Dropping it kills everything that it
/// started.
#[derive(Debug)]
pub struct TestFleet {
    // The nodes are dropped before the servers of their store.
    nodes: Vec<TestNode>,
    servers: NatsServers,
}

impl TestFleet {
    /// Starts a fleet and waits until each node has joined. `None` if this machine has no `nats-server`.
    pub async fn start(
        program: impl Into<PathBuf>,
        plan: TestFleetPlan,
    ) -> anyhow::Result<Option<Self>> {
        let program = program.into();
        Self::start_with(plan, || TestNode::builder(&program)).await
    }

    /// The same with nodes that the caller configures.
    pub async fn start_with(
        plan: TestFleetPlan,
        builder: impl Fn() -> TestNodeBuilder,
    ) -> anyhow::Result<Option<Self>> {
        let Some(servers) = NatsServers::start()? else { return Ok(None) };
        let mut fleet = Self { nodes: Vec::new(), servers };
        for (number, port) in free_ports(plan.nodes)?.into_iter().enumerate() {
            let mut node = builder().prepare()?;
            let address = format!("127.0.0.1:{port}");
            match fleet.nodes.first() {
                None => init(&node, &address, &fleet.servers.urls()).await?,
                Some(first) => {
                    let token = invite(first).await?;
                    let name = node_name(number);
                    let join = ["fleet", "join", &token, "--node", &name, "--address", &address];
                    said_by(node.command(&join)).await?;
                }
            }
            set_times(&node.config_file(), plan)?;
            let started = node.restart().await;
            started.with_context(|| format!("the node {} does not start", node_name(number)))?;
            fleet.nodes.push(node);
        }
        for number in 0..plan.nodes {
            fleet.joined(number).await?;
        }
        Ok(Some(fleet))
    }

    pub fn node(&self, number: usize) -> &TestNode {
        &self.nodes[number]
    }

    pub fn nodes(&self) -> &[TestNode] {
        &self.nodes
    }

    /// A new client of a node's socket.
    pub async fn client(&self, number: usize) -> anyhow::Result<Client> {
        self.nodes[number].client().await
    }

    /// A client of each node.
    pub async fn clients(&self) -> anyhow::Result<Vec<Client>> {
        let mut clients = Vec::new();
        for node in &self.nodes {
            clients.push(node.client().await?);
        }
        Ok(clients)
    }

    /// Waits until a node creates sessions, which it does only while it has a lease.
    pub async fn joined(&self, number: usize) -> anyhow::Result<()> {
        let client = self.client(number).await?;
        let session = create_patiently(&client, &TestNode::create(), JOIN_WAIT).await;
        let session = session
            .with_context(|| format!("the node {} has not joined the fleet", node_name(number)))?;
        client.close_session(&session.id, CloseQuery { grace_ms: Some(0) }).await?;
        Ok(())
    }

    /// Stops a node with SIGSTOP. Its keepers and workers go on.
    pub fn stop(&self, number: usize) {
        processes::stop(self.nodes[number].pid());
    }

    /// Lets a stopped node go on.
    pub fn resume(&self, number: usize) {
        processes::resume(self.nodes[number].pid());
    }

    /// Kills a node with SIGKILL. Its keepers and workers go on.
    pub fn kill9(&mut self, number: usize) {
        self.nodes[number].kill9();
    }

    /// Starts a node again, and waits until it is ready. Kills it first if it is running.
    pub async fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        self.nodes[number].restart().await
    }

    /// The servers of the store.
    pub fn servers(&mut self) -> &mut NatsServers {
        &mut self.servers
    }

    /// kill -9 of all servers.
    pub fn kill_servers(&mut self) -> anyhow::Result<()> {
        (0..SERVERS).try_for_each(|number| self.servers.kill(number))
    }

    /// Starts all servers again with their files.
    pub fn run_servers(&mut self) -> anyhow::Result<()> {
        (0..SERVERS).try_for_each(|number| self.servers.run(number))
    }

    /// Stops all servers with SIGSTOP: they keep their connections and answer nothing.
    pub fn stop_servers(&self) {
        self.servers.pids().into_iter().for_each(processes::stop);
    }

    /// Lets stopped servers go on.
    pub fn resume_servers(&self) {
        self.servers.pids().into_iter().for_each(processes::resume);
    }
}

/// The name of a node in its fleet.
pub fn node_name(number: usize) -> String {
    format!("n{}", number + 1)
}

/// Creates a session as soon as the store answers. Every other refusal, and a wait that is longer than `wait`, is an
/// error.
pub async fn create_patiently(
    client: &Client,
    create: &CreateSession,
    wait: Duration,
) -> anyhow::Result<Session> {
    let until = Instant::now() + wait;
    let mut ticks = interval(CREATE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match client.create_session(create).await {
            Ok(created) => return Ok(created.session),
            Err(error) if error.code() != FLEET_UNAVAILABLE => bail!(error),
            Err(error) if Instant::now() > until => {
                return Err(error).with_context(|| format!("no session within {wait:?}"));
            }
            Err(_) => {}
        }
    }
}

async fn init(node: &TestNode, address: &str, servers: &[String]) -> anyhow::Result<()> {
    let replicas = SERVERS.to_string();
    let name = node_name(0);
    let mut args = vec!["fleet", "init", "--node", &name, "--address", address];
    args.extend(["--replicas", &replicas]);
    for server in servers {
        args.extend(["--store", server]);
    }
    said_by(node.command(&args)).await.map(drop)
}

/// A token with which one more node can join.
async fn invite(node: &TestNode) -> anyhow::Result<String> {
    let said = said_by(node.command(&["fleet", "invite"])).await?;
    let token = said.split_ascii_whitespace().find(|word| word.starts_with(JOIN_TOKEN));
    let token = token.with_context(|| format!("`fleet invite` printed no token: {said}"))?;
    Ok(token.to_owned())
}

/// Sets the times of the leases in `[fleet]`, in place of those that the file has.
fn set_times(config: &Path, plan: TestFleetPlan) -> anyhow::Result<()> {
    let text = fs::read_to_string(config)?;
    let with_times = with_times(&text, plan).with_context(|| {
        format!("{} has no table [fleet] after `windlass fleet`:\n{text}", config.display())
    })?;
    Ok(fs::write(config, with_times)?)
}

fn with_times(text: &str, plan: TestFleetPlan) -> Option<String> {
    let mut lines = Vec::new();
    let (mut found, mut inside) = (false, false);
    for line in text.lines() {
        let begins_table = line.trim_start().starts_with('[');
        if begins_table {
            inside = line.trim() == "[fleet]";
            found |= inside;
        }
        let key = line.split('=').next().unwrap_or_default().trim();
        if !(inside && matches!(key, "lease" | "lost_after")) {
            lines.push(line.to_owned());
        }
        if begins_table && inside {
            lines.push(format!("lease = \"{}\"", plan.lease));
            lines.push(format!("lost_after = \"{}\"", plan.lost_after));
        }
    }
    found.then(|| lines.join("\n") + "\n")
}

/// Runs a command, which must succeed, and returns its standard output.
async fn said_by(mut command: Command) -> anyhow::Result<String> {
    let shown: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
    // The token is a secret, so only the first arguments are shown.
    let shown = shown[..shown.len().min(2)].join(" ");
    let output = timeout(COMMAND_WAIT, tokio::task::spawn_blocking(move || command.output()))
        .await
        .with_context(|| format!("`windlass {shown}` is not done within {COMMAND_WAIT:?}"))???;
    ensure!(
        output.status.success(),
        "`windlass {shown}` failed ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_set_in_the_table_of_the_fleet_only() {
        let text = "[node]\nlease = \"x\"\n[fleet]\nnode = \"n1\"\nlease = \"30s\"\n[workers.a]\n";
        let changed = with_times(text, TestFleetPlan::short(1)).unwrap();
        assert_eq!(
            changed,
            "[node]\nlease = \"x\"\n[fleet]\nlease = \"3s\"\nlost_after = \"10s\"\nnode = \"n1\"\n[workers.a]\n"
        );
        assert_eq!(with_times("[node]\n", TestFleetPlan::short(1)), None);
    }
}

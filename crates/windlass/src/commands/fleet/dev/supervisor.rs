//! The second process of `windlass fleet dev`: starts servers and nodes, shows them, and ends them. It ends the fleet on
//! a signal, when its guard is gone, and when a part cannot start.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout, timeout_at};
use windlass_fleet::store::Credentials;
use windlass_fleet::{FleetStore, StoreSettings};
use windlass_procs::{reap_all, tree};
use windlass_protocol::fleet_view::{FleetNodeStatus, FleetNodeView, NodeStanding};

use super::super::nodes;
use super::dev_node::{self, DevNode, REPLICAS_MAX};
use super::dev_server::{self, DevServer};
use super::killing::kill_all_below;
use super::picture::{DevNodeRow, DevServerRow, FleetPicture};
use super::screen::FleetScreen;
use super::{DevPlan, DirRemoval, EndSignals};
use crate::counted::counted;
use crate::terminal::Terminal;

/// How long the servers may take to listen, and the nodes to join.
const LISTEN_WAIT: Duration = Duration::from_secs(20);
const JOIN_WAIT: Duration = Duration::from_secs(60);

/// The pause between two looks at parts that are starting.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// The pause between two looks at the running fleet.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the store may take to tell its leader.
const STORE_WAIT: Duration = Duration::from_secs(2);

/// How long the nodes may take to end their sessions.
const END_WAIT: Duration = Duration::from_secs(15);

/// As long as nodes let the store keep copies of events.
const COPIES_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The fleet as far as it was started.
#[derive(Debug, Default)]
struct DevFleet {
    servers: Vec<DevServer>,
    nodes: Vec<DevNode>,
    store: Option<FleetStore>,
}

pub(super) fn run(plan: &DevPlan, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // First of all: without a guard, the directory is not one of this command, and must not be removed.
    let guard = {
        let _within = runtime.enter();
        guard_pipe().context("standard input is not the pipe of a guard")?
    };
    tree::become_subreaper().context("cannot adopt the processes of the fleet")?;
    let mut fleet = DevFleet::default();
    let worked = runtime.block_on(supervise(plan, guard, &mut fleet, terminal));
    // The guard inherits what does not end, and reports it.
    let _ = kill_all_below();
    // A node that was killed has not removed the cgroups of its sessions.
    if fleet.nodes.iter().any(DevNode::is_running) {
        plan.sweep_cgroups();
    }
    let removed = plan.remove_dir();
    worked?;
    removed.with_context(|| format!("cannot remove {}", plan.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

async fn supervise(
    plan: &DevPlan,
    guard: pipe::Receiver,
    fleet: &mut DevFleet,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let mut signals = EndSignals::new()?;
    let worked = tokio::select! {
        worked = fleet.run(plan, terminal) => worked,
        () = signals.next() => Ok(()),
        () = end_of(guard) => Ok(()),
    };
    // The terminal may be gone; the fleet must end nevertheless.
    let _ = terminal.note(match plan.removal {
        DirRemoval::AtTheEnd => "ending the fleet; its directory is removed",
        DirRemoval::Never => "ending the fleet; its directory stays",
    });
    fleet.end_nodes().await?;
    worked
}

/// The end of the guard's pipe.
fn guard_pipe() -> io::Result<pipe::Receiver> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    pipe::Receiver::from_owned_fd(input)
}

/// Returns when the guard closes the pipe, or when it is gone. It writes nothing.
async fn end_of(mut guard: pipe::Receiver) {
    let mut byte = [0];
    while matches!(guard.read(&mut byte).await, Ok(1..)) {}
}

impl DevFleet {
    /// Starts the fleet and shows it. Returns only with an error.
    async fn run(&mut self, plan: &DevPlan, terminal: &mut Terminal) -> anyhow::Result<()> {
        let program =
            std::env::current_exe().context("cannot find the path of the windlass program")?;
        terminal.note(&format!(
            "starting {} and {} in {}",
            counted(plan.servers, "server", "servers"),
            counted(plan.nodes, "node", "nodes"),
            plan.dir.display()
        ))?;
        self.servers = dev_server::start_all(plan)?;
        self.await_servers().await?;
        let servers = dev_server::urls(plan, &self.servers)?;
        self.nodes = dev_node::prepare_all(plan, &servers)?;
        for node in &mut self.nodes {
            node.launch(&program).await?;
        }
        self.await_members().await?;
        let mut screen = FleetScreen::new(plan.json);
        screen.tell_ready(terminal, &self.usage(plan), self.access(plan))?;
        let settings = StoreSettings {
            servers,
            credentials: Credentials::None,
            ca: None,
            replicas: usize::from(plan.servers.min(REPLICAS_MAX)),
            copies_kept: COPIES_KEPT,
        };
        let mut looks = every(LOOK_EVERY);
        loop {
            looks.tick().await;
            let picture = self.picture(&settings).await;
            screen.show(terminal, picture)?;
        }
    }

    /// Waits until all servers listen.
    async fn await_servers(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + LISTEN_WAIT;
        let mut tries = every(TRY_EVERY);
        loop {
            tries.tick().await;
            self.reap();
            let Some(server) = self.first_silent_server().await else { return Ok(()) };
            let name = &server.name;
            if let Some(end) = &server.end {
                bail!(
                    "the server {name} has ended ({end}); the end of its log:\n{}",
                    server.log_tail()
                );
            }
            if Instant::now() > until {
                bail!(
                    "the server {name} does not listen within {} s; the end of its log:\n{}",
                    LISTEN_WAIT.as_secs(),
                    server.log_tail()
                );
            }
        }
    }

    async fn first_silent_server(&self) -> Option<&DevServer> {
        for server in &self.servers {
            if server.end.is_some() || !server.listens().await {
                return Some(server);
            }
        }
        None
    }

    /// Waits until all nodes have joined and take sessions.
    async fn await_members(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + JOIN_WAIT;
        let mut tries = every(TRY_EVERY);
        loop {
            tries.tick().await;
            self.reap();
            let ended = self.servers.iter().map(|server| (server.name.clone(), &server.end));
            let ended_nodes = self.nodes.iter().map(|node| (node.name.to_string(), &node.end));
            let mut ended = ended.chain(ended_nodes);
            if let Some((name, Some(end))) = ended.find(|(_, end)| end.is_some()) {
                bail!(
                    "{name} has ended ({end}) before the fleet was ready; keep its log with --dir"
                );
            }
            if self.all_serve().await {
                return Ok(());
            }
            if Instant::now() > until {
                let why = match self.nodes.first() {
                    Some(node) => node.store_error().await,
                    None => None,
                };
                let why = why.unwrap_or_else(|| "keep their logs with --dir".to_owned());
                bail!("the nodes have not joined within {} s: {why}", JOIN_WAIT.as_secs());
            }
        }
    }

    async fn all_serve(&self) -> bool {
        let Some(views) = self.views().await else { return false };
        let serves = |view: &FleetNodeView| {
            let standing = view.load.as_ref().map(|load| load.standing);
            view.status == FleetNodeStatus::Alive && standing == Some(NodeStanding::Serving)
        };
        self.nodes
            .iter()
            .all(|node| views.iter().any(|view| view.node == node.name && serves(view)))
    }

    /// The nodes of the fleet, as the first one that answers knows them.
    async fn views(&self) -> Option<Vec<FleetNodeView>> {
        for node in &self.nodes {
            if let Some(views) = node.views().await {
                return Some(views);
            }
        }
        None
    }

    async fn picture(&mut self, settings: &StoreSettings) -> FleetPicture {
        self.reap();
        let views = self.views().await.unwrap_or_default();
        let leader = self.leader(settings).await;
        let view = |node: &DevNode| views.iter().find(|view| view.node == node.name);
        FleetPicture {
            nodes: self.nodes.iter().map(|node| node_row(node, view(node))).collect(),
            servers: self
                .servers
                .iter()
                .map(|server| server_row(server, leader.as_deref()))
                .collect(),
        }
    }

    /// The server that leads the directory of the sessions.
    async fn leader(&mut self, settings: &StoreSettings) -> Option<String> {
        if self.store.is_none() {
            self.store = timeout(STORE_WAIT, FleetStore::connect(settings)).await.ok()?.ok();
        }
        let store = self.store.as_ref()?;
        timeout(STORE_WAIT, store.leader_of_directory()).await.ok()?.ok()?
    }

    /// Notes which parts have ended. Other children are what a node has left.
    fn reap(&mut self) {
        for (pid, how) in reap_all().ended {
            let server = self.servers.iter_mut().find(|one| one.pid() == pid && one.end.is_none());
            if let Some(server) = server {
                server.end = Some(how);
                continue;
            }
            let node = self.nodes.iter_mut().find(|one| one.pid() == Some(pid) && one.is_running());
            if let Some(node) = node {
                node.end = Some(how);
            }
        }
    }

    /// Lets the nodes end their sessions and themselves.
    async fn end_nodes(&mut self) -> io::Result<()> {
        let mut child_ended = signal(SignalKind::child())?;
        for node in &self.nodes {
            node.ask_to_end().await;
        }
        let until = Instant::now() + END_WAIT;
        loop {
            self.reap();
            let left = self.nodes.iter().any(DevNode::is_running);
            if !left || timeout_at(until, child_ended.recv()).await.is_err() {
                return Ok(());
            }
        }
    }

    /// How a person uses the fleet.
    fn usage(&self, plan: &DevPlan) -> Vec<String> {
        let mut lines = vec![format!(
            "the fleet is ready; its files are in {}. Ctrl-C ends it. In another terminal:",
            plan.dir.display()
        )];
        for (at, node) in self.nodes.iter().enumerate() {
            let or = if at == 0 { "" } else { "# or: " };
            let token = node.token();
            lines.push(format!(
                "  {or}export WINDLASS_URL={} WINDLASS_TOKEN=$(cat {})",
                node.url,
                shell_word(&token)
            ));
        }
        lines.push("  windlass run -c '6 * 7'".to_owned());
        lines.push("  windlass fleet nodes".to_owned());
        lines.push("  windlass ps --fleet".to_owned());
        lines.push(String::new());
        lines
    }

    /// What a program needs to use the fleet.
    fn access(&self, plan: &DevPlan) -> Value {
        let servers: Vec<Value> = self.servers.iter().map(DevServer::access).collect();
        let nodes: Vec<Value> = self.nodes.iter().map(DevNode::access).collect();
        let directory = plan.dir.display().to_string();
        json!({"directory": directory, "nodes": nodes, "servers": servers})
    }
}

/// Ticks with a pause between the end of one look and the begin of the next.
fn every(pause: Duration) -> Interval {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn node_row(node: &DevNode, view: Option<&FleetNodeView>) -> DevNodeRow {
    let told = view.map_or_else(|| "unknown".to_owned(), nodes::state);
    let running = node.is_running();
    let load = view.and_then(|view| view.load.as_ref()).filter(|_| running);
    DevNodeRow {
        node: node.name.to_string(),
        state: if running { told } else { format!("down, {told}") },
        sessions: load.map(|load| load.sessions.live),
        address: node.address.clone(),
        url: node.url.clone(),
    }
}

fn server_row(server: &DevServer, leader: Option<&str>) -> DevServerRow {
    let state = match &server.end {
        Some(how) => format!("down ({how})"),
        None if leader == Some(server.name.as_str()) => "leader".to_owned(),
        None => "up".to_owned(),
    };
    DevServerRow { server: server.name.clone(), state, address: server.address() }
}

/// A path as one word of a shell.
fn shell_word(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_can_be_copied_into_a_shell() {
        for (path, word) in
            [("/tmp/a b/token", "'/tmp/a b/token'"), ("/tmp/it's", r"'/tmp/it'\''s'")]
        {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }
}

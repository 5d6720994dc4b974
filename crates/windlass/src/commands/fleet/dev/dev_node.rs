//! A node of the fleet: its files, its process, and requests to it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tokio::time::timeout;
use windlass_client::{Client, Dirs, LaunchedNode, StartNode, launch_node};
use windlass_fleet::credentials::{AuthoritySite, FleetAuthority};
use windlass_protocol::NodeName;
use windlass_protocol::api::StopSessions;
use windlass_protocol::fleet_view::FleetNodeView;

use super::super::config_edit;
use super::DevPlan;
use super::dev_server::write_private;
use super::ports::free_ports;
use crate::config_file;
use crate::fleet_table::{FleetTable, new_settings};

/// How long a node lives for the others without a renewal: long enough for the servers to elect a leader.
const LEASE: Duration = Duration::from_secs(10);

/// How long after that its sessions are lost. It is short, so that a user can wait for it.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Number of copies that the store keeps of each record, if there are so many servers.
pub(super) const REPLICAS_MAX: u8 = 3;

/// How long a node may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// A node of the fleet.
#[derive(Debug)]
pub(super) struct DevNode {
    pub name: NodeName,
    /// Where other nodes reach it.
    pub address: String,
    /// Where clients reach it.
    pub url: String,
    dirs: Dirs,
    config: PathBuf,
    running: Option<RunningNode>,
    /// How the process has ended.
    pub end: Option<String>,
}

#[derive(Debug)]
struct RunningNode {
    process: LaunchedNode,
    client: Client,
}

/// A node before its files are written.
struct NodeDraft {
    dir: PathBuf,
    dirs: Dirs,
    table: FleetTable,
    /// The port for clients.
    port: u16,
}

/// Makes the files of all nodes: the authority of the fleet is with the first one.
pub(super) fn prepare_all(plan: &DevPlan, servers: &[String]) -> anyhow::Result<Vec<DevNode>> {
    let drafts = drafts(plan, servers)?;
    let first = drafts.first().context("there is no node to prepare")?;
    let authority = FleetAuthority::create(&first.credentials())?;
    let site =
        AuthoritySite::new(first.table.config.node.clone(), first.table.config.address.clone());
    drafts.iter().map(|draft| draft.write(&authority, &site)).collect()
}

fn drafts(plan: &DevPlan, servers: &[String]) -> anyhow::Result<Vec<NodeDraft>> {
    let count = usize::from(plan.nodes);
    let ports = free_ports(2 * count)?;
    let replicas = usize::from(plan.servers.min(REPLICAS_MAX));
    let settings = new_settings(servers.to_vec(), replicas, Some(LEASE), Some(LOST_AFTER));
    let mut drafts = Vec::new();
    for (at, port) in ports[..count].iter().enumerate() {
        let number = at + 1;
        let dir = plan.node_dir(number);
        let dirs = Dirs::at(plan.runtime_dir(number), dir.join("state"))?;
        let name = NodeName::parse(format!("n{number}"))?;
        let address = format!("127.0.0.1:{}", ports[count + at]);
        let table = FleetTable::new(name, &address, None, settings.clone());
        let table = table.map_err(anyhow::Error::msg)?;
        drafts.push(NodeDraft { dir, dirs, table, port: *port });
    }
    Ok(drafts)
}

impl NodeDraft {
    fn credentials(&self) -> PathBuf {
        self.table.credentials_in(&self.dirs.state)
    }

    /// Writes the credentials and the configuration.
    fn write(&self, authority: &FleetAuthority, site: &AuthoritySite) -> anyhow::Result<DevNode> {
        let credentials = self.credentials();
        authority.issue_own(&self.table.config.node)?.write(&credentials)?;
        site.write(&credentials)?;
        let config = self.dir.join("config.toml");
        let before = format!("[node]\nlisten = \"127.0.0.1:{}\"\n\n", self.port);
        write_private(&config, &config_edit::with_table(&before, &self.table)?)?;
        Ok(DevNode {
            name: self.table.config.node.clone(),
            address: self.table.config.address.clone(),
            url: format!("http://127.0.0.1:{}", self.port),
            dirs: self.dirs.clone(),
            config,
            running: None,
            end: None,
        })
    }
}

impl DevNode {
    /// Starts the node and waits until it is ready. It joins the fleet later.
    pub async fn launch(&mut self, program: &Path) -> anyhow::Result<()> {
        let env: [(OsString, OsString); 2] = [
            (config_file::VARIABLE.into(), self.config.clone().into()),
            // The servers of the user's own node would start once for each node.
            ("WINDLASS_MCP_CONFIG".into(), "/dev/null".into()),
        ];
        let launched = launch_node(program, &self.dirs, &[], &env).await;
        let process = launched.map_err(|error| {
            anyhow!("the node {} does not start: {error}; {}", self.name, error.remedy())
        })?;
        let client = Client::connect(self.dirs.clone(), StartNode::Never).await;
        let client = client.with_context(|| format!("cannot reach the node {}", self.name))?;
        let client = client.with_retry_for(Duration::ZERO);
        self.running = Some(RunningNode { process, client });
        Ok(())
    }

    /// The process of the node, if it was started.
    pub fn pid(&self) -> Option<u32> {
        Some(self.running.as_ref()?.process.pid)
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some() && self.end.is_none()
    }

    /// The nodes of the fleet, as this one knows them.
    pub async fn views(&self) -> Option<Vec<FleetNodeView>> {
        let running = self.running.as_ref().filter(|_| self.end.is_none())?;
        let list = timeout(ANSWER_WAIT, running.client.fleet_nodes()).await.ok()?.ok()?;
        Some(list.nodes)
    }

    /// Why the node has not joined.
    pub async fn store_error(&self) -> Option<String> {
        let running = self.running.as_ref()?;
        let status = timeout(ANSWER_WAIT, running.client.fleet_status()).await.ok()?.ok()?;
        status.store.error
    }

    /// Asks the node to end all sessions and itself.
    pub async fn ask_to_end(&self) {
        if let Some(running) = self.running.as_ref().filter(|_| self.end.is_none()) {
            let stop = running.client.stop_node(StopSessions::End);
            // A node that does not answer is killed later.
            let _ = timeout(ANSWER_WAIT, stop).await;
        }
    }

    /// The file with the token for `url`.
    pub fn token(&self) -> PathBuf {
        self.dirs.token()
    }

    /// What a program needs to use the node.
    pub fn access(&self) -> Value {
        json!({
            "node": self.name,
            "url": self.url,
            "token_file": self.token().display().to_string(),
            "address": self.address,
            "runtime_dir": self.dirs.runtime.display().to_string(),
            "state_dir": self.dirs.state.display().to_string(),
            "config": self.config.display().to_string(),
            "pid": self.pid(),
        })
    }
}

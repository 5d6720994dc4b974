//! MCP servers as tools. The servers in a configuration file run once for the whole node. The code
//! of every session that may call them uses `tools.<server>.<tool>`.
//!
//! How it works. Each server has one task that starts it, lists its tools, and restarts it when it
//! ends ([`server`]). A server that is a process runs below a holder process of ours ([`process`]),
//! so that it ends with the node, however the node ends. For the node they are ordinary tool hosts
//! ([`host`]) on its socket: the node knows nothing of MCP, routes calls by name, and checks
//! policies. The node mounts a page with the state of the servers.

mod config;
mod connection;
mod host;
mod http;
mod names;
mod process;
mod restart_pause;
mod result;
mod server;
mod stderr;
mod tools;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::Query;
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use windlass_protocol::api::{ServerList, ServerSessions, ServersQuery};

use crate::door::Connect;
pub use config::ConfigFile;
pub use process::HOLD;
use server::McpServer;

/// The path of the page with their state.
pub const PATH: &str = "/v1/mcp/servers";

/// Longest wait for a change in one request.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long servers may take to end when the node stops. After that the node exits without them.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// The options for running servers.
pub struct ServersOptions {
    pub config: ConfigFile,
    /// The windlass program: `PROGRAM hold-server COMMAND ARGS...` holds a server.
    pub program: PathBuf,
    /// Connects to the node.
    pub connect: Connect,
}

/// The MCP servers of a node. Clones share one state.
#[derive(Clone)]
pub struct Servers {
    shared: Arc<ServersShared>,
}

struct ServersShared {
    config: ConfigFile,
    connect: Connect,
    /// The servers, or why there are none.
    servers: Result<Vec<Arc<McpServer>>, String>,
    changed: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    lives: Mutex<JoinSet<()>>,
}

impl Servers {
    /// Reads the configuration file; starts nothing.
    pub fn new(options: ServersOptions) -> Self {
        let ServersOptions { config, program, connect } = options;
        let changed = watch::Sender::new(0);
        let entries = config.read().map_err(|error| error.to_string());
        if let Err(error) = &entries {
            tracing::error!(error, "there are no mcp servers");
        }
        let made = |entry| Arc::new(McpServer::new(entry, program.clone(), changed.clone()));
        let servers = entries.map(|entries| entries.into_iter().map(made).collect());
        let (stop, lives) = (watch::Sender::new(false), Mutex::default());
        Self { shared: Arc::new(ServersShared { config, connect, servers, changed, stop, lives }) }
    }

    /// The routes that the node mounts.
    pub fn router(&self) -> Router {
        let servers = self.clone();
        let page = move |Query(query): Query<ServersQuery>| async move {
            Json(servers.look_after(query).await)
        };
        Router::new().route(PATH, get(page))
    }

    /// Starts the servers and offers their tools to the node, which must already serve. Returns at
    /// once. Call it on the node's runtime.
    pub fn start(&self) {
        let Ok(servers) = &self.shared.servers else { return };
        let mut lives = self.shared.lives.lock().unwrap_or_else(PoisonError::into_inner);
        for server in servers {
            let server = server.clone();
            let mut stop = self.shared.stop.subscribe();
            lives.spawn(async move {
                let stopped = async move {
                    // If the sender is gone, stop as well.
                    let _ = stop.wait_for(|stop| *stop).await;
                };
                server.live(stopped).await;
            });
        }
        for sessions in [ServerSessions::ByPolicy, ServerSessions::All] {
            let of_these = servers.iter().filter(|server| server.entry.sessions == sessions);
            let of_these: Vec<_> = of_these.cloned().collect();
            if !of_these.is_empty() {
                tokio::spawn(offer(self.shared.clone(), sessions, of_these));
            }
        }
    }

    /// Stops the servers. Returns when they have ended or the time limit is over.
    pub async fn stop(&self) {
        self.shared.stop.send_replace(true);
        let mut lives = {
            let mut lives = self.shared.lives.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *lives)
        };
        let all = async { while lives.join_next().await.is_some() {} };
        if timeout(STOP_WAIT, all).await.is_err() {
            tracing::warn!("some mcp servers take longer to end than the node");
            // Their holder processes end them.
            lives.detach_all();
        }
    }

    /// The state of the servers, after a change or when the wait is over.
    async fn look_after(&self, query: ServersQuery) -> ServerList {
        if let Some(after) = query.after {
            let wait = Duration::from_millis(query.wait_ms).min(LOOK_WAIT_MAX);
            let mut changed = self.shared.changed.subscribe();
            // After a timeout the current state is returned as well.
            let _ = timeout(wait, changed.wait_for(|change| *change != after)).await;
        }
        self.look()
    }

    fn look(&self) -> ServerList {
        let change = *self.shared.changed.borrow();
        let (servers, error) = match &self.shared.servers {
            Ok(servers) => (servers.iter().map(|server| server.look()).collect(), None),
            Err(error) => (Vec::new(), Some(error.clone())),
        };
        let config = self.shared.config.path().display().to_string();
        ServerList { config, error, servers, change }
    }
}

async fn offer(shared: Arc<ServersShared>, sessions: ServerSessions, servers: Vec<Arc<McpServer>>) {
    match (shared.connect)().await {
        Ok(client) => host::offer(client, sessions, servers, shared.changed.subscribe()).await,
        Err(error) => tracing::error!(%error, "the mcp servers' tools cannot be offered"),
    }
}

impl fmt::Debug for ServersOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServersOptions").field("config", &self.config).finish_non_exhaustive()
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("servers", &self.look().servers).finish_non_exhaustive()
    }
}

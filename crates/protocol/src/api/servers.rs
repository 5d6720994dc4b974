//! The MCP servers that a node runs, and the tools that a session's code may call.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The MCP servers of a node, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerList {
    /// The path of the configuration file. The file may not exist.
    pub config: String,
    /// Why the file cannot be used. If it cannot, there are no servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub servers: Vec<Server>,
    /// A number that changes with every server's state and tools. Pass it as `after` to wait for the next
    /// change.
    pub change: u64,
}

/// When the reply is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServersQuery {
    /// Reply after the next change: the `change` of an earlier list.
    #[serde(default)]
    pub after: Option<u64>,
    /// Reply after this time at the latest. Default: at once.
    #[serde(default)]
    pub wait_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Server {
    /// The server's name in the configuration file.
    pub name: String,
    /// The server's name in code: the part before the dot in its tools' names.
    pub group: String,
    pub sessions: ServerSessions,
    pub state: ServerState,
    /// Why the server does not run, or why it last did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time until the next restart, while the server waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_in_ms: Option<u64>,
    /// The process id, if the server is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Number of tools that the server offers.
    pub tools: usize,
    /// Number of calls so far.
    pub calls: u64,
    /// Number of calls that are not answered yet.
    pub open_calls: usize,
    /// Number of restarts.
    pub restarts: u64,
}

/// Which sessions may call a server's tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerSessions {
    /// Sessions whose policy names the tool.
    #[default]
    ByPolicy,
    /// Every session.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    Starting,
    Running,
    /// The server has ended and restarts after a pause.
    Waiting,
    /// The server cannot be used as configured.
    Failed,
}

/// Which tools of a session to return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SessionToolsQuery {
    /// Search words: return the matching tools, best match first. Default: all tools, sorted by name.
    #[serde(default)]
    pub words: Option<String>,
}

/// The tools that a session's code may call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionTools {
    pub tools: Vec<SessionTool>,
    /// Whether there are more tools.
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionTool {
    pub name: String,
    pub summary: String,
    /// How code calls the tool.
    pub signature: String,
}

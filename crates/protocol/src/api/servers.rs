//! The MCP servers that a node runs, and the tools that the code of a session may call.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The MCP servers of a node, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerList {
    /// The file that names them, whether it is there or not.
    pub config: String,
    /// Why the file cannot be used; there are no servers then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub servers: Vec<Server>,
    /// Changes with every server's state and tools; `after` in a query waits for the next.
    pub change: u64,
}

/// When the servers are looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServersQuery {
    /// Once they are no longer as they were then: the `change` of an earlier list.
    #[serde(default)]
    pub after: Option<u64>,
    /// After so long in any case. Default: at once.
    #[serde(default)]
    pub wait_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Server {
    /// As the file has it.
    pub name: String,
    /// As code has it: what stands before the dot of its tools' names.
    pub group: String,
    pub sessions: ServerSessions,
    pub state: ServerState,
    /// Why it does not run, or the last time that it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until it is started again, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_in_ms: Option<u64>,
    /// Of one that is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How many tools it offers.
    pub tools: usize,
    /// Calls so far, and those of them that are open.
    pub calls: u64,
    pub open_calls: usize,
    /// How often it was started again.
    pub restarts: u64,
}

/// Who may call a server's tools.
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
    /// It has ended, and is started again after a pause.
    Waiting,
    /// It cannot be used as it is configured.
    Failed,
}

/// Which of a session's tools are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
pub struct SessionToolsQuery {
    /// Those that these words lead to, best first. Default: all, by name.
    #[serde(default)]
    pub words: Option<String>,
}

/// What the code of a session may call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionTools {
    pub tools: Vec<SessionTool>,
    /// There are more than these.
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionTool {
    pub name: String,
    pub summary: String,
    /// How code calls it.
    pub signature: String,
}

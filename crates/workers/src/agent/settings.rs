//! The worker's settings, which the node gives as one JSON argument.

use std::time::Duration;

use serde::Deserialize;
use windlass_protocol::agent::settings::{PERMISSION_DEADLINE_MS_DEFAULT, STALL_MS_DEFAULT};
use windlass_protocol::agent::{AgentRequest, PermissionPolicy};

#[derive(Debug, Clone, Deserialize)]
pub struct AgentSettings {
    /// The name of the engine in events and tokens.
    pub engine: String,
    /// The engine's program and its first arguments.
    pub command: Vec<String>,
    #[serde(flatten)]
    pub request: AgentRequest,
    /// The MCP server that the engine gets, with the session's tools. Absent if there is none.
    #[serde(skip)]
    pub mcp_server: Option<McpServerCommand>,
}

/// The MCP server of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServerCommand {
    pub program: String,
    pub arguments: Vec<String>,
}

impl McpServerCommand {
    /// The name by which the engine knows the server.
    pub const NAME: &'static str = "windlass";
}

impl AgentSettings {
    pub fn permissions(&self) -> PermissionPolicy {
        self.request.permissions.unwrap_or_default()
    }

    pub fn permission_deadline(&self) -> Duration {
        let ms = self.request.permission_deadline_ms.unwrap_or(PERMISSION_DEADLINE_MS_DEFAULT);
        Duration::from_millis(ms)
    }

    /// How long the engine may make no progress.
    pub fn stall(&self) -> Duration {
        Duration::from_millis(self.request.stall_ms.unwrap_or(STALL_MS_DEFAULT))
    }
}

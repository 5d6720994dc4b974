//! The status of a node, and how it is stopped.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::is_false;
use crate::TenantName;
use crate::storage::StateStorage;

/// The current state of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    pub version: String,
    pub api: String,
    pub pid: u32,
    pub epoch: u64,
    pub started_at_ms: u64,
    pub sessions: usize,
    pub runtime_dir: String,
    pub state_dir: String,
    /// The unix socket of the HTTP door. Absent if the node is of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The address of the TCP door. Absent if the door is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Whether the TCP door is encrypted: clients use `https`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub listen_tls: bool,
    /// Absent if the node is of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StateStorage>,
    /// The tenant of the client's token. Absent: the client has no tenant, or the node is of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
}

/// What `windlass doctor --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Value)]
pub struct DoctorFindings(pub serde_json::Value);

/// How the node stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopNode {
    pub sessions: StopSessions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopSessions {
    /// End the sessions first.
    End,
    /// Leave the sessions to their keepers. The next node takes them over.
    Keep,
}

//! What a session's code reached for over the network, and what was decided.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Every decision about a session's network, by host. Empty where the policy has no host list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressLog {
    /// Since when it counts: the session's start, or a later start of the node.
    pub since_ms: u64,
    /// The latest first.
    pub decisions: Vec<EgressDecision>,
}

/// Connections to one host and port with the same decision, added up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressDecision {
    /// `*` where no host is to be named: too many connections at once, or too many hosts to list.
    pub host: String,
    pub port: u16,
    pub allowed: bool,
    /// Why it was refused, or why an allowed one failed; empty when all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    pub count: u64,
    /// Bytes from the code to the host.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub last_at_ms: u64,
}

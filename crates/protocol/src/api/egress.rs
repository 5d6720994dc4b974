//! The egress log: the hosts that a session's code tried to reach, and the decisions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All egress decisions of a session, by host. Empty if the policy has no host list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressLog {
    /// When counting began: the start of the session, or a later start of the node.
    pub since_ms: u64,
    /// The decisions, latest first.
    pub decisions: Vec<EgressDecision>,
    /// The session has ended, so the decisions come from its journal. The journal has the time of the first decision of
    /// each kind, but no counts: `count`, `sent_bytes` and `received_bytes` are 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_journal: bool,
}

/// The connections to one host and port with the same decision, added up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressDecision {
    /// The host. `*` if no host is named, because of too many connections at once or too many hosts to list.
    pub host: String,
    pub port: u16,
    pub allowed: bool,
    /// Why the connection was refused, or why an allowed connection failed. Empty if there was no problem.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    pub count: u64,
    /// Bytes from the code to the host.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub last_at_ms: u64,
}

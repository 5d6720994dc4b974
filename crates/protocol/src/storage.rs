//! The state of the disk that holds a node's state, as the node's status reports it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The disk that holds the node's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateStorage {
    /// Bytes that the node can still write there. Absent if unknown. A node without disk space refuses new
    /// turns with `disk_full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    pub index: IndexStorage,
    /// Number of log lines that the node could not write since it started.
    pub log_lines_dropped: u64,
    /// Number of records of the audit log that were lost since the node started. 0 from nodes of earlier releases.
    #[serde(default)]
    pub audit_records_dropped: u64,
}

/// Where the journal's index is. The index is derived from the journal, so its loss loses no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexStorage {
    File,
    /// In memory, because the disk was full or could not be written when the node started. The next start
    /// writes the file.
    Memory,
}

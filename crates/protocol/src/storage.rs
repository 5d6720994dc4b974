//! How the disk with a node's state is, as the node's status tells it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The disk with the node's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateStorage {
    /// Bytes that the node can still write there, if that can be found out. A node without room refuses
    /// new turns with `disk_full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    pub index: IndexStorage,
    /// Lines of the node's log that could not be written since the node started.
    pub log_lines_dropped: u64,
}

/// Where the journal's index is. It is made of the journal, so nothing is lost with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexStorage {
    File,
    /// The disk was full or could not be written when the node started. The next start writes the file.
    Memory,
}

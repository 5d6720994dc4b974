//! The disk usage of a node, and its removal: the JSON of `GET /v1/node/disk` and `POST /v1/node/prune`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum number of removed items that the reply of one prune names. Further items are only counted.
pub const PRUNED_NAMED_MAX: usize = 1000;

/// The kind of data on the disk.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// Journals of live sessions.
    JournalsLive,
    /// Journals of ended sessions.
    JournalsEnded,
    /// Workspaces of live sessions that the node created. A client's own directory is not counted.
    WorkspacesLive,
    /// Workspaces of ended sessions that the node created.
    WorkspacesEnded,
    /// Copies of workspaces that forks made, and the directories around them.
    ForkCopies,
    /// Temporary files of sessions without a private `/tmp`, and packages that code has installed.
    Temporary,
    /// Directories that no session needs.
    Leftovers,
    /// Worker programs, and data prepared for new sessions.
    Environments,
    /// Package environments, and the caches of the installers.
    Packages,
    /// The index, which is derived from the journals.
    Index,
    Logs,
    /// The node's own records.
    Other,
}

impl DiskKind {
    pub const ALL: [Self; 12] = [
        Self::JournalsLive,
        Self::JournalsEnded,
        Self::WorkspacesLive,
        Self::WorkspacesEnded,
        Self::ForkCopies,
        Self::Temporary,
        Self::Leftovers,
        Self::Environments,
        Self::Packages,
        Self::Index,
        Self::Logs,
        Self::Other,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::JournalsLive => "journals_live",
            Self::JournalsEnded => "journals_ended",
            Self::WorkspacesLive => "workspaces_live",
            Self::WorkspacesEnded => "workspaces_ended",
            Self::ForkCopies => "fork_copies",
            Self::Temporary => "temporary",
            Self::Leftovers => "leftovers",
            Self::Environments => "environments",
            Self::Packages => "packages",
            Self::Index => "index",
            Self::Logs => "logs",
            Self::Other => "other",
        }
    }

    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::JournalsLive => "journals, live",
            Self::JournalsEnded => "journals, ended",
            Self::WorkspacesLive => "workspaces, live",
            Self::WorkspacesEnded => "workspaces, ended",
            Self::ForkCopies => "fork copies",
            Self::Temporary => "temporary",
            Self::Leftovers => "leftovers",
            Self::Environments => "environments",
            Self::Packages => "packages",
            Self::Index => "index",
            Self::Logs => "logs",
            Self::Other => "other",
        }
    }
}

/// The disk usage of one kind of data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskShare {
    pub kind: DiskKind,
    /// Allocated blocks in bytes, not file lengths. A file with several hard links counts once.
    pub bytes: u64,
    /// Number of files and directories.
    pub entries: u64,
}

/// The reply of `GET /v1/node/disk`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskUse {
    pub state_dir: String,
    /// All kinds, including those without data.
    pub kinds: Vec<DiskShare>,
    /// Total bytes of all kinds.
    pub bytes: u64,
    /// False if a directory could not be read or the measurement took too long. The usage is then higher.
    pub complete: bool,
    /// How many seconds ended sessions are kept.
    pub retain_age_s: u64,
    /// Maximum total bytes of all journals and of the workspaces of ended sessions.
    pub retain_bytes: u64,
}

/// What to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// Only report what would be removed.
    #[serde(default)]
    pub dry_run: bool,
    /// Remove only sessions that ended more than this many seconds ago, and package environments without a name that
    /// were last used before that. Default: all ended sessions, and all such environments that no live session uses.
    /// Leftovers, and sessions that the node's retention would remove, are always removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<u64>,
}

/// An item that was removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedItem {
    pub kind: DiskKind,
    /// The session's id, or a path below the state directory.
    pub name: String,
    pub bytes: u64,
}

/// The reply of `POST /v1/node/prune`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    /// True if nothing was removed, because the request was a dry run.
    pub dry_run: bool,
    /// Bytes that were freed, or would be.
    pub bytes: u64,
    /// The removed items, at most 1,000, in the order of removal.
    pub removed: Vec<PrunedItem>,
    /// Number of further removed items. `bytes` includes them.
    pub more: u64,
    /// Items that could not be removed, with the reason.
    pub failed: Vec<String>,
    /// False if not everything could be measured. A dry run may then report too little.
    pub complete: bool,
}

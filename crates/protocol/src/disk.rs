//! What a node has on the disk, and what it gives back: the words of `GET /v1/node/disk` and
//! `POST /v1/node/prune`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Removed things that the answer to one prune names; it only counts the others.
pub const PRUNED_NAMED_MAX: usize = 1000;

/// What something on the disk is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// Journals of live sessions.
    JournalsLive,
    /// Journals of ended sessions.
    JournalsEnded,
    /// Workspaces that the node made, of live sessions. A client's own directory is not counted.
    WorkspacesLive,
    /// The same, of ended sessions.
    WorkspacesEnded,
    /// Copies of workspaces that forks made, and the directories around them.
    ForkCopies,
    /// Temporary files of sessions that have no private `/tmp`.
    Temporary,
    /// Directories that no session needs.
    Leftovers,
    /// Worker programs, and what is kept ready for new sessions.
    Environments,
    /// The index, which is derived from the journals.
    Index,
    Logs,
    /// Records of the node's own.
    Other,
}

impl DiskKind {
    pub const ALL: [Self; 11] = [
        Self::JournalsLive,
        Self::JournalsEnded,
        Self::WorkspacesLive,
        Self::WorkspacesEnded,
        Self::ForkCopies,
        Self::Temporary,
        Self::Leftovers,
        Self::Environments,
        Self::Index,
        Self::Logs,
        Self::Other,
    ];

    /// As a person reads it.
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
            Self::Index => "index",
            Self::Logs => "logs",
            Self::Other => "other",
        }
    }
}

/// What one kind takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskShare {
    pub kind: DiskKind,
    /// Blocks on the disk, not lengths of files. A file with several names counts once.
    pub bytes: u64,
    /// Files and directories.
    pub entries: u64,
}

/// What `GET /v1/node/disk` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskUse {
    pub state_dir: String,
    /// Every kind, also those that take nothing.
    pub kinds: Vec<DiskShare>,
    /// All of them together.
    pub bytes: u64,
    /// False where a directory could not be read, or looking took too long: there is more then.
    pub complete: bool,
    /// Seconds for which ended sessions are kept.
    pub retain_age_s: u64,
    /// What all journals and the workspaces of ended sessions may take together.
    pub retain_bytes: u64,
}

/// What to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// Only say what would be removed.
    #[serde(default)]
    pub dry_run: bool,
    /// Of ended sessions only those that ended longer ago, in seconds; all of them when absent. What the
    /// node's own retention would remove goes in any case, and so do leftovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<u64>,
}

/// Something that was removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedItem {
    pub kind: DiskKind,
    /// The session's id, or a path below the state directory.
    pub name: String,
    pub bytes: u64,
}

/// What `POST /v1/node/prune` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    /// Nothing was removed.
    pub dry_run: bool,
    /// What the disk got back, or would get back.
    pub bytes: u64,
    /// At most 1,000 of them, in the order in which they went.
    pub removed: Vec<PrunedItem>,
    /// How many more there are. `bytes` counts them.
    pub more: u64,
    /// What could not be removed, with the reason.
    pub failed: Vec<String>,
    /// False where not all could be measured: a dry run may then have said too little.
    pub complete: bool,
}

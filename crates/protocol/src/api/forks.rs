//! Forks of sessions: what a client asks and is told.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Session;
use crate::link::{CanReach, NotCarried};
use crate::{Owner, SessionId};

/// A twin of a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// A name of the client's choice; made by the node when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// Whose session the twin is. Default: the original's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Which directories of the workspace are copied. Default: all but those that can be made or
    /// installed again.
    #[serde(default, skip_serializing_if = "CopyScope::is_default")]
    pub copy: CopyScope,
}

/// Which directories of a workspace a fork copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CopyScope {
    /// All but virtual environments, installed packages and caches; the answer names them.
    #[default]
    Needed,
    All,
}

impl CopyScope {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A directory of the workspace that the twin's copy does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftOutDirectory {
    /// Relative to the workspace.
    pub path: String,
    pub why: LeftOutReason,
    /// Whether the copy has a link to the original's, which the twin can read and not write.
    pub linked: bool,
}

/// Why a fork does not copy a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeftOutReason {
    /// A virtual environment.
    Environment,
    /// Installed packages.
    Packages,
    /// Whatever wrote it writes it again.
    Cache,
}

/// What `POST /v1/sessions/{session}/fork` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkedSession {
    /// The twin. Its workspace is a copy, at another path than the original's.
    pub session: Session,
    /// What the twin does not have, or has in common with the original.
    pub not_carried: Vec<NotCarried>,
    /// Threads and processes from before the fork that could still reach the twin. Empty for most
    /// forks, and where nothing confines the session.
    #[serde(default)]
    pub can_reach: Vec<CanReach>,
    /// Directories of the workspace that the copy does not have, at most 64. `copy` with `all` copies
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutDirectory>,
    /// How many more of these there are.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left_out_more: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

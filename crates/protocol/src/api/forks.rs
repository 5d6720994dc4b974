//! Forks of sessions: the client's request and the node's reply.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Session;
use crate::link::{CanReach, NotCarried};
use crate::{Owner, SessionId};

/// The request for a twin of a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// The twin's id. Default: the node generates one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// The owner of the twin. Default: the original's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Which directories of the workspace are copied. Default: all except those that can be rebuilt or
    /// reinstalled.
    #[serde(default, skip_serializing_if = "CopyScope::is_default")]
    pub copy: CopyScope,
}

/// Which directories of a workspace a fork copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CopyScope {
    /// All except virtual environments, installed packages and caches. The reply names those.
    #[default]
    Needed,
    All,
}

impl CopyScope {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A directory of the workspace that the fork did not copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftOutDirectory {
    /// The path relative to the workspace.
    pub path: String,
    pub why: LeftOutReason,
    /// Whether the copy has a symlink to the original's directory, which the twin can read but not write.
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
    /// A cache, which its program rebuilds.
    Cache,
}

/// The reply of `POST /v1/sessions/{session}/fork`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkedSession {
    /// The twin. Its workspace is a copy at another path.
    pub session: Session,
    /// What the twin does not have, or shares with the original.
    pub not_carried: Vec<NotCarried>,
    /// Threads and processes from before the fork that can still reach the twin. Empty for most forks, and
    /// for sessions without confinement.
    #[serde(default)]
    pub can_reach: Vec<CanReach>,
    /// Directories of the workspace that were not copied, at most 64. Fork with `copy: all` to copy them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutDirectory>,
    /// Number of further directories that were not copied.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left_out_more: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

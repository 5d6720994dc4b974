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
}

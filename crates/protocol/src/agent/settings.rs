//! The settings of an agent's session, as a client requests them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ResumeToken;

/// How long a permission waits for an answer if the session sets no time.
pub const PERMISSION_DEADLINE_MS_DEFAULT: u64 = 10 * 60 * 1000;

/// How long an engine may do nothing, without an open action or permission, if the session sets no time.
pub const STALL_MS_DEFAULT: u64 = 5 * 60 * 1000;

/// Maximum number and total bytes of arguments for an engine.
pub const ARGUMENTS_MAX: usize = 128;
pub const ARGUMENT_BYTES_MAX: usize = 32 * 1024;

/// Maximum bytes of a model's name.
pub const MODEL_BYTES_MAX: usize = 1024;

/// Settings of a session whose worker is an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRequest {
    /// Resume this conversation instead of beginning a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeToken>,
    /// The model, by the engine's name for it. Default: the engine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Who answers the agent's requests for permission. Default: `allow`, because the session is confined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<PermissionPolicy>,
    /// How long a permission waits for a client's answer. Then it is refused. Default: ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_deadline_ms: Option<u64>,
    /// How long the engine may make no progress while it neither runs an action nor asks. Then its turn fails.
    /// Default: five minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_ms: Option<u64>,
    /// More arguments for the engine's program, before its subcommand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
}

/// Who answers an agent's requests for permission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionPolicy {
    /// Everything is allowed that the session's own confinement allows.
    #[default]
    Allow,
    /// A client answers.
    Ask,
    /// Everything that needs a permission is refused.
    Refuse,
}

/// A text that is no permission policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of allow, ask, refuse")]
pub struct UnknownPermissionPolicy(String);

impl PermissionPolicy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Refuse => "refuse",
        }
    }
}

impl fmt::Display for PermissionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PermissionPolicy {
    type Err = UnknownPermissionPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPermissionPolicy> {
        [Self::Allow, Self::Ask, Self::Refuse]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| UnknownPermissionPolicy(text.to_owned()))
    }
}

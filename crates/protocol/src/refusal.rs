//! A refusal of the sandbox, in words: which control stopped a turn, what the turn tried, and which option of
//! the policy allows it. The node judges it from the policy and the end of a turn. It changes nothing that is
//! enforced.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::confinement::Control;

/// Maximum bytes of [`PolicyRefusal::tried`]. The text comes from code in a session.
pub const TRIED_BYTES_MAX: usize = 256;

/// Why the policy of a session stopped what a turn tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct PolicyRefusal {
    /// The control that refused it.
    pub control: Control,
    /// What was tried, for example `connect to example.org`. Names in it come from the session's code.
    pub tried: String,
    /// What happened and what allows it, for people.
    pub message: String,
    /// The command line option that allows it, for example `--allow-host example.org`. Absent if no option does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    /// The field of a policy request that allows it, for example `policy.network.hosts`. Absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

//! When a client may rely on what it was told of a turn.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// When acceptance and end of a session's turns are told to the client that sent them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Once the node's journal has them.
    #[default]
    Local,
    /// Once the fleet's copy has them, too. A turn whose end is not copied when the reply's wait is over is told as
    /// running.
    Replicated,
}

impl Durability {
    /// Whether it is the default, which is not serialized.
    pub fn is_local(&self) -> bool {
        *self == Self::Local
    }
}

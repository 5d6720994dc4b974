//! Logins of the web console. None of these values shows a secret in debug output.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::TenantName;

/// An address with which a person logs in to the web console of the node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsoleLogin {
    /// Has a code that works once.
    pub url: String,
    /// How long the code works.
    pub expires_in_s: u64,
}

/// With what a page of the web console logs in: one of the two.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenConsole {
    /// The code of an address that `windlass console` prints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A token of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A login of the web console.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsoleSession {
    /// The page sends it with each request, in the header `X-Windlass-Console`.
    pub key: String,
    /// What the login allows: `read`, `run` or `admin`.
    pub scope: String,
    /// The tenant to which the login is limited.
    pub tenant: Option<TenantName>,
    /// When the login ends unless it is used, in milliseconds since the Unix epoch.
    pub expires_at: u64,
}

impl fmt::Debug for ConsoleLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleLogin")
            .field("expires_in_s", &self.expires_in_s)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OpenConsole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenConsole").finish_non_exhaustive()
    }
}

impl fmt::Debug for ConsoleSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleSession")
            .field("scope", &self.scope)
            .field("tenant", &self.tenant)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

//! Secrets of the node, and the rules of a session that say where they may go.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::policy::SecretRule;

/// The secrets of the node, without their values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    pub secrets: Vec<SecretInfo>,
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretInfo {
    pub name: String,
    /// When the value was set.
    pub set_at_ms: u64,
}

/// New secret rules for a live session, instead of the ones that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSecretRules {
    pub rules: Vec<SecretRule>,
}

/// The secret rules of a live session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionSecretRules {
    pub rules: Vec<SecretRule>,
    /// What the session's code sends instead of each secret, by name.
    pub placeholders: BTreeMap<String, String>,
}

impl SessionSecretRules {
    pub fn new(rules: Vec<SecretRule>) -> Self {
        let names = rules.iter().map(|rule| &rule.name);
        let placeholders = names.map(|name| (name.to_string(), name.placeholder())).collect();
        Self { rules, placeholders }
    }
}

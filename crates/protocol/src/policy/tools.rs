//! Tool rules: which tools of the node's MCP servers a session may call, by name, by server, or all.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::host::is_tool_name;

/// A tool rule: `files.read`, `files.*` or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(try_from = "String", into = "String")]
pub struct ToolRule(String);

/// A text is not a tool rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a tool rule: write `server.tool`, `server.*` or `*`")]
pub struct BadToolRule(String);

impl ToolRule {
    pub fn parse(text: impl Into<String>) -> Result<Self, BadToolRule> {
        let text = text.into();
        let named = text.strip_suffix(".*").map_or(text.as_str(), |server| server);
        let grouped =
            text.contains('.') && named.split('.').count() + usize::from(named != text) == 2;
        if text == "*" || (grouped && is_tool_name(named)) {
            return Ok(Self(text));
        }
        Err(BadToolRule(text))
    }

    /// Whether the rule allows calls of this tool.
    pub fn allows(&self, tool: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => tool.starts_with(start),
            None => tool == self.0,
        }
    }
}

impl fmt::Display for ToolRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ToolRule {
    type Error = BadToolRule;
    fn try_from(text: String) -> Result<Self, BadToolRule> {
        Self::parse(text)
    }
}

impl From<ToolRule> for String {
    fn from(rule: ToolRule) -> Self {
        rule.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_a_tool_a_server_or_all() {
        for (rule, tool, allowed) in [
            ("*", "files.read", true),
            ("files.*", "files.read", true),
            ("files.*", "files2.read", false),
            ("files.read", "files.read", true),
            ("files.read", "files.read_all", false),
        ] {
            assert_eq!(ToolRule::parse(rule).unwrap().allows(tool), allowed, "{rule} {tool}");
        }
        for bad in ["", "files", "files.", "f*", "a.b.*", "*.read", "files.r*", ".*"] {
            assert!(ToolRule::parse(bad).is_err(), "{bad:?}");
        }
    }
}

//! What node and tool host say to each other over the host's WebSocket, one frame in each binary
//! message (`docs/tools.md`). A tool host is a client that offers functions to the code of sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::TOOL_NAME_BYTES_MAX;
use crate::{CallNo, ErrorCode, SessionId, TurnNo};

/// The header by which a client says in which call it makes a request, as [`Within`] in text.
pub const WITHIN_HEADER: &str = "windlass-within";

/// Host to node. Unknown kinds are `Unknown`, unknown fields are passed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromHost {
    /// The body, a [`Declaration`], says all that this host offers from now on.
    Tools {
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The answer to a `tool_call`, in the body.
    ToolResult {
        session: SessionId,
        turn: TurnNo,
        call: CallNo,
        /// Not so: the body is a [`ToolError`], and what came before is void.
        ok: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    #[serde(other)]
    Unknown,
}

/// Node to host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToHost {
    /// Always first.
    Welcome { api: String, node: String },
    /// The declared tools are offered.
    ToolsAccepted { count: usize },
    /// What was said cannot be taken; the connection goes on.
    Refused { code: ErrorCode, message: String },
    /// The code of a session calls a tool of this host's; the body has its arguments.
    ToolCall {
        session: SessionId,
        turn: TurnNo,
        call: CallNo,
        name: String,
        /// How long an answer is waited for.
        deadline_ms: u64,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// Nobody waits for this call's answer any more.
    ToolCancel { session: SessionId, turn: TurnNo, call: CallNo, reason: CancelReason },
}

/// Why nobody waits for an answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// The turn was interrupted.
    Interrupted,
    /// The call's deadline passed.
    Deadline,
    /// The code gave the call up.
    GivenUp,
    /// The turn is over, or its worker is.
    TurnOver,
}

/// All that a host offers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Declaration {
    pub tools: Vec<ToolOffer>,
}

/// One tool that a host offers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct ToolOffer {
    /// A name, or a group and a name: `read`, `files.read`.
    pub name: String,
    /// What it does, for the model that writes the code. Its first line is shown in lists.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The JSON schema of its arguments, an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<serde_json::Value>,
    /// How long a call may take where the code does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// Why a call failed, as the code will see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolError {
    pub message: String,
    /// Absent: the tool itself failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// The class of the tool's own error.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A call that a request is made in, in text `SESSION/TURN/CALL`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Within {
    pub session: SessionId,
    pub turn: TurnNo,
    pub call: CallNo,
}

impl Within {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let within = Self {
            session: SessionId::parse(parts.next()?).ok()?,
            turn: TurnNo(parts.next()?.parse().ok()?),
            call: CallNo(parts.next()?.parse().ok()?),
        };
        parts.next().is_none().then_some(within)
    }
}

impl std::fmt::Display for Within {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.session, self.turn, self.call)
    }
}

/// The group that the node's own tools are in, which no host may use.
pub const OWN_GROUP: &str = "windlass";

/// Whether a host may offer a tool of this name: an identifier, or two with a dot between.
pub fn is_tool_name(name: &str) -> bool {
    let identifier = |part: &str| {
        let mut bytes = part.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let parts: Vec<&str> = name.split('.').collect();
    name.len() <= TOOL_NAME_BYTES_MAX
        && parts.len() <= 2
        && parts.iter().all(|part| identifier(part))
        && parts[0] != OWN_GROUP
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_named_by_an_identifier_or_two() {
        for good in ["read", "_x1", "files.read", &"x".repeat(128)] {
            assert!(is_tool_name(good), "{good:?}");
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "1a",
            "a-b",
            "é",
            "a b",
            "windlass.list",
            &"x".repeat(129),
        ] {
            assert!(!is_tool_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_call_is_named_in_text_and_back() {
        let text = "s-1/12/3";
        assert_eq!(Within::parse(text).unwrap().to_string(), text);
        for bad in ["", "s", "s/1", "s/1/2/3", "s/x/1", "-s/1/2", "s/1/-2"] {
            assert_eq!(Within::parse(bad), None, "{bad:?}");
        }
    }
}

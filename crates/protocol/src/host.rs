//! The messages between node and tool host over the host's WebSocket, one frame in each binary message
//! (`docs/tools.md`). A tool host is a client that offers functions to the code of sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::TOOL_NAME_BYTES_MAX;
use crate::{CallNo, ErrorCode, SessionId, TurnNo};

/// The header that names the host tool call within which a client makes a request, as [`Within`] in text.
pub const WITHIN_HEADER: &str = "windlass-within";

/// The header that limits a client to the children of one session: the session's id. The client sees no other session,
/// and the sessions that it creates are children of that one.
pub const PARENT_HEADER: &str = "windlass-parent";

/// Messages from host to node. An unknown kind becomes `Unknown`; unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromHost {
    /// The body is a [`Declaration`] of all tools that this host offers from now on.
    Tools {
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The result of a `tool_call`, in the body.
    ToolResult {
        session: SessionId,
        turn: TurnNo,
        call: CallNo,
        /// If false, the body is a [`ToolError`], and earlier frames of this result are discarded.
        ok: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    #[serde(other)]
    Unknown,
}

/// Messages from node to host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToHost {
    /// Always the first message.
    Welcome { api: String, node: String },
    /// The node offers the declared tools to sessions.
    ToolsAccepted { count: usize },
    /// The node rejects the host's message. The connection continues.
    Refused { code: ErrorCode, message: String },
    /// The code of a session calls a tool of this host. The body is the arguments.
    ToolCall {
        session: SessionId,
        turn: TurnNo,
        call: CallNo,
        name: String,
        /// How long the node waits for the result.
        deadline_ms: u64,
        #[serde(default, skip_serializing_if = "is_false")]
        more: bool,
    },
    /// The call is cancelled: its result is no longer needed.
    ToolCancel { session: SessionId, turn: TurnNo, call: CallNo, reason: CancelReason },
}

/// Why a call is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// The turn was interrupted.
    Interrupted,
    /// The call's deadline passed.
    Deadline,
    /// The code cancelled the call.
    GivenUp,
    /// The turn or its worker ended.
    TurnOver,
}

/// All tools that a host offers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Declaration {
    pub tools: Vec<ToolOffer>,
}

/// One tool that a host offers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct ToolOffer {
    /// A name, or a group and a name: `read`, `files.read`.
    pub name: String,
    /// What the tool does, for the model that writes the code. Lists show the first line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The JSON schema of the arguments, an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<serde_json::Value>,
    /// How long a call may take if the code sets no deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// Why a call failed, as the code sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolError {
    pub message: String,
    /// Absent if the tool itself failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// The class of the tool's error.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// The host tool call within which a client makes a request. Its text form is `SESSION/TURN/CALL`.
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

/// The group of the node's own tools. No host may use it.
pub const OWN_GROUP: &str = "windlass";

/// Whether a host may offer a tool of this name: one identifier, or two separated by a dot.
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

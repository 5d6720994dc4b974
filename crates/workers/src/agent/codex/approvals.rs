//! Permissions that codex asks for: commands, file changes, and tools of MCP servers.

use serde_json::{Value, json};
use windlass_protocol::agent::{OptionKind, PermissionOption};

use super::super::engine::{Question, text_at};

/// A request of codex that is not answered yet.
#[derive(Debug)]
pub struct OpenApproval {
    /// Codex's number of the request.
    id: Value,
    kind: ApprovalKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApprovalKind {
    /// A command or a file change.
    Decision,
    /// A tool of an MCP server. Codex asks for it as an elicitation.
    Elicitation,
}

impl OpenApproval {
    /// The approval and its question, if this request asks for a permission. The question has no id yet.
    pub fn of(
        method: &str,
        id: &Value,
        params: &Value,
        item_title: Option<&str>,
    ) -> Option<(Self, Question)> {
        let item = text_at(params, "itemId");
        let action = Some(item).filter(|item| !item.is_empty());
        let (kind, title) = match method {
            "item/commandExecution/requestApproval" => {
                (ApprovalKind::Decision, format!("run {}", text_at(params, "command")))
            }
            "item/fileChange/requestApproval" => {
                let what = item_title.unwrap_or("files");
                (ApprovalKind::Decision, format!("change {what}"))
            }
            "mcpServer/elicitation/request"
                if params["_meta"]["codex_approval_kind"].as_str() == Some("mcp_tool_call") =>
            {
                (ApprovalKind::Elicitation, text_at(params, "message"))
            }
            _ => return None,
        };
        let reason = text_at(params, "reason");
        let title = if reason.is_empty() { title } else { format!("{title} ({reason})") };
        let options = options();
        let approval = Self { id: id.clone(), kind };
        Some((approval, Question { id: String::new(), title, options, action }))
    }

    /// The line that answers the request with this option.
    pub fn answer(self, option: &str) -> Value {
        let result = match (self.kind, option) {
            (ApprovalKind::Decision, option) => json!({ "decision": option }),
            (ApprovalKind::Elicitation, "acceptForSession") => {
                json!({ "action": "accept", "content": {}, "_meta": { "persist": "session" } })
            }
            (ApprovalKind::Elicitation, "accept") => {
                json!({ "action": "accept", "content": {}, "_meta": null })
            }
            (ApprovalKind::Elicitation, _) => {
                json!({ "action": "decline", "content": null, "_meta": null })
            }
        };
        json!({ "id": self.id, "result": result })
    }
}

fn options() -> Vec<PermissionOption> {
    [
        ("accept", "Allow once", OptionKind::AllowOnce),
        ("acceptForSession", "Allow for this conversation", OptionKind::AllowAlways),
        ("decline", "Refuse", OptionKind::RejectOnce),
    ]
    .into_iter()
    .map(|(id, name, kind)| PermissionOption { id: id.to_owned(), name: name.to_owned(), kind })
    .collect()
}

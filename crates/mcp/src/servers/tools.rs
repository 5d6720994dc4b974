//! A server's tools as code sees them: listed page by page, within limits, each under a name that
//! is an identifier.

use rmcp::RoleClient;
use rmcp::model::{PaginatedRequestParams, Tool};
use rmcp::service::{Peer, ServiceError};
use serde_json::Value;
use windlass_protocol::host::ToolOffer;
use windlass_protocol::limits::{HOST_TOOLS_MAX, TOOL_SCHEMA_BYTES_MAX};

use super::config::ServerEntry;
use super::names;

/// Most pages that are requested. Tools on later pages are not offered.
const PAGES_MAX: usize = 64;

/// Longest description in bytes. A longer one is cut.
const DESCRIPTION_BYTES_MAX: usize = 16 * 1024;

/// One tool: the offer that code sees, and the server's name for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OfferedTool {
    pub offer: ToolOffer,
    pub original: String,
}

/// Lists the tools of a server.
pub(crate) async fn list(
    peer: &Peer<RoleClient>,
    entry: &ServerEntry,
) -> Result<Vec<OfferedTool>, ServiceError> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES_MAX {
        let asked = PaginatedRequestParams::default().with_cursor(cursor.take());
        let page = peer.list_tools(Some(asked)).await?;
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() > HOST_TOOLS_MAX {
            break;
        }
    }
    if cursor.is_some() || tools.len() > HOST_TOOLS_MAX {
        let (server, limit) = (&entry.name, HOST_TOOLS_MAX);
        tracing::warn!(server, limit, "an mcp server has more tools than are offered");
        tools.truncate(HOST_TOOLS_MAX);
    }
    Ok(offered(entry, tools))
}

fn offered(entry: &ServerEntry, tools: Vec<Tool>) -> Vec<OfferedTool> {
    let identifiers = names::tools(tools.iter().map(|tool| &*tool.name));
    tools.into_iter().zip(identifiers).map(|(tool, name)| offer(entry, tool, &name)).collect()
}

fn offer(entry: &ServerEntry, tool: Tool, name: &str) -> OfferedTool {
    let name = format!("{}.{name}", entry.group);
    let schema = Value::Object((*tool.input_schema).clone());
    let bytes = serde_json::to_vec(&schema).map_or(usize::MAX, |text| text.len());
    let fits = bytes <= TOOL_SCHEMA_BYTES_MAX;
    if !fits {
        tracing::warn!(tool = name, bytes, "a tool's schema is too large to be offered with it");
    }
    let description = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
    let end = (0..=description.len().min(DESCRIPTION_BYTES_MAX))
        .rev()
        .find(|end| description.is_char_boundary(*end));
    OfferedTool {
        offer: ToolOffer {
            name,
            description: description[..end.unwrap_or(0)].to_owned(),
            input_schema: fits.then_some(schema),
            deadline_ms: None,
        },
        original: tool.name.into_owned(),
    }
}

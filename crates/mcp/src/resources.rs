//! Output and displays of sessions as MCP resources. Replies link to them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    ListResourcesResult, MetaObject, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};
use windlass_client::{ClientError, StartNode, WhichSessions};
use windlass_protocol::api::OutputQuery;
use windlass_protocol::{ErrorCode, Seq, SessionId, TurnId};

use crate::call::ClientCall;
use crate::door::Door;
use crate::sessions::{Intent, check_scope};

const BASE: &str = "windlass://sessions/";

/// The metadata key for the URI of the rest of a long output.
const NEXT: &str = "windlass/next";

/// Most bytes of one read.
const READ_BYTES_MAX: u64 = 1024 * 1024;

/// Most resources in a list.
const LIST_MAX: usize = 100;

/// A parsed resource URI.
#[derive(Debug, PartialEq, Eq)]
enum ResourceAddress {
    Output { session: SessionId, turn: Option<TurnId>, from: u64 },
    Display { session: SessionId, seq: Seq },
}

pub(crate) fn turn_output(session: &SessionId, turn: &TurnId) -> String {
    format!("{BASE}{session}/turns/{turn}/output")
}

pub(crate) fn display(session: &SessionId, seq: Seq) -> String {
    format!("{BASE}{session}/displays/{seq}")
}

fn session_output(session: &SessionId) -> String {
    format!("{BASE}{session}/output")
}

impl ResourceAddress {
    fn session(&self) -> &SessionId {
        let (Self::Output { session, .. } | Self::Display { session, .. }) = self;
        session
    }

    fn parse(uri: &str) -> Option<Self> {
        let (path, query) =
            uri.strip_prefix(BASE)?.split_once('?').unwrap_or((uri.strip_prefix(BASE)?, "from=0"));
        let from = query.strip_prefix("from=")?.parse().ok()?;
        let parts: Vec<&str> = path.split('/').collect();
        let session = SessionId::parse(*parts.first()?).ok()?;
        match parts[1..] {
            ["output"] => Some(Self::Output { session, turn: None, from }),
            ["turns", turn, "output"] => {
                Some(Self::Output { session, turn: Some(TurnId::parse(turn).ok()?), from })
            }
            ["displays", seq] => Some(Self::Display { session, seq: Seq(seq.parse().ok()?) }),
            _ => None,
        }
    }
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let template = |path: &str, name: &str, title: &str| {
        ResourceTemplate::new(format!("{BASE}{path}"), name).with_title(title)
    };
    vec![
        template("{session}/output", "session-output", "All that a session printed")
            .with_mime_type("text/plain"),
        template("{session}/turns/{turn}/output", "turn-output", "All that one run printed")
            .with_mime_type("text/plain"),
        template("{session}/displays/{seq}", "display", "An image or other display of a run"),
    ]
}

/// Lists the output of live sessions. Clients ask for this list before anything else, so it neither
/// starts nor looks for a node.
pub(crate) async fn list(door: &Door) -> Result<ListResourcesResult, ErrorData> {
    let Some(client) = door.client_if_known() else {
        return Ok(ListResourcesResult::with_all_items(Vec::new()));
    };
    let client = client.with_start(StartNode::Never);
    let sessions = match client.sessions(WhichSessions::Live).await {
        Ok(list) => list.sessions,
        Err(error) if error.is_unreachable() => Vec::new(),
        Err(error) => return Err(ErrorData::internal_error(error.to_string(), None)),
    };
    let resources = sessions.iter().take(LIST_MAX).map(|session| {
        Resource::new(session_output(&session.id), format!("{} output", session.id))
            .with_mime_type("text/plain")
            .with_size(session.output_bytes)
    });
    Ok(ListResourcesResult::with_all_items(resources.collect()))
}

pub(crate) async fn read(
    door: &Door,
    context: &RequestContext<RoleServer>,
    uri: &str,
) -> Result<ReadResourceResult, ErrorData> {
    let address = ResourceAddress::parse(uri).ok_or_else(|| unknown(uri))?;
    let may_read = ClientCall::new(door, context)
        .await
        .and_then(|call| check_scope(&call, address.session(), Intent::Read));
    may_read.map_err(|fault| ErrorData::invalid_params(fault.to_string(), None))?;
    let client = door.client().await.map_err(|error| failed(uri, &error))?;
    let contents = match address {
        ResourceAddress::Output { session, turn, from } => {
            let to = Some(from.saturating_add(READ_BYTES_MAX));
            let turn = turn.map(String::from);
            let query = OutputQuery { turn, from: Some(from), to, tail: None };
            let part = client.output(&session, &query).await;
            let part = part.map_err(|error| failed(uri, &error))?;
            let bare = uri.split('?').next().unwrap_or_default();
            let next = (part.next < part.total).then(|| format!("{bare}?from={}", part.next));
            ResourceContents::TextResourceContents {
                uri: uri.to_owned(),
                mime_type: Some("text/plain".to_owned()),
                text: String::from_utf8_lossy(&part.bytes).into_owned(),
                meta: next.and_then(|next| match json!({NEXT: next}) {
                    Value::Object(meta) => Some(MetaObject(meta)),
                    _ => None,
                }),
            }
        }
        ResourceAddress::Display { session, seq } => {
            let shown = client.display(&session, seq).await;
            let shown = shown.map_err(|error| failed(uri, &error))?;
            ResourceContents::BlobResourceContents {
                uri: uri.to_owned(),
                mime_type: Some(shown.mime),
                blob: STANDARD.encode(&shown.bytes),
                meta: None,
            }
        }
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

fn unknown(uri: &str) -> ErrorData {
    ErrorData::resource_not_found(format!("there is no resource {uri}"), Some(json!({"uri": uri})))
}

fn failed(uri: &str, error: &ClientError) -> ErrorData {
    let absent = [ErrorCode::SessionNotFound, ErrorCode::TurnNotFound, ErrorCode::NotFound];
    match error.api_code() {
        Some(code) if absent.contains(&code) => unknown(uri),
        _ => ErrorData::internal_error(format!("{error}: {}", error.remedy()), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_made() {
        let (session, turn) = (SessionId::parse("s").unwrap(), TurnId::parse("t1").unwrap());
        let output =
            ResourceAddress::Output { session: session.clone(), turn: Some(turn.clone()), from: 0 };
        assert_eq!(ResourceAddress::parse(&turn_output(&session, &turn)), Some(output));
        let later = ResourceAddress::Output { session: session.clone(), turn: None, from: 7 };
        assert_eq!(
            ResourceAddress::parse(&format!("{}?from=7", session_output(&session))),
            Some(later)
        );
        let shown = ResourceAddress::Display { session: session.clone(), seq: Seq(3) };
        assert_eq!(ResourceAddress::parse(&display(&session, Seq(3))), Some(shown));
    }

    #[test]
    fn nothing_else_is_an_address() {
        for uri in [
            "",
            "file:///etc/passwd",
            "windlass://sessions/",
            "windlass://sessions/a",
            "windlass://sessions/../output",
            "windlass://sessions/a/output?from=x",
            "windlass://sessions/a/turns//output",
            "windlass://sessions/a/displays/x",
        ] {
            assert_eq!(ResourceAddress::parse(uri), None, "{uri}");
        }
    }
}

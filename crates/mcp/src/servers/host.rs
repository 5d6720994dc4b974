//! The servers as tool hosts of the node, attached like any client's host. Declares the tools of
//! the servers, again after each change, and passes calls on. There are two hosts: one for the
//! servers that every session may call, and one for those that a policy must name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rmcp::model::JsonObject;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use windlass_client::tools::{DisconnectReason, HostMessage, ToolCall, ToolHost, ToolScope};
use windlass_client::{Client, ClientError};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::ServerSessions;
use windlass_protocol::host::{Declaration, ToolError, Within};
use windlass_protocol::limits::HOST_TOOLS_MAX;

use super::server::McpServer;

/// The pause before the next attempt to connect to the node.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Limit for the argument bytes of all open calls. The call that would exceed it fails with
/// `overloaded`. The arguments are in the node's memory, and untrusted code must not be able to
/// fill it.
const ARGUMENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The WebSocket close code of a node that stops.
const NODE_STOPS: u16 = 1001;

/// Offers the tools of these servers, all with the same scope, until the node stops.
pub(crate) async fn offer(
    client: Client,
    sessions: ServerSessions,
    servers: Vec<Arc<McpServer>>,
    mut changed: watch::Receiver<u64>,
) {
    let scope = match sessions {
        ServerSessions::ByPolicy => ToolScope::Shared,
        ServerSessions::All => ToolScope::Everyone,
    };
    loop {
        let lost = match ToolHost::attach(&client, &scope).await {
            Ok(host) => ServerToolHost::new(host, &servers).serve(&mut changed).await,
            Err(error) => Lost::Why(error.to_string()),
        };
        let Lost::Why(lost) = lost else { return };
        tracing::warn!(?sessions, lost, "the mcp servers' tools are not offered");
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// Why a connection to the node ended.
#[derive(Debug, PartialEq, Eq)]
enum Lost {
    NodeStops,
    Why(String),
}

/// An attached host and its open calls.
struct ServerToolHost<'s> {
    host: ToolHost,
    servers: &'s [Arc<McpServer>],
    calls: JoinSet<Within>,
    open: HashMap<Within, AbortHandle>,
    room: Arc<Semaphore>,
}

impl<'s> ServerToolHost<'s> {
    fn new(host: ToolHost, servers: &'s [Arc<McpServer>]) -> Self {
        let room = Arc::new(Semaphore::new(ARGUMENT_BYTES_MAX));
        Self { host, servers, calls: JoinSet::new(), open: HashMap::new(), room }
    }

    /// Serves until the connection is lost; returns why.
    async fn serve(mut self, changed: &mut watch::Receiver<u64>) -> Lost {
        let mut declared = None;
        loop {
            changed.mark_unchanged();
            let now = self.declaration();
            if declared.as_ref() != Some(&now) {
                match self.host.declare(&now).await {
                    Ok(_) => {}
                    // The previous tools stay offered. Each further change tries again.
                    Err(ClientError::Api(error)) => {
                        tracing::error!(error = error.message, "the node refuses mcp tools");
                    }
                    Err(error) => return Lost::Why(error.to_string()),
                }
                declared = Some(now);
            }
            if let Err(lost) = self.until_changed(changed).await {
                return lost;
            }
        }
    }

    /// Passes calls on until the tools have changed.
    async fn until_changed(&mut self, changed: &mut watch::Receiver<u64>) -> Result<(), Lost> {
        loop {
            tokio::select! {
                message = self.host.next() => match message {
                    HostMessage::Call(call) => self.begin(call),
                    HostMessage::Cancel { call, .. } => {
                        // Dropping the request tells the server to cancel.
                        if let Some(begun) = self.open.remove(&call) {
                            begun.abort();
                        }
                    }
                    HostMessage::Closed(DisconnectReason::ByNode { code: NODE_STOPS, .. }) => {
                        return Err(Lost::NodeStops);
                    }
                    HostMessage::Closed(closed) => return Err(Lost::Why(closed.to_string())),
                },
                Some(Ok(call)) = self.calls.join_next() => drop(self.open.remove(&call)),
                Ok(()) = changed.changed() => return Ok(()),
            }
        }
    }

    fn begin(&mut self, call: ToolCall) {
        let answers = self.host.answers();
        let ToolCall { call, name, arguments, .. } = call;
        let offers = |server: &&Arc<McpServer>| {
            name.strip_prefix(&server.entry.group).is_some_and(|rest| rest.starts_with('.'))
        };
        let Some(server) = self.servers.iter().find(offers).cloned() else {
            let message = format!("no MCP server offers {name}");
            let code = Some(ErrorCode::ToolNotFound);
            return answers.give(&call, Err(ToolError { message, code, kind: None }));
        };
        let bytes = u32::try_from(arguments.len()).unwrap_or(u32::MAX);
        let Ok(room) = self.room.clone().try_acquire_many_owned(bytes) else {
            let message = format!(
                "open calls to MCP servers already hold {ARGUMENT_BYTES_MAX} bytes of arguments"
            );
            let code = Some(ErrorCode::Overloaded);
            return answers.give(&call, Err(ToolError { message, code, kind: None }));
        };
        let within = call.clone();
        let begun = self.calls.spawn(async move {
            let _room = room;
            answers.give(&within, answer(&server, &name, &arguments).await);
            within
        });
        self.open.insert(call, begun);
    }

    /// The tools of all servers, up to the limit of one host.
    fn declaration(&self) -> Declaration {
        let offered = self.servers.iter().flat_map(|server| server.offers());
        let mut tools: Vec<_> = offered.map(|offered| offered.offer).collect();
        if tools.len() > HOST_TOOLS_MAX {
            let (count, limit) = (tools.len(), HOST_TOOLS_MAX);
            tracing::warn!(count, limit, "the mcp servers have more tools than can be offered");
            tools.truncate(HOST_TOOLS_MAX);
        }
        Declaration { tools }
    }
}

async fn answer(server: &McpServer, name: &str, arguments: &[u8]) -> Result<Bytes, ToolError> {
    let arguments: JsonObject = serde_json::from_slice(arguments).map_err(|fault| ToolError {
        message: format!("the arguments are not a JSON object: {fault}"),
        code: Some(ErrorCode::BadRequest),
        kind: None,
    })?;
    let value = server.call(name, arguments).await?;
    Ok(serde_json::to_vec(&value).expect("a JSON value always serialises").into())
}

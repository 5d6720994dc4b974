//! How commands connect to the node. Some commands start a missing node; others only use a running one.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use windlass_client::{Client, ClientError, Dirs, RemoteNode, StartNode, Token};
use windlass_protocol::api::CloseQuery;
use windlass_protocol::{ErrorCode, SessionId};

use crate::terminal::Terminal;

/// URL of a node that listens on TCP. If it is set, commands use that node and never start one.
const URL: &str = "WINDLASS_URL";

/// The token for `WINDLASS_URL`. Without it, commands read the token file of this user's node.
const TOKEN: &str = "WINDLASS_TOKEN";

/// Connects to the node, and starts the node if none is running.
pub async fn connect_or_start() -> anyhow::Result<Client> {
    connect_or_start_with(Vec::new()).await
}

/// Connects to the node, and starts it as `windlass node ARGS...` if none is running.
pub async fn connect_or_start_with(args: Vec<OsString>) -> anyhow::Result<Client> {
    let program =
        std::env::current_exe().context("cannot find the path of the windlass program")?;
    Ok(connect(StartNode::IfAbsent { program, args }).await?)
}

/// The same as [`connect_or_start`] with a typed error, for callers that connect later and report
/// failures themselves.
pub async fn try_connect_or_start() -> Result<Client, ClientError> {
    let start = match std::env::current_exe() {
        Ok(program) => StartNode::IfAbsent { program, args: Vec::new() },
        Err(_) => StartNode::Never,
    };
    connect(start).await
}

/// Connects to a running node with a typed error. The client never starts a node, also not later.
pub async fn try_connect() -> Result<Client, ClientError> {
    connect(StartNode::Never).await
}

/// Connects to a running node. Returns `None` if no node is running. A node that `WINDLASS_URL` names and that does
/// not answer is an error: that node may run, and have sessions.
pub async fn connect_if_running() -> anyhow::Result<Option<Client>> {
    match connect(StartNode::Never).await {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.is_absence() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects to a running node. If no node is running, prints that, as JSON `null` if `json` is set.
pub async fn connect_if_running_or_say(
    terminal: &mut Terminal,
    json: bool,
) -> anyhow::Result<Option<Client>> {
    let client = connect_if_running().await?;
    if client.is_none() {
        terminal.say(if json { "null" } else { "no node is running" })?;
    }
    Ok(client)
}

/// Whether commands use a node over TCP. Its processes may run on another machine.
pub fn is_remote() -> bool {
    std::env::var_os(URL).is_some()
}

async fn connect(start: StartNode) -> Result<Client, ClientError> {
    let dirs = Dirs::from_env()?;
    let Some(url) = std::env::var_os(URL) else { return Client::connect(dirs, start).await };
    let token = match std::env::var_os(TOKEN) {
        Some(text) => text.to_str().and_then(Token::parse).ok_or(ClientError::BadToken)?,
        None => Token::read(&dirs.token())?,
    };
    let url = url.to_str().ok_or(ClientError::BadUrl)?;
    Client::connect_remote(RemoteNode::new(url, &token)?, dirs).await
}

/// Ends a session that this command created. Does not restart a node that is gone or stopping: such a
/// node has ended its sessions, or their keepers end them.
pub async fn close(client: &Client, session: &SessionId) -> Result<(), ClientError> {
    let client = client.with_start(StartNode::Never).with_retry_for(Duration::ZERO);
    match client.close_session(session, CloseQuery::default()).await {
        Ok(_) | Err(ClientError::Cut { .. }) => Ok(()),
        Err(error) if error.is_unreachable() => Ok(()),
        Err(ClientError::Api(error))
            if matches!(error.code, ErrorCode::ShuttingDown | ErrorCode::SessionEnded) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

//! How commands reach the node: started when a command needs one, or only looked for.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use windlass_client::{Client, ClientError, Dirs, RemoteNode, StartNode, Token};
use windlass_protocol::api::CloseQuery;
use windlass_protocol::{ErrorCode, SessionId};

use crate::terminal::Terminal;

/// Names a node behind a TCP door; commands then use that one and start none.
const URL: &str = "WINDLASS_URL";

/// What opens that door. Without it, the token file of this user's own node is used.
const TOKEN: &str = "WINDLASS_TOKEN";

/// A client; the node is started if there is none.
pub async fn started() -> anyhow::Result<Client> {
    started_with(Vec::new()).await
}

/// A client; the node is started as `windlass node ARGS...` if there is none.
pub async fn started_with(args: Vec<OsString>) -> anyhow::Result<Client> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(connect(StartNode::IfAbsent { program, args }).await?)
}

/// The same as [`started`], for whoever connects later and tells of it in other ways.
pub async fn started_later() -> Result<Client, ClientError> {
    let start = match std::env::current_exe() {
        Ok(program) => StartNode::IfAbsent { program, args: Vec::new() },
        Err(_) => StartNode::Never,
    };
    connect(start).await
}

/// A client of a node that runs already; `None` if none does.
pub async fn present() -> anyhow::Result<Option<Client>> {
    match connect(StartNode::Never).await {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::Unreachable { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A client of a node that runs already. If none does, the user is told so, as JSON where `json` asks for it.
pub async fn present_or_told(
    terminal: &mut Terminal,
    json: bool,
) -> anyhow::Result<Option<Client>> {
    let client = present().await?;
    if client.is_none() {
        terminal.say(if json { "null" } else { "no node is running" })?;
    }
    Ok(client)
}

/// Whether the node is one behind a TCP door, whose processes may be another machine's.
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

/// Ends a session that this command made. A node that is gone or stopping is not started again
/// for it: it has ended its sessions, or their keepers end them.
pub async fn close(client: &Client, session: &SessionId) -> Result<(), ClientError> {
    let client = client.with_start(StartNode::Never).with_retry_for(Duration::ZERO);
    match client.close_session(session, CloseQuery::default()).await {
        Ok(_) | Err(ClientError::Unreachable { .. } | ClientError::Cut { .. }) => Ok(()),
        Err(ClientError::Api(error))
            if matches!(error.code, ErrorCode::ShuttingDown | ErrorCode::SessionEnded) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

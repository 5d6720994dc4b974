//! How commands connect to the node. Some commands start a missing node; others only use a running one. A command that
//! only shows what the node answers does it with [`show_answer`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use windlass_client::{Client, ClientError, Dirs, RemoteNode, StartNode, Token, TokenError};
use windlass_protocol::api::CloseQuery;
use windlass_protocol::{ClientName, ErrorCode, SessionId};

use crate::exit;
use crate::terminal::Terminal;

/// URL of a node that listens on TCP. If it is set, commands use that node and never start one.
const URL: &str = "WINDLASS_URL";

/// The token for `WINDLASS_URL`. Without it, commands read the token file of this user's node.
const TOKEN: &str = "WINDLASS_TOKEN";

/// PEM file of the authorities that sign the certificate of the node at an `https` URL. Without it, those that this
/// machine trusts.
const CA: &str = "WINDLASS_CA";

/// The name of this program as a client.
const NAME: &str = "windlass";

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

/// Asks the running node, and shows the answer: as JSON if `json` is set, else with `show`. Returns the exit code that
/// `code` gives the answer, or that for a missing node.
pub async fn show_answer<T: Serialize>(
    terminal: &mut Terminal,
    json: bool,
    ask: impl AsyncFnOnce(Client) -> Result<T, ClientError>,
    code: impl FnOnce(&T) -> ExitCode,
    show: impl FnOnce(&T, &mut Terminal) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let Some(client) = connect_if_running_or_say(terminal, json).await? else {
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    let answer = ask(client).await?;
    if json {
        terminal.say(&serde_json::to_string_pretty(&answer)?)?;
    } else {
        show(&answer, terminal)?;
    }
    Ok(code(&answer))
}

/// Whether commands use a node over TCP. Its processes may run on another machine.
pub fn is_remote() -> bool {
    variable(URL).is_some()
}

/// The URL of the node over TCP, if commands use one.
pub fn remote_url() -> Option<String> {
    variable(URL)?.into_string().ok()
}

/// Refuses a command that reads or writes files of the node of this machine, if commands use another node.
pub fn require_local(command: &str) -> Result<(), ClientError> {
    if is_remote() { Err(ClientError::LocalOnly { command: command.to_owned() }) } else { Ok(()) }
}

/// A variable of the environment. An empty one counts as unset.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

async fn connect(start: StartNode) -> Result<Client, ClientError> {
    let name = ClientName::of_program(NAME).expect("the name is printable");
    Ok(connect_unnamed(start).await?.named(&name))
}

async fn connect_unnamed(start: StartNode) -> Result<Client, ClientError> {
    let dirs = Dirs::from_env()?;
    let Some(url) = variable(URL) else { return Client::connect(dirs, start).await };
    let url = url.to_str().ok_or(ClientError::BadUrl)?;
    RemoteNode::check_url(url)?;
    let token = match variable(TOKEN) {
        Some(text) => text.to_str().and_then(Token::parse).ok_or(ClientError::BadToken)?,
        None => match own_token(&dirs) {
            // A token does not help if nothing listens there.
            Err(error @ ClientError::NoToken { .. }) => {
                RemoteNode::check_listens(url).await?;
                return Err(error);
            }
            found => found?,
        },
    };
    let mut remote = RemoteNode::new(url, &token)?;
    if let Some(pem_file) = variable(CA) {
        remote = remote.with_ca(PathBuf::from(pem_file));
    }
    Client::connect_remote(remote, dirs).await
}

/// The token of the user's node on this machine, which may be the one behind the TCP door.
fn own_token(dirs: &Dirs) -> Result<Token, ClientError> {
    Token::read(&dirs.token()).map_err(|error| match error {
        TokenError::Io { path, cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            ClientError::NoToken { path }
        }
        error => error.into(),
    })
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

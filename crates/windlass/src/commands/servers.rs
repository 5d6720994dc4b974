//! `windlass servers`: lists the MCP servers that the node runs. Never starts a node.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use windlass_client::{Client, ClientError};
use windlass_protocol::api::{Server, ServerList, ServerSessions, ServerState, ServersQuery};

use crate::terminal::{Terminal, Tone, table};
use crate::{duration, exit, node_access};

/// List the MCP servers that the node runs
///
/// The file ~/.config/windlass/mcp.json, or the file that WINDLASS_MCP_CONFIG names, lists the servers.
/// Exits with 3 if no node is running, and with 1 if the file is invalid.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
    /// First wait until no server is starting, at most this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(client) = node_access::connect_if_running().await? else {
        terminal.say(if args.json { "null" } else { "no node is running" })?;
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    let list = settled(&client, args.wait.unwrap_or_default()).await?;
    let code = if list.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(code);
    }
    if let Some(error) = &list.error {
        terminal.note(error)?;
        return Ok(code);
    }
    if list.servers.is_empty() {
        terminal.note(&format!("no MCP servers are listed in {}", list.config))?;
        return Ok(code);
    }
    let rows: Vec<_> = list.servers.iter().map(row).collect();
    let lines = table(["SERVER", "SESSIONS", "PID", "TOOLS", "CALLS", "RESTARTS", "STATE"], &rows);
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| list.servers[at].state) {
            None => Tone::Strong,
            Some(ServerState::Running) => Tone::Good,
            Some(ServerState::Starting | ServerState::Waiting) => Tone::Busy,
            Some(ServerState::Failed) => Tone::Error,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    Ok(code)
}

/// The servers as soon as none of them is starting, or their state when the wait is over.
async fn settled(client: &Client, wait: Duration) -> Result<ServerList, ClientError> {
    let until = Instant::now() + wait;
    let mut query = ServersQuery::default();
    loop {
        let list = client.mcp_servers(query).await?;
        let left = until.saturating_duration_since(Instant::now());
        let starting = |server: &Server| server.state == ServerState::Starting;
        if left.is_zero() || !list.servers.iter().any(starting) {
            return Ok(list);
        }
        query = ServersQuery { after: Some(list.change), wait_ms: duration::millis(left) };
    }
}

fn row(server: &Server) -> [String; 7] {
    let sessions = match server.sessions {
        ServerSessions::ByPolicy => "by policy",
        ServerSessions::All => "all",
    };
    // Also show the name that code uses, if it differs.
    let name = if server.name == server.group {
        server.name.clone()
    } else {
        format!("{} ({})", server.name, server.group)
    };
    [
        name,
        sessions.to_owned(),
        server.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        server.tools.to_string(),
        server.calls.to_string(),
        server.restarts.to_string(),
        state(server),
    ]
}

fn state(server: &Server) -> String {
    let state = match server.state {
        ServerState::Starting => "starting".to_owned(),
        ServerState::Running => return "running".to_owned(),
        ServerState::Waiting => {
            // Round up to whole seconds.
            let left = server.restart_in_ms.unwrap_or(0).next_multiple_of(1000);
            let left = Duration::from_millis(left);
            format!("waiting to restart in {}", duration::show(left))
        }
        ServerState::Failed => "failed".to_owned(),
    };
    match &server.reason {
        Some(reason) => format!("{state}: {reason}"),
        None => state,
    }
}

//! `windlass servers`: the MCP servers that the node runs. Never starts a node.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use windlass_client::{Client, ClientError};
use windlass_protocol::api::{Server, ServerList, ServerSessions, ServerState, ServersQuery};

use crate::terminal::{Terminal, Tone, table};
use crate::{duration, exit, node_access};

/// List the MCP servers that the node runs
///
/// They are named in the file mcp.json, below ~/.config/windlass or where WINDLASS_MCP_CONFIG says.
/// Exits with 3 when no node is running, and with 1 when the file cannot be used.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// As JSON; null when there is no node
    #[arg(long)]
    json: bool,
    /// First wait until none of them is starting, for so long at most
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(client) = node_access::present().await? else {
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
        terminal.note(&format!("{} names no servers", list.config))?;
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

/// The servers once none of them is starting, or as they are after the wait.
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
    // Under the name that code has for it, where that is another.
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
            // Whole seconds, and never none.
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

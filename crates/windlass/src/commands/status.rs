//! `windlass status`: shows the state of the node. Never starts a node.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context;

use crate::terminal::{Terminal, Tone};
use crate::{duration, exit, node_access, storage_notes};

/// Show the state of the node
///
/// Exits with 3 if no node is running.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
    /// Print only the path of the node's socket
    #[arg(long, conflicts_with = "json")]
    socket: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let running = if args.socket {
        node_access::connect_if_running().await?
    } else {
        node_access::connect_if_running_or_say(terminal, args.json).await?
    };
    let Some(client) = running else {
        if args.socket {
            terminal.note("no node is running; start one with: windlass up")?;
        }
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    let status = client.node_status().await?;
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&status)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.socket {
        let socket = status
            .socket
            .context("the node is of an earlier release and does not tell its socket")?;
        terminal.say(&socket)?;
        return Ok(ExitCode::SUCCESS);
    }
    let up = terminal.tone(Tone::Good, "up");
    for (name, value) in [
        ("node", format!("{up}, pid {}", status.pid)),
        ("version", format!("{} (API {})", status.version, status.api)),
        ("running for", duration::show(since(status.started_at_ms))),
        ("sessions", status.sessions.to_string()),
        ("listens at", status.listen.unwrap_or_else(|| "its socket only".to_owned())),
        (
            "socket",
            status.socket.unwrap_or_else(|| "not told by this release of the node".to_owned()),
        ),
        ("runtime", status.runtime_dir),
        ("state", status.state_dir),
    ] {
        terminal.say(&format!("{name:12} {value}"))?;
    }
    for note in status.storage.iter().flat_map(storage_notes::notes) {
        terminal.say(&format!("{:12} {}", "storage", terminal.tone(Tone::Error, &note)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Time since a moment, given in milliseconds since the Unix epoch.
pub fn since(moment_ms: u64) -> Duration {
    let moment = SystemTime::UNIX_EPOCH + Duration::from_millis(moment_ms);
    SystemTime::now().duration_since(moment).unwrap_or_default()
}

//! `windlass ps`: lists the sessions. Never starts a node.

use std::process::ExitCode;

use windlass_client::WhichSessions;
use windlass_protocol::api::{Session, SessionList, SessionState};

use crate::commands::status::since;
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access, size};

/// List the sessions
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also list ended sessions
    #[arg(long, short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let which = if args.all { WhichSessions::EndedToo } else { WhichSessions::Live };
    let list = match node_access::connect_if_running().await? {
        Some(client) => client.sessions(which).await?,
        None => SessionList { sessions: Vec::new() },
    };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<_> = list.sessions.iter().map(row).collect();
    let lines = table(
        ["SESSION", "STATE", "WORKER", "TURNS", "WAITING", "OUTPUT", "AGE", "WORKSPACE"],
        &rows,
    );
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| list.sessions[at].state) {
            None => Tone::Strong,
            Some(SessionState::Idle) => Tone::Good,
            Some(SessionState::Ended) => Tone::Faint,
            Some(_) => Tone::Busy,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(session: &Session) -> [String; 8] {
    [
        session.id.to_string(),
        state(session.state).to_owned(),
        session.worker.clone(),
        session.turns.to_string(),
        session.waiting.to_string(),
        size::show(session.output_bytes),
        duration::show(since(session.created_at_ms)),
        session.workspace.clone(),
    ]
}

fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Starting => "starting",
        SessionState::Idle => "idle",
        SessionState::Busy => "busy",
        SessionState::AwaitingInput => "awaiting input",
        SessionState::Interrupting => "interrupting",
        SessionState::Restarting => "restarting",
        SessionState::Ended => "ended",
    }
}

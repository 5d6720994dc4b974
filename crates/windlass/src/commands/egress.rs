//! `windlass egress`: lists the network destinations that a session tried to reach, and the decisions.

use std::process::ExitCode;

use windlass_protocol::SessionId;
use windlass_protocol::api::EgressDecision;

use crate::commands::status::since;
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access, size};

/// Show the network connections that a session tried to make
///
/// Prints one line for each host, port and decision, the latest first. Of an ended session the counts and bytes are
/// not known.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session id, as listed by `windlass ps`
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let log = node_access::connect_or_start().await?.egress(&args.session).await?;
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&log)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = if log.from_journal { recorded_row } else { counted_row };
    let rows: Vec<_> = log.decisions.iter().map(row).collect();
    let lines =
        table(["HOST", "PORT", "DECISION", "COUNT", "SENT", "RECEIVED", "LAST", "REASON"], &rows);
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| log.decisions[at].allowed) {
            None => Tone::Strong,
            Some(true) => Tone::Good,
            Some(false) => Tone::Busy,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A decision of an ended session.
fn recorded_row(decision: &EgressDecision) -> [String; 8] {
    let [host, port, answer, _, _, _, last, reason] = counted_row(decision);
    let unknown = || "-".to_owned();
    [host, port, answer, unknown(), unknown(), unknown(), last, reason]
}

fn counted_row(decision: &EgressDecision) -> [String; 8] {
    [
        decision.host.clone(),
        decision.port.to_string(),
        if decision.allowed { "allowed" } else { "refused" }.to_owned(),
        decision.count.to_string(),
        size::show(decision.sent_bytes),
        size::show(decision.received_bytes),
        duration::show(since(decision.last_at_ms)),
        decision.reason.clone(),
    ]
}

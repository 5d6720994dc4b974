//! `windlass du`: shows the node's disk usage by kind. Never starts a node.

use std::process::ExitCode;
use std::time::Duration;

use windlass_client::Client;
use windlass_protocol::disk::DiskUse;

use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access, size};

/// Show the disk usage of the node
///
/// Counts allocated blocks, as du does. A file with several hard links counts once. A workspace directory
/// that a client chose is not counted. Exits with 3 if no node is running.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass du                disk usage by kind
  windlass du --json         the same for programs
  windlass prune --dry-run   show what could be removed")]
pub struct Args {
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let ask = async |client: Client| client.disk_use().await;
    node_access::show_answer(terminal, args.json, ask, |_| ExitCode::SUCCESS, show).await
}

fn show(found: &DiskUse, terminal: &mut Terminal) -> anyhow::Result<()> {
    for (at, line) in table(["KIND", "ON DISK", "FILES"], &rows(found)).iter().enumerate() {
        let tone = if at == 0 { Tone::Strong } else { Tone::Plain };
        terminal.say(&terminal.tone(tone, line))?;
    }
    if !found.complete {
        terminal.note("some directories could not be read; the real usage is higher")?;
    }
    let age = duration::show(Duration::from_secs(found.retain_age_s));
    terminal.say(&format!(
        "ended sessions are kept for {age}, as long as journals and their workspaces fit into {}",
        size::short(found.retain_bytes)
    ))?;
    Ok(())
}

fn rows(found: &DiskUse) -> Vec<[String; 3]> {
    let taken = found.kinds.iter().filter(|share| share.entries > 0);
    let row = |title: &str, bytes, entries: u64| {
        [title.to_owned(), size::show(bytes), entries.to_string()]
    };
    let mut rows: Vec<_> =
        taken.map(|share| row(share.kind.title(), share.bytes, share.entries)).collect();
    let entries = found.kinds.iter().map(|share| share.entries).sum();
    rows.push(row("all", found.bytes, entries));
    rows
}

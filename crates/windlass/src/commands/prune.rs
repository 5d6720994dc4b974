//! `windlass prune`: removes ended sessions and what no session needs. Never starts a node.

use std::process::ExitCode;
use std::time::Duration;

use windlass_protocol::disk::{PruneRequest, Pruned};

use crate::terminal::{Terminal, table};
use crate::{duration, exit, node_access, size};

/// Things that are named; all of them are in the JSON.
const SHOWN_MAX: usize = 50;

/// Remove ended sessions, and directories that no session needs
///
/// Of an ended session its journal goes, and its workspace if the node made it: its output and its files
/// can then no longer be read. No live session is touched, and no directory that a client named. Exits with
/// 3 when no node is running, and with 1 when something could not be removed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass prune --dry-run         what would go, and what that gives back
  windlass prune --older-than 1d   of ended sessions only those that ended more than a day ago
  windlass prune                   everything that no live session needs")]
pub struct Args {
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Keep sessions that ended less long ago
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    older_than: Option<Duration>,
    /// Show the answer as JSON; null when there is no node
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(client) = node_access::present_or_told(terminal, args.json).await? else {
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    let older_than_s = args.older_than.map(|age| age.as_secs());
    let pruned = client.prune(&PruneRequest { dry_run: args.dry_run, older_than_s }).await?;
    let code = if pruned.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&pruned)?)?;
        return Ok(code);
    }
    show(&pruned, terminal)?;
    Ok(code)
}

fn show(pruned: &Pruned, terminal: &mut Terminal) -> anyhow::Result<()> {
    let shown = pruned.removed.iter().take(SHOWN_MAX);
    let rows: Vec<_> = shown
        .map(|item| [item.kind.title().to_owned(), size::show(item.bytes), item.name.clone()])
        .collect();
    if !rows.is_empty() {
        for line in table(["KIND", "ON DISK", "WHAT"], &rows) {
            terminal.say(&line)?;
        }
    }
    let more = pruned.more + pruned.removed.len().saturating_sub(SHOWN_MAX) as u64;
    if more > 0 {
        terminal.say(&format!("and {more} more"))?;
    }
    let bytes = size::show(pruned.bytes);
    let exact = pruned.bytes;
    terminal.say(&match pruned.dry_run {
        true => format!("it would give back {bytes} ({exact} bytes); nothing was removed"),
        false => format!("gave back {bytes} ({exact} bytes)"),
    })?;
    if !pruned.complete {
        terminal.note("not all of it could be measured: it may be more")?;
    }
    for failed in &pruned.failed {
        terminal.note(&format!("cannot be removed: {failed}"))?;
    }
    Ok(())
}

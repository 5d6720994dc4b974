//! `windlass prune`: removes ended sessions, and directories that no session needs. Never starts a node.

use std::process::ExitCode;
use std::time::Duration;

use windlass_client::Client;
use windlass_protocol::disk::{PruneRequest, Pruned};

use crate::counted::counted;
use crate::terminal::{Terminal, table};
use crate::{duration, node_access, size};

/// Maximum number of removed items to print; the JSON has all of them.
const SHOWN_MAX: usize = 50;

/// Remove ended sessions, package environments without a name, and directories that no session needs
///
/// Deletes the journal of an ended session, and its workspace if the node created it. The output and the
/// files of that session can then no longer be read. Live sessions and directories that a client chose are
/// never touched, nor are package environments with a name or in use. Exits with 3 if no node is running, and
/// with 1 if something could not be removed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass prune --dry-run         show what would be removed and how much space that frees
  windlass prune --older-than 1d   keep sessions that ended less than a day ago
  windlass prune                   remove everything that no live session needs")]
pub struct Args {
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep sessions that ended, and package environments that were used, less than this long ago
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    older_than: Option<Duration>,
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let older_than_s = args.older_than.map(|age| age.as_secs());
    let wanted = PruneRequest { dry_run: args.dry_run, older_than_s };
    let ask = async |client: Client| client.prune(&wanted).await;
    node_access::show_answer(terminal, args.json, ask, code, show).await
}

fn code(pruned: &Pruned) -> ExitCode {
    if pruned.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    let exact = counted(pruned.bytes, "byte", "bytes");
    terminal.say(&match pruned.dry_run {
        true => format!("would free {bytes} ({exact}); nothing was removed"),
        false => format!("freed {bytes} ({exact})"),
    })?;
    if !pruned.complete {
        terminal.note("some items could not be measured; the real size may be larger")?;
    }
    for failed in &pruned.failed {
        terminal.note(&format!("could not remove {failed}"))?;
    }
    Ok(())
}

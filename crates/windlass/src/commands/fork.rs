//! `windlass fork`: forks an idle session into a twin with all its variables and a copy of its workspace.

use std::process::ExitCode;

use windlass_protocol::SessionId;
use windlass_protocol::api::{CopyScope, ForkSession};

use crate::node_access;
use crate::terminal::Terminal;

/// Fork an idle session into a twin with all its variables
///
/// The twin is a separate session: the two sessions do not see each other's later changes. The twin's
/// workspace is a copy at another path. The copy leaves out virtual environments, installed packages and
/// caches, and is deleted when the twin is closed. Threads, open sockets and similar resources stay with the
/// original. The command lists what was left out, and older processes that can still access the twin.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass fork SESSION                 fork; the node chooses the id of the twin
  windlass fork SESSION --id attempt-2  choose the id of the twin
  windlass fork SESSION --copy-all      also copy .venv, node_modules and caches
  windlass fork SESSION --json          print the whole reply of the node")]
pub struct Args {
    /// The session id, as listed by `windlass ps`
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// The id of the twin
    #[arg(long, value_name = "ID")]
    id: Option<SessionId>,
    /// Also copy virtual environments, installed packages and caches
    #[arg(long)]
    copy_all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::connect_or_start().await?;
    let copy = if args.copy_all { CopyScope::All } else { CopyScope::Needed };
    let wanted = ForkSession { id: args.id, owner: None, copy };
    let forked = client.fork_session(&args.session, &wanted).await?;
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&forked)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let twin = &forked.session;
    terminal.say(&format!("session {} is a twin of {}", twin.id, args.session))?;
    terminal.say(&format!("its workspace is {}", twin.workspace))?;
    for left in &forked.not_carried {
        terminal.say(&format!("it does not have the {} {}", left.what, left.name))?;
    }
    for left in &forked.left_out {
        let instead = if left.linked { "has a link to the original's" } else { "is without" };
        terminal.say(&format!("its workspace {instead} {}", left.path))?;
    }
    if forked.left_out_more > 0 {
        terminal.say(&format!("and is without {} more", forked.left_out_more))?;
    }
    for old in &forked.can_reach {
        terminal.say(&format!("the {} {} of the original can reach it", old.what, old.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

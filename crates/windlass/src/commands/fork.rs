//! `windlass fork`: makes a twin of an idle session, with all its variables and a copy of its workspace.

use std::process::ExitCode;

use windlass_protocol::SessionId;
use windlass_protocol::api::{CopyScope, ForkSession};

use crate::node_access;
use crate::terminal::Terminal;

/// Make a twin of an idle session, with all its variables
///
/// The twin is a session of its own: what either does from then on, the other does not see. Its
/// workspace is a copy, at another path, without virtual environments, installed packages and caches, which
/// are named. It goes when the twin is closed. Threads, open sockets and the like stay with the original,
/// and are named. So are processes from before the fork that the twin is not kept apart from.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass fork SESSION                 a twin, with a name that the node makes
  windlass fork SESSION --id attempt-2  with a name of yours
  windlass fork SESSION --copy-all      with its .venv, node_modules and caches
  windlass fork SESSION --json          all that the node says of it")]
pub struct Args {
    /// The session, as ps shows it
    #[arg(value_name = "SESSION")]
    session: SessionId,
    /// The twin's name
    #[arg(long, value_name = "ID")]
    id: Option<SessionId>,
    /// Copy virtual environments, installed packages and caches as well
    #[arg(long)]
    copy_all: bool,
    /// Show the answer as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::started().await?;
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

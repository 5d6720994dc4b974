//! `windlass policy`: what a session may touch, as it would be here or as it is in one that lives.
//! Neither starts a node.

mod explain;
mod show;

use std::process::ExitCode;

use clap::Subcommand;

use crate::terminal::Terminal;

/// Show or explain what a session may touch
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass policy explain                        in plain words, for a session here
  windlass policy explain --policy read-only --allow-host example.org
  windlass policy show --isolation landlock      each control, and what it amounts to
  windlass policy show --session SESSION         of a session that lives")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(show::Args),
    Explain(explain::Args),
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Show(args) => show::run(args, terminal),
        Command::Explain(args) => explain::run(&args, terminal),
    }
}

//! `windlass policy`: shows what a session may access, for a new session here or for a live session. Never
//! starts a node.

mod explain;
mod show;

use std::process::ExitCode;

use clap::Subcommand;

use crate::terminal::Terminal;

/// Show or explain what a session may access
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass policy explain                        explain the policy of a session started here
  windlass policy explain --policy read-only --allow-host example.org
  windlass policy show --isolation landlock      list each control and how it is enforced
  windlass policy show --session SESSION         show the policy of a live session")]
pub struct Args {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    Show(show::Args),
    Explain(explain::Args),
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match args.command {
        PolicyCommand::Show(args) => show::run(args, terminal),
        PolicyCommand::Explain(args) => explain::run(&args, terminal),
    }
}

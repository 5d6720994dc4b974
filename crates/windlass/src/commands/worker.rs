//! `windlass worker`: tools for people who write a worker.

mod check;

use std::process::ExitCode;

use clap::Subcommand;

use crate::terminal::Terminal;

/// Check a worker program against the worker protocol
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass worker check --language perl -- perl worker.pl
  windlass worker check --case interrupt-sleep --language perl -- perl worker.pl
  windlass worker check --snippets mine.toml --json -- ./my-worker --quiet")]
pub struct Args {
    #[command(subcommand)]
    command: WorkerCommand,
}

#[derive(Debug, Subcommand)]
enum WorkerCommand {
    Check(check::Args),
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match args.command {
        WorkerCommand::Check(args) => check::run(args, terminal),
    }
}

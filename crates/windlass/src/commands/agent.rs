//! `windlass agent`: runs agents (codex, claude, opencode, gemini, any that speaks ACP) in confined sessions.

mod list;
mod run;

use std::process::ExitCode;

use crate::terminal::Terminal;

/// Run an agent in a confined session
///
/// The agent works in the session's workspace. It is confined like any code, its events are in the journal, and
/// its conversation can be resumed. Its keys stay outside: see `windlass secret`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AgentCommand {
    Run(Box<run::Args>),
    List(list::Args),
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match args.command {
        AgentCommand::Run(args) => run::run(*args, terminal).await,
        AgentCommand::List(args) => list::run(&args, terminal),
    }
}

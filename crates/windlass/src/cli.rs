//! The command line as a whole: which commands there are and how one is run. What a command does
//! is in its own file under `commands`.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    attach, completions, doctor, down, du, egress, environments, fork, install, interrupt, kill,
    logs, man, mcp, node, policy, prune, ps, repl, run, servers, status, token, tools, uninstall,
    up,
};
use crate::terminal::Terminal;

const ABOUT: &str = "The execution plane for AI agents: persistent sessions of code, one node per \
                     machine";

const AFTER_HELP: &str = "\
Examples:
  echo '1 + 1' | windlass run -        run some code and show its result
  windlass run job.py --deadline 5m    run a file, at most five minutes
  windlass repl                        a session to type into
  windlass ps                          which sessions there are
  windlass logs -f SESSION             follow what a session prints
  windlass policy explain              what code in a new session may touch
  windlass doctor                      whether this machine can confine it
  windlass install                     put it into the agents on this machine

The node starts by itself when a command needs it. Its directories are WINDLASS_RUNTIME_DIR and
WINDLASS_STATE_DIR, by default windlass below XDG_RUNTIME_DIR and XDG_STATE_HOME. With WINDLASS_URL
(http://127.0.0.1:8040, say) a node is reached over TCP, with the token in WINDLASS_TOKEN.";

#[derive(Debug, Parser)]
#[command(name = "windlass", version, about = ABOUT, after_help = AFTER_HELP)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Args),
    Down(down::Args),
    Status(status::Args),
    Run(run::Args),
    Repl(repl::Args),
    Ps(ps::Args),
    Logs(logs::Args),
    Egress(egress::Args),
    Tools(tools::Args),
    Servers(servers::Args),
    Environments(environments::Args),
    Attach(attach::Args),
    Interrupt(interrupt::Args),
    Fork(fork::Args),
    Kill(kill::Args),
    Du(du::Args),
    Prune(prune::Args),
    Mcp(mcp::Args),
    Policy(policy::Args),
    Doctor(doctor::Args),
    Install(install::Args),
    Uninstall(uninstall::Args),
    Token(token::Args),
    Completions(completions::Args),
    Man(man::Args),
    #[command(hide = true)]
    Node(node::Args),
}

/// The whole command line, for completions and manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let mut terminal = Terminal::new();
    match dispatch(cli.command, &mut terminal) {
        Ok(code) => code,
        Err(error) => terminal.fail(&error),
    }
}

fn dispatch(command: Command, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    // These need no runtime, or one of their own.
    let command = match command {
        Command::Node(args) => return node::run(args),
        Command::Completions(args) => return completions::run(args, terminal),
        Command::Man(args) => return man::run(args, terminal),
        Command::Token(args) => return token::run(args, terminal),
        Command::Policy(args) => return policy::run(args, terminal),
        Command::Doctor(args) => return doctor::run(args, terminal),
        Command::Install(args) => return install::run(args, terminal),
        Command::Uninstall(args) => return uninstall::run(args, terminal),
        other => other,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Up(args) => up::run(args, terminal).await,
            Command::Down(args) => down::run(args, terminal).await,
            Command::Status(args) => status::run(args, terminal).await,
            Command::Run(args) => run::run(args, terminal).await,
            Command::Repl(args) => repl::run(args, terminal).await,
            Command::Ps(args) => ps::run(args, terminal).await,
            Command::Logs(args) => logs::run(args, terminal).await,
            Command::Egress(args) => egress::run(args, terminal).await,
            Command::Tools(args) => tools::run(args, terminal).await,
            Command::Servers(args) => servers::run(args, terminal).await,
            Command::Environments(args) => environments::run(args, terminal).await,
            Command::Attach(args) => attach::run(args, terminal).await,
            Command::Interrupt(args) => interrupt::run(args, terminal).await,
            Command::Fork(args) => fork::run(args, terminal).await,
            Command::Kill(args) => kill::run(args, terminal).await,
            Command::Du(args) => du::run(args, terminal).await,
            Command::Prune(args) => prune::run(args, terminal).await,
            Command::Mcp(args) => mcp::run(args, terminal).await,
            Command::Node(_)
            | Command::Token(_)
            | Command::Policy(_)
            | Command::Doctor(_)
            | Command::Install(_)
            | Command::Uninstall(_)
            | Command::Completions(_)
            | Command::Man(_) => unreachable!("ran before the runtime"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_visible_command_says_what_it_does() {
        for command in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
        }
    }
}

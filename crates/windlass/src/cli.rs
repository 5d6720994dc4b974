//! The command line: the list of commands and their dispatch. Each command is implemented in its file
//! under `commands`.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    agent, attach, audit, completions, config, console, doctor, down, du, egress, env,
    environments, fleet, fork, install, interrupt, kernels, kill, logs, man, mcp, node, policy,
    prune, ps, reference, repl, run, secret, servers, status, token, tools, top, uninstall, up,
    usage, worker, workers,
};
use crate::terminal::Terminal;

const ABOUT: &str = "The execution plane for AI agents: persistent code sessions, one node per \
                     machine";

const AFTER_HELP: &str = "\
Examples:
  echo '1 + 1' | windlass run -        run code from standard input and show its result
  windlass run --deadline 5m job.py    run a file for at most five minutes
  windlass repl                        open an interactive session
  windlass agent run codex 'fix it'    run an agent in a confined session
  windlass ps                          list the sessions
  windlass top                         watch the sessions on the whole screen
  windlass console                     see the sessions in the browser
  windlass logs -f SESSION             follow the output of a session
  windlass policy explain              explain what code in a new session may access
  windlass doctor                      check whether this machine can confine sessions
  windlass install                     list the agents on this machine to install Windlass in

A command that needs the node starts it. The node keeps its files in WINDLASS_RUNTIME_DIR and
WINDLASS_STATE_DIR; the defaults are $XDG_RUNTIME_DIR/windlass and $XDG_STATE_HOME/windlass.
To use a node over TCP, set WINDLASS_URL (for example http://127.0.0.1:8040 or
https://node.example:8040) and WINDLASS_TOKEN. WINDLASS_CA names a PEM file of the authorities
that may sign the node's certificate; the default is those that this machine trusts.";

#[derive(Debug, Parser)]
#[command(name = "windlass", version, about = ABOUT, after_help = AFTER_HELP)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Up(up::Args),
    Down(down::Args),
    Status(status::Args),
    Run(run::Args),
    Repl(repl::Args),
    Agent(agent::Args),
    Ps(ps::Args),
    Top(top::Args),
    Logs(logs::Args),
    Egress(egress::Args),
    Secret(secret::Args),
    Tools(tools::Args),
    Servers(servers::Args),
    Env(env::Args),
    Environments(environments::Args),
    Workers(workers::Args),
    Kernels(kernels::Args),
    Attach(attach::Args),
    Interrupt(interrupt::Args),
    Fleet(fleet::Args),
    Fork(fork::Args),
    Kill(kill::Args),
    Du(du::Args),
    Usage(usage::Args),
    Audit(audit::Args),
    Prune(prune::Args),
    Mcp(mcp::Args),
    Policy(policy::Args),
    Config(config::Args),
    Console(console::Args),
    Doctor(doctor::Args),
    Worker(worker::Args),
    Install(install::Args),
    Uninstall(uninstall::Args),
    Token(token::Args),
    Completions(completions::Args),
    Man(man::Args),
    #[command(hide = true)]
    Node(node::Args),
    #[command(hide = true)]
    Reference(reference::Args),
}

/// The clap definition of all commands, for shell completions and manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

pub fn run() -> ExitCode {
    let cli = Cli::parse();
    if let CliCommand::Run(args) = &cli.command
        && args.names_no_code()
    {
        missing_code().exit();
    }
    let mut terminal = Terminal::new();
    match dispatch(cli.command, &mut terminal) {
        Ok(code) => code,
        Err(error) => terminal.fail(&error),
    }
}

/// The error of a `windlass run` that names no code. The argument parser itself cannot say that there are three ways.
fn missing_code() -> clap::Error {
    let mut command = command();
    command.build();
    let run = command.find_subcommand_mut("run").expect("`run` is one of the commands");
    let message = "nothing to run: give FILE, - for standard input, or -c CODE";
    run.error(ErrorKind::MissingRequiredArgument, message)
}

fn dispatch(command: CliCommand, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    // These commands need no async runtime, or build their own.
    let command = match command {
        CliCommand::Node(args) => return node::run(args),
        CliCommand::Completions(args) => return completions::run(args, terminal),
        CliCommand::Man(args) => return man::run(args, terminal),
        CliCommand::Audit(args) => return audit::run(args, terminal),
        CliCommand::Token(args) => return token::run(args, terminal),
        CliCommand::Policy(args) => return policy::run(args, terminal),
        CliCommand::Config(args) => return config::run(args, terminal),
        CliCommand::Reference(args) => return reference::run(args, terminal),
        CliCommand::Doctor(args) => return doctor::run(args, terminal),
        CliCommand::Kernels(args) => return kernels::run(args, terminal),
        CliCommand::Worker(args) => return worker::run(args, terminal),
        CliCommand::Install(args) => return install::run(args, terminal),
        CliCommand::Uninstall(args) => return uninstall::run(args, terminal),
        CliCommand::Fleet(args) if args.is_dev() => return fleet::run_dev(args, terminal),
        other => other,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            CliCommand::Up(args) => up::run(args, terminal).await,
            CliCommand::Down(args) => down::run(args, terminal).await,
            CliCommand::Status(args) => status::run(args, terminal).await,
            CliCommand::Run(args) => run::run(args, terminal).await,
            CliCommand::Repl(args) => repl::run(args, terminal).await,
            CliCommand::Agent(args) => agent::run(args, terminal).await,
            CliCommand::Ps(args) => ps::run(args, terminal).await,
            CliCommand::Top(args) => top::run(args, terminal).await,
            CliCommand::Logs(args) => logs::run(args, terminal).await,
            CliCommand::Egress(args) => egress::run(args, terminal).await,
            CliCommand::Secret(args) => secret::run(args, terminal).await,
            CliCommand::Tools(args) => tools::run(args, terminal).await,
            CliCommand::Servers(args) => servers::run(args, terminal).await,
            CliCommand::Env(args) => env::run(args, terminal).await,
            CliCommand::Environments(args) => environments::run(args, terminal).await,
            CliCommand::Workers(args) => workers::run(args, terminal).await,
            CliCommand::Attach(args) => attach::run(args, terminal).await,
            CliCommand::Interrupt(args) => interrupt::run(args, terminal).await,
            CliCommand::Fleet(args) => fleet::run(args, terminal).await,
            CliCommand::Fork(args) => fork::run(args, terminal).await,
            CliCommand::Kill(args) => kill::run(args, terminal).await,
            CliCommand::Du(args) => du::run(args, terminal).await,
            CliCommand::Usage(args) => usage::run(args, terminal).await,
            CliCommand::Console(args) => console::run(args, terminal).await,
            CliCommand::Prune(args) => prune::run(args, terminal).await,
            CliCommand::Mcp(args) => mcp::run(args, terminal).await,
            CliCommand::Node(_)
            | CliCommand::Audit(_)
            | CliCommand::Kernels(_)
            | CliCommand::Token(_)
            | CliCommand::Policy(_)
            | CliCommand::Config(_)
            | CliCommand::Reference(_)
            | CliCommand::Doctor(_)
            | CliCommand::Worker(_)
            | CliCommand::Install(_)
            | CliCommand::Uninstall(_)
            | CliCommand::Completions(_)
            | CliCommand::Man(_) => unreachable!("dispatched before the runtime was built"),
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
    fn a_run_without_code_names_the_ways_to_give_it() {
        let error = missing_code();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("give FILE, - for standard input, or -c CODE"), "{text}");
        assert!(text.contains("windlass run [OPTIONS] (FILE | - | -c CODE) [ARGS]..."), "{text}");
    }

    #[test]
    fn every_visible_command_says_what_it_does() {
        for command in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
        }
    }

    #[test]
    fn help_and_a_command_print_what_the_command_prints_with_the_option_help() {
        let printed = |args: &[&str]| {
            let args = ["windlass"].iter().chain(args);
            command().try_get_matches_from(args).unwrap_err().to_string()
        };
        for sub in command().get_subcommands() {
            let name = sub.get_name();
            assert_eq!(printed(&["help", name]), printed(&[name, "--help"]), "{name}");
            for below in sub.get_subcommands() {
                let path = [name, below.get_name()];
                let by_option = printed(&[path[0], path[1], "--help"]);
                assert_eq!(printed(&["help", path[0], path[1]]), by_option, "{path:?}");
            }
        }
    }
}

//! `windlass completions`: prints the completion script for a shell.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::cli;
use crate::terminal::Terminal;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass completions bash > ~/.local/share/bash-completion/completions/windlass
  windlass completions zsh > ~/.zfunc/_windlass
  windlass completions fish > ~/.config/fish/completions/windlass.fish")]
pub struct Args {
    /// The shell to print the script for
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "windlass", &mut script);
    terminal.out(&script)?;
    Ok(ExitCode::SUCCESS)
}

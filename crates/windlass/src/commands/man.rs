//! `windlass man`: generates the manual pages from the clap definition.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::cli;
use crate::terminal::Terminal;

/// Print the manual page, or write all of them into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass man | man -l -
  windlass man ~/.local/share/man/man1")]
pub struct Args {
    /// The directory to write one page per command into
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(directory) = args.directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(cli::command()).render(&mut page)?;
        terminal.out(&page)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(&directory)
        .and_then(|()| clap_mangen::generate_to(cli::command(), &directory))
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

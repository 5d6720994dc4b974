//! `windlass uninstall`: takes our MCP server out of the configuration of agent clients, and
//! nothing else.

use std::process::ExitCode;

use super::install::report::{self, Mode, Report};
use crate::agents::client::{Client, Scope};
use crate::agents::places::Places;
use crate::agents::plan;
use crate::agents::store::Backup;
use crate::terminal::Terminal;

/// Take Windlass out of agents again
///
/// Removes the entry windlass from the client's configuration. If nothing else has changed there
/// since it was installed, the file is afterwards what it was before, to the byte; otherwise all
/// that is not ours stays. Sessions, and the program itself, are not touched.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass uninstall codex                  out of the configuration of Codex
  windlass uninstall --all --dry-run        what would be removed, as a diff
  windlass uninstall cursor --project       out of the project's file, in this directory")]
pub struct Args {
    /// The clients to take it out of
    #[arg(value_name = "CLIENT", value_enum, required_unless_present = "all")]
    clients: Vec<Client>,
    /// Out of every client that has it
    #[arg(long, conflicts_with = "clients")]
    all: bool,
    /// Out of the project's configuration, in the current directory, instead of yours
    #[arg(long)]
    project: bool,
    /// Show what would change as a unified diff, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let places = Places::from_env()?;
    let scope = if args.project { Scope::Project } else { Scope::User };
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Write };
    let clients = match args.all {
        true => Client::all().collect(),
        false => report::each_once(&args.clients),
    };
    let mut reports = Vec::new();
    for client in clients {
        match plan::uninstall(&places, client, scope) {
            Err(error) => reports.push(Report { client, done: Err(error) }),
            Ok(plans) if plans.is_empty() && !args.all => {
                let plan = plan::absent(&places, client, scope);
                reports.push(Report { client, done: Ok((plan, Backup::None)) });
            }
            Ok(plans) => reports
                .extend(plans.into_iter().map(|plan| Report { client, done: mode.apply(plan) })),
        }
    }
    if reports.is_empty() && !args.json {
        terminal.say("it is not installed in any client")?;
        return Ok(ExitCode::SUCCESS);
    }
    report::show(reports, mode, args.json, terminal)
}

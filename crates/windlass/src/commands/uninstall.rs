//! `windlass uninstall`: removes the Windlass MCP server from the configuration of agent clients, and
//! nothing else.

use std::process::ExitCode;

use super::install::report::{self, InstallReport, Mode};
use crate::agents::client::{AgentClient, ConfigScope};
use crate::agents::config_paths::ConfigPaths;
use crate::agents::plan;
use crate::agents::store::Backup;
use crate::terminal::Terminal;

/// Remove Windlass from agents
///
/// Removes the entry windlass from the client's configuration. If nothing else changed in the file since the
/// installation, the file becomes byte for byte what it was before. Otherwise only the entry is removed.
/// Sessions and the windlass program are not touched.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass uninstall codex                  remove the entry from the configuration of Codex
  windlass uninstall --all --dry-run        show what would be removed, as a diff
  windlass uninstall cursor --project       remove it from the project's file in this directory")]
pub struct Args {
    /// The clients to remove Windlass from
    #[arg(value_name = "CLIENT", value_enum, required_unless_present = "all")]
    clients: Vec<AgentClient>,
    /// Remove it from every client that has it
    #[arg(long, conflicts_with = "clients")]
    all: bool,
    /// Change the project configuration in the current directory instead of your user configuration
    #[arg(long)]
    project: bool,
    /// Show the changes as a unified diff and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let paths = ConfigPaths::from_env()?;
    let scope = if args.project { ConfigScope::Project } else { ConfigScope::User };
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Write };
    let clients = match args.all {
        true => AgentClient::all().collect(),
        false => report::each_once(&args.clients),
    };
    let mut reports = Vec::new();
    for client in clients {
        match plan::uninstall(&paths, client, scope) {
            Err(error) => reports.push(InstallReport { client, done: Err(error) }),
            Ok(plans) if plans.is_empty() && !args.all => {
                let plan = plan::absent(&paths, client, scope);
                reports.push(InstallReport { client, done: Ok((plan, Backup::None)) });
            }
            Ok(plans) => reports.extend(
                plans.into_iter().map(|plan| InstallReport { client, done: mode.apply(plan) }),
            ),
        }
    }
    if reports.is_empty() && !args.json {
        terminal.say("Windlass is not installed in any client")?;
        return Ok(ExitCode::SUCCESS);
    }
    report::show(reports, mode, args.json, terminal)
}

//! `windlass install`: adds the Windlass MCP server to the configuration of agent clients, and reports each
//! change. Without arguments it lists the clients on this machine and the change for each.

pub mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};

use self::report::{InstallReport, Mode};
use crate::agents::client::{AgentClient, ConfigScope};
use crate::agents::config_paths::{ConfigPaths, is_executable};
use crate::agents::plan::{self, ConfigAction, ConfigPlanError};
use crate::agents::{launch, store};
use crate::terminal::{Terminal, table};

/// Install Windlass in agents: Claude Code, Codex, Cursor and others
///
/// Adds an MCP server named windlass to the client's configuration. The server runs `windlass mcp`. Comments,
/// order and other servers stay unchanged. An existing entry is updated and keeps the keys that you added.
/// The previous file is kept beside it with the suffix .windlass-backup. Without CLIENT, lists the clients
/// found on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass install                          list the clients found and the change for each
  windlass install codex --dry-run          show the change as a diff and write nothing
  windlass install claude-code codex        install in these two clients
  windlass install --all                    install in every client found
  windlass install cursor --project --command windlass
                                            install in the project's file, to share with others
  windlass uninstall codex                  remove the entry again")]
pub struct Args {
    /// The clients to install Windlass in
    #[arg(value_name = "CLIENT", value_enum)]
    clients: Vec<AgentClient>,
    /// Install in every client found on this machine
    #[arg(long, conflicts_with = "clients")]
    all: bool,
    /// Change the project configuration in the current directory instead of your user configuration
    #[arg(long)]
    project: bool,
    /// The program that the client runs instead of this one; the client looks up a bare name in its PATH
    #[arg(long, value_name = "PATH")]
    command: Option<PathBuf>,
    /// Show the changes as a unified diff and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let paths = ConfigPaths::from_env()?;
    let command = launch::command(args.command.as_deref())?;
    let scope = if args.project { ConfigScope::Project } else { ConfigScope::User };
    if args.clients.is_empty() && !args.all {
        return overview(&paths, scope, &command, args.json, terminal);
    }
    let clients: Vec<AgentClient> = match args.all {
        true => AgentClient::all().filter(|client| paths.trace(*client).is_some()).collect(),
        false => report::each_once(&args.clients),
    };
    if clients.is_empty() {
        bail!("no client was found on this machine; name one: windlass install {}", names());
    }
    if Path::new(&command).is_absolute() && !is_executable(Path::new(&command)) {
        terminal.note(&format!("warning: {command} is not an executable file on this machine"))?;
    }
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Write };
    let reports = clients.into_iter().map(|client| {
        let done = plan::install(&paths, client, scope, &command).and_then(|plan| mode.apply(plan));
        InstallReport { client, done }
    });
    report::show(reports.collect(), mode, args.json, terminal)
}

fn names() -> String {
    AgentClient::all().map(|client| client.facts().name).collect::<Vec<_>>().join("|")
}

/// Lists the clients on this machine, and what an installation would change for each.
fn overview(
    paths: &ConfigPaths,
    scope: ConfigScope,
    command: &str,
    as_json: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for client in AgentClient::all() {
        let plan = plan::install(paths, client, scope, command);
        found.push((client, paths.trace(client), plan));
    }
    if as_json {
        let clients: Vec<Value> = found
            .iter()
            .map(|(client, trace, plan)| {
                json!({
                    "client": client.facts().name,
                    "found": trace,
                    "file": plan.as_ref().ok().map(|plan| &plan.file),
                    "would": plan.as_ref().ok().map(|plan| plan.action),
                    "error": plan.as_ref().err().map(report::error_value),
                })
            })
            .collect();
        terminal.say(&serde_json::to_string_pretty(&json!({ "clients": clients }))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (here, missing): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, trace, _)| trace.is_some());
    let rows: Vec<[String; 3]> = here
        .iter()
        .map(|(client, _, plan)| {
            let file = plan.as_ref().map(|plan| plan.file.display().to_string());
            [client.facts().name.to_owned(), intent(plan), file.unwrap_or_default()]
        })
        .collect();
    if rows.is_empty() {
        terminal.say("no client was found on this machine")?;
    } else {
        for line in table(["CLIENT", "INSTALL WOULD", "FILE"], &rows) {
            terminal.say(&line)?;
        }
    }
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(|(client, ..)| client.facts().name).collect();
        terminal.say(&format!("not found: {}", missing.join(", ")))?;
    }
    terminal.note(
        "to install, run: windlass install CLIENT... (or --all); --dry-run only shows the change",
    )?;
    Ok(ExitCode::SUCCESS)
}

fn intent(plan: &Result<plan::ConfigPlan, ConfigPlanError>) -> String {
    match plan {
        Ok(plan) => match plan.action {
            ConfigAction::Created => "create the file".to_owned(),
            ConfigAction::Unchanged => "change nothing: already installed".to_owned(),
            ConfigAction::Updated => "update the entry".to_owned(),
            _ if store::backup_path(&plan.file).exists() => "add the entry".to_owned(),
            _ => "add the entry and keep a backup".to_owned(),
        },
        Err(error) => format!("fail: {error}"),
    }
}

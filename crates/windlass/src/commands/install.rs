//! `windlass install`: puts our MCP server into the configuration of agent clients, and says what
//! it did. Without a client it says which are here, and what it would do.

pub mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};

use self::report::{Mode, Report};
use crate::agents::client::{Client, Scope};
use crate::agents::places::{Places, is_executable};
use crate::agents::plan::{self, Action, PlanError};
use crate::agents::{launch, store};
use crate::terminal::{Terminal, table};

/// Put Windlass into agents: Claude Code, Codex, Cursor and others
///
/// Writes an MCP server named windlass, which runs this program with the argument mcp, into the
/// client's configuration. Comments, order and other servers stay as they are; an entry that is
/// there is updated and keeps the keys that you added. What the file was before is kept beside it,
/// with the suffix .windlass-backup. Without a client, lists those found on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass install                          which clients are here, and what would be done
  windlass install codex --dry-run          show the change as a diff, and write nothing
  windlass install claude-code codex        into the configuration of these two
  windlass install --all                    into that of every client found
  windlass install cursor --project --command windlass
                                            into a file to share with the project's people
  windlass uninstall codex                  take it out again")]
pub struct Args {
    /// The clients to install it in
    #[arg(value_name = "CLIENT", value_enum)]
    clients: Vec<Client>,
    /// In every client found on this machine
    #[arg(long, conflicts_with = "clients")]
    all: bool,
    /// In the project's configuration, in the current directory, instead of yours
    #[arg(long)]
    project: bool,
    /// What the client is to run instead of this program; a bare name is looked up in its PATH
    #[arg(long, value_name = "PATH")]
    command: Option<PathBuf>,
    /// Show what would change as a unified diff, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let places = Places::from_env()?;
    let command = launch::command(args.command.as_deref())?;
    let scope = if args.project { Scope::Project } else { Scope::User };
    if args.clients.is_empty() && !args.all {
        return overview(&places, scope, &command, args.json, terminal);
    }
    let clients: Vec<Client> = match args.all {
        true => Client::all().filter(|client| places.trace(*client).is_some()).collect(),
        false => report::each_once(&args.clients),
    };
    if clients.is_empty() {
        bail!("no client was found here; name one: windlass install {}", names());
    }
    if Path::new(&command).is_absolute() && !is_executable(Path::new(&command)) {
        terminal.note(&format!("there is no program {command} on this machine"))?;
    }
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Write };
    let reports = clients.into_iter().map(|client| {
        let done =
            plan::install(&places, client, scope, &command).and_then(|plan| mode.apply(plan));
        Report { client, done }
    });
    report::show(reports.collect(), mode, args.json, terminal)
}

fn names() -> String {
    Client::all().map(|client| client.facts().name).collect::<Vec<_>>().join("|")
}

/// Which clients are here, and what installing would do in each.
fn overview(
    places: &Places,
    scope: Scope,
    command: &str,
    as_json: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for client in Client::all() {
        let plan = plan::install(places, client, scope, command);
        found.push((client, places.trace(client), plan));
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
    terminal
        .note("windlass install CLIENT... or --all does it; with --dry-run it shows the change")?;
    Ok(ExitCode::SUCCESS)
}

fn intent(plan: &Result<plan::Plan, PlanError>) -> String {
    match plan {
        Ok(plan) => match plan.action {
            Action::Created => "make the file".to_owned(),
            Action::Unchanged => "change nothing: it is installed".to_owned(),
            Action::Updated => "update the entry".to_owned(),
            _ if store::backup_path(&plan.file).exists() => "add the entry".to_owned(),
            _ => "add the entry, and keep a backup".to_owned(),
        },
        Err(error) => format!("fail: {error}"),
    }
}

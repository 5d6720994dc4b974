//! Reports what `install` and `uninstall` did or would do, as text and as JSON.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::agents::client::{ARGUMENT, AgentClient, ConfigScope, ENTRY, is_disabled};
use crate::agents::diff;
use crate::agents::plan::{self, ConfigAction, ConfigPlan, ConfigPlanError};
use crate::agents::store::{self, Backup};
use crate::terminal::{Terminal, Tone};

/// Whether files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Write,
    DryRun,
}

impl Mode {
    pub fn apply(self, plan: ConfigPlan) -> Result<(ConfigPlan, Backup), ConfigPlanError> {
        let backup = match self {
            Self::Write => plan::carry_out(&plan)?,
            Self::DryRun => Backup::None,
        };
        Ok((plan, backup))
    }
}

/// The result for one file of one client.
#[derive(Debug)]
pub struct InstallReport {
    pub client: AgentClient,
    pub done: Result<(ConfigPlan, Backup), ConfigPlanError>,
}

/// The given clients without repetitions.
pub fn each_once(clients: &[AgentClient]) -> Vec<AgentClient> {
    let mut once: Vec<AgentClient> = Vec::new();
    for client in clients {
        if !once.contains(client) {
            once.push(*client);
        }
    }
    once
}

pub fn show(
    reports: Vec<InstallReport>,
    mode: Mode,
    as_json: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let failed = reports.iter().any(|report| report.done.is_err());
    if as_json {
        let clients: Vec<Value> = reports.iter().map(|report| value(report, mode)).collect();
        let whole = json!({ "dry_run": mode == Mode::DryRun, "clients": clients });
        terminal.say(&serde_json::to_string_pretty(&whole)?)?;
    } else {
        for report in &reports {
            match (&report.done, mode) {
                (Err(error), _) => {
                    let message = format!("{}: {error}", report.client.facts().title);
                    terminal.complain(&message, error.code(), &error.remedy())?;
                }
                (Ok((plan, _)), Mode::DryRun) => preview(plan, terminal)?,
                (Ok((plan, backup)), Mode::Write) => page(plan, *backup, terminal)?,
            }
        }
        if mode == Mode::DryRun {
            terminal.note("nothing was written")?;
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints only the diff on standard output, so that `patch` can read it.
fn preview(plan: &ConfigPlan, terminal: &mut Terminal) -> anyhow::Result<()> {
    match plan.action {
        ConfigAction::Unchanged | ConfigAction::Absent => terminal.note(&headline(plan))?,
        _ => terminal.out(diff_of(plan).as_bytes())?,
    }
    Ok(())
}

fn page(plan: &ConfigPlan, backup: Backup, terminal: &mut Terminal) -> anyhow::Result<()> {
    let facts = plan.client.facts();
    terminal.say(&terminal.tone(Tone::Strong, &headline(plan)))?;
    let mut lines: Vec<(&str, String)> = Vec::new();
    let copy = store::backup_path(&plan.file).display().to_string();
    match backup {
        Backup::None => {}
        Backup::Made => lines.push(("backup", copy)),
        Backup::Kept => lines.push(("backup", format!("{copy}, from an earlier change"))),
        Backup::Removed => {
            lines.push(("backup", "removed: the file has its original content again".to_owned()));
        }
    }
    match plan.action {
        ConfigAction::Created
        | ConfigAction::Added
        | ConfigAction::Updated
        | ConfigAction::Unchanged => {
            lines.insert(0, ("runs", runs(&plan.entry)));
            if is_disabled(&plan.entry) {
                lines.push((
                    "note",
                    "the entry is disabled in this client and stays disabled".to_owned(),
                ));
            }
            lines.push(("check", facts.check.to_owned()));
            if plan.action != ConfigAction::Unchanged {
                lines.push(("then", facts.then.to_owned()));
            }
            if plan.scope == ConfigScope::Project && !facts.project.is_empty() {
                lines.push(("note", facts.project.to_owned()));
            }
        }
        ConfigAction::Removed | ConfigAction::Restored | ConfigAction::Deleted => {
            lines.push(("then", "agents that are running use Windlass until they exit".to_owned()));
        }
        ConfigAction::Absent => {}
    }
    for (name, value) in lines {
        terminal.say(&format!("  {name:8} {value}"))?;
    }
    Ok(())
}

fn headline(plan: &ConfigPlan) -> String {
    let title = plan.client.facts().title;
    let file = plan.file.display();
    match plan.action {
        ConfigAction::Created => format!("{title}: created {file} with the server {ENTRY}"),
        ConfigAction::Added => format!("{title}: added the server {ENTRY} to {file}"),
        ConfigAction::Updated => format!("{title}: updated the server {ENTRY} in {file}"),
        ConfigAction::Unchanged => format!("{title}: already installed in {file}"),
        ConfigAction::Removed => format!("{title}: removed the server {ENTRY} from {file}"),
        ConfigAction::Restored => {
            format!("{title}: removed the server {ENTRY} and restored the original {file}")
        }
        ConfigAction::Deleted => format!("{title}: removed {file}, which contained only {ENTRY}"),
        ConfigAction::Absent => format!("{title}: not installed in {file}"),
    }
}

/// The command line of the entry.
fn runs(entry: &Value) -> String {
    let mut words: Vec<&str> = Vec::new();
    for key in ["command", "args"] {
        match entry.get(key) {
            Some(Value::String(word)) => words.push(word),
            Some(Value::Array(more)) => words.extend(more.iter().filter_map(Value::as_str)),
            _ => {}
        }
    }
    debug_assert!(words.contains(&ARGUMENT), "every Windlass entry has this argument");
    words.join(" ")
}

fn diff_of(plan: &ConfigPlan) -> String {
    diff::unified(&plan.file, plan.before.as_deref(), plan.after.as_deref())
}

fn value(report: &InstallReport, mode: Mode) -> Value {
    let name = report.client.facts().name;
    match &report.done {
        Err(error) => json!({ "client": name, "error": error_value(error) }),
        Ok((plan, backup)) => {
            let mut value = json!({
                "client": name,
                "scope": plan.scope,
                "file": plan.file,
                "action": plan.action,
                "entry": plan.entry,
            });
            if mode == Mode::DryRun {
                value["diff"] = diff_of(plan).into();
            } else {
                let copy = store::backup_path(&plan.file);
                value["backup"] = json!({ "state": backup, "file": copy.exists().then_some(copy) });
            }
            value["check"] = plan.client.facts().check.into();
            value
        }
    }
}

pub fn error_value(error: &ConfigPlanError) -> Value {
    json!({ "code": error.code(), "message": error.to_string(), "remedy": error.remedy() })
}

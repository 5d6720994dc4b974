//! What `install` and `uninstall` did or would do, for people and for programs.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::agents::client::{ARGUMENT, Client, ENTRY, Scope, is_disabled};
use crate::agents::diff;
use crate::agents::plan::{self, Action, Plan, PlanError};
use crate::agents::store::{self, Backup};
use crate::terminal::{Terminal, Tone};

/// Whether files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Write,
    DryRun,
}

impl Mode {
    pub fn apply(self, plan: Plan) -> Result<(Plan, Backup), PlanError> {
        let backup = match self {
            Self::Write => plan::carry_out(&plan)?,
            Self::DryRun => Backup::None,
        };
        Ok((plan, backup))
    }
}

/// How it went with one file of one client.
#[derive(Debug)]
pub struct Report {
    pub client: Client,
    pub done: Result<(Plan, Backup), PlanError>,
}

/// The clients as named, but each only once.
pub fn each_once(clients: &[Client]) -> Vec<Client> {
    let mut once: Vec<Client> = Vec::new();
    for client in clients {
        if !once.contains(client) {
            once.push(*client);
        }
    }
    once
}

pub fn show(
    reports: Vec<Report>,
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

/// The diff alone on standard output, so that `patch` can read it.
fn preview(plan: &Plan, terminal: &mut Terminal) -> anyhow::Result<()> {
    match plan.action {
        Action::Unchanged | Action::Absent => terminal.note(&headline(plan))?,
        _ => terminal.out(diff_of(plan).as_bytes())?,
    }
    Ok(())
}

fn page(plan: &Plan, backup: Backup, terminal: &mut Terminal) -> anyhow::Result<()> {
    let facts = plan.client.facts();
    terminal.say(&terminal.tone(Tone::Strong, &headline(plan)))?;
    let mut lines: Vec<(&str, String)> = Vec::new();
    let copy = store::backup_path(&plan.file).display().to_string();
    match backup {
        Backup::None => {}
        Backup::Made => lines.push(("backup", copy)),
        Backup::Kept => lines.push(("backup", format!("{copy}, an earlier one, kept as it is"))),
        Backup::Removed => lines.push(("backup", "removed: the file is what it was".to_owned())),
    }
    match plan.action {
        Action::Created | Action::Added | Action::Updated | Action::Unchanged => {
            lines.insert(0, ("runs", runs(&plan.entry)));
            if is_disabled(&plan.entry) {
                lines.push(("note", "the entry is switched off there, and was left so".to_owned()));
            }
            lines.push(("check", facts.check.to_owned()));
            if plan.action != Action::Unchanged {
                lines.push(("then", facts.then.to_owned()));
            }
            if plan.scope == Scope::Project && !facts.project.is_empty() {
                lines.push(("note", facts.project.to_owned()));
            }
        }
        Action::Removed | Action::Restored | Action::Deleted => {
            lines.push(("then", "running sessions have it until they end".to_owned()));
        }
        Action::Absent => {}
    }
    for (name, value) in lines {
        terminal.say(&format!("  {name:8} {value}"))?;
    }
    Ok(())
}

fn headline(plan: &Plan) -> String {
    let title = plan.client.facts().title;
    let file = plan.file.display();
    match plan.action {
        Action::Created => format!("{title}: made {file} with the server {ENTRY}"),
        Action::Added => format!("{title}: added the server {ENTRY} to {file}"),
        Action::Updated => format!("{title}: updated the server {ENTRY} in {file}"),
        Action::Unchanged => format!("{title}: already installed in {file}"),
        Action::Removed => format!("{title}: removed the server {ENTRY} from {file}"),
        Action::Restored => {
            format!("{title}: removed the server {ENTRY} from {file}, which is as it was before")
        }
        Action::Deleted => format!("{title}: removed {file}, which held nothing but {ENTRY}"),
        Action::Absent => format!("{title}: not installed in {file}"),
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
    debug_assert!(words.contains(&ARGUMENT), "every entry of ours has it");
    words.join(" ")
}

fn diff_of(plan: &Plan) -> String {
    diff::unified(&plan.file, plan.before.as_deref(), plan.after.as_deref())
}

fn value(report: &Report, mode: Mode) -> Value {
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

pub fn error_value(error: &PlanError) -> Value {
    json!({ "code": error.code(), "message": error.to_string(), "remedy": error.remedy() })
}

//! `windlass config`: shows the settings of a node and where each comes from, and checks `config.toml`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use crate::config_file::{self, ConfigProblem, FleetSetting};
use crate::fleet_table::FleetTable;
use crate::settings::{self, Effective};
use crate::terminal::{Terminal, Tone, table};

/// Show the settings of the node, or check the configuration file
///
/// The node reads ~/.config/windlass/config.toml when it starts, or the file that WINDLASS_CONFIG names. The page
/// docs/reference/configuration.md lists all keys.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Show each setting that a node started now would have, and where its value comes from
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check the configuration file; exits with 1 if the file has an error
    Check {
        /// Another file than the one that a node would read
        file: Option<PathBuf>,
    },
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Show { json } => show(json, terminal),
        ConfigCommand::Check { file } => check(file, terminal),
    }
}

fn show(json: bool, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let file = config_file::read();
    let values = settings::resolve(
        |_| None,
        |name| std::env::var_os(name),
        |key| file.node.get(key).cloned(),
    );
    let error = file.workers.error;
    let (fleet, fleet_error) = match file.fleet {
        FleetSetting::Absent => (None, None),
        FleetSetting::Set(table) => (Some(table), None),
        FleetSetting::Invalid(why) => (None, Some(why)),
    };
    let code = if error.is_some() || fleet_error.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    };
    let workers: Vec<&String> = file.workers.entries.keys().collect();
    if json {
        let value = |one: &Effective| {
            let source = one.source.to_string();
            json!({"key": one.setting.key, "value": one.value, "source": source})
        };
        let shown = json!({
            "file": config_file::path(),
            "error": error,
            "node": values.iter().map(value).collect::<Vec<_>>(),
            "start_figures": file.workers.start_figures,
            "telemetry": file.telemetry.endpoint,
            "workers": workers,
            "fleet": fleet.as_ref().map(|table| fleet_json(table)),
            "fleet_error": fleet_error,
        });
        terminal.say(&serde_json::to_string_pretty(&shown)?)?;
        return Ok(code);
    }
    if let Some(error) = &error {
        terminal.note(error)?;
    }
    if let Some(why) = &fleet_error {
        terminal.note(&format!("a node would not start: [fleet] cannot be used: {why}"))?;
    }
    let rows: Vec<[String; 3]> = values.iter().map(row).collect();
    for (at, line) in table(["KEY", "VALUE", "FROM"], &rows).iter().enumerate() {
        let tone = if at == 0 { Tone::Strong } else { Tone::Plain };
        terminal.say(&terminal.tone(tone, line))?;
    }
    let exists = config_file::text().is_ok_and(|text| text.is_some());
    let absent = if exists { "" } else { " (there is no such file)" };
    terminal.note(&format!("file: {}{absent}", config_file::path().display()))?;
    for worker in workers {
        terminal.note(&format!("[workers.{worker}] is set; `windlass workers` shows it"))?;
    }
    if let Some(endpoint) = &file.telemetry.endpoint {
        terminal.note(&format!("[telemetry] is set: spans go to {endpoint}"))?;
    }
    if let Some(table) = fleet {
        let node = &table.config.node;
        terminal.note(&format!(
            "[fleet] is set, for the node {node}; `windlass fleet show` shows it"
        ))?;
    }
    Ok(code)
}

/// The table `[fleet]` without passwords.
pub fn fleet_json(table: &FleetTable) -> serde_json::Value {
    let config = &table.config;
    json!({
        "node": config.node,
        "servers": table.shown_servers(),
        "store_ca": config.store_ca.as_ref().map(|path| path.display().to_string()),
        "replicas": config.replicas,
        "listen": config.listen.to_string(),
        "address": config.address,
        "lease_ms": config.timing.ttl_ms,
        "lost_after_ms": config.timing.lost_after_ms,
    })
}

fn row(one: &Effective) -> [String; 3] {
    let value = if one.value.is_empty() { "-" } else { &one.value };
    [one.setting.key.to_owned(), value.to_owned(), one.source.to_string()]
}

fn check(file: Option<PathBuf>, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let (path, text) = match file {
        Some(path) => {
            let text = std::fs::read_to_string(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            (path, Some(text))
        }
        None => {
            let path = config_file::path();
            let text = config_file::text();
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            (path, text)
        }
    };
    let Some(text) = text else {
        terminal.say(&format!("there is no {}: the defaults apply", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let problems = config_file::check(&text);
    for ConfigProblem { line, what, remedy } in &problems {
        terminal.complain(&format!("{}:{line}: {what}", path.display()), "", remedy)?;
    }
    if problems.is_empty() {
        terminal.say(&format!("{} has no error", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

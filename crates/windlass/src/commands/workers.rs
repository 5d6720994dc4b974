//! `windlass workers`: lists the kinds of worker of the node.

use std::process::ExitCode;

use windlass_protocol::api::{WorkerInfo, WorkerSource};

use crate::node_access;
use crate::terminal::{Terminal, Tone, table};

/// List the kinds of worker that sessions can use
///
/// Built-in kinds need their interpreter on PATH. Further kinds, and settings of the built-in ones, are in the
/// `[workers.NAME]` tables of ~/.config/windlass/config.toml, or of the file that WINDLASS_CONFIG names. The
/// page docs/write-a-worker.md shows how to write a worker. Exits with 1 if the file is invalid.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::connect_or_start().await?;
    let list = client.workers().await?;
    let code = if list.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(code);
    }
    if let Some(error) = &list.error {
        terminal.note(error)?;
    }
    let rows: Vec<_> = list.workers.iter().map(row).collect();
    let lines = table(["WORKER", "LANGUAGE", "FILES", "SOURCE", "INTERPRETER"], &rows);
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| &list.workers[at]) {
            None => Tone::Strong,
            Some(worker) if worker.missing.is_none() => Tone::Good,
            Some(_) => Tone::Busy,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    for worker in &list.workers {
        if let Some(missing) = &worker.missing {
            terminal.note(&format!("{}: {missing}", worker.name))?;
        }
    }
    Ok(code)
}

fn row(worker: &WorkerInfo) -> [String; 5] {
    let source = match worker.source {
        WorkerSource::BuiltIn => "built in",
        WorkerSource::Configured => "configured",
    };
    let files: Vec<String> = worker.extensions.iter().map(|name| format!(".{name}")).collect();
    let files = if files.is_empty() { "-".to_owned() } else { files.join(" ") };
    let interpreter = match (&worker.interpreter, &worker.missing) {
        (Some(path), None) => path.clone(),
        (None, None) => "-".to_owned(),
        (_, Some(_)) => "missing".to_owned(),
    };
    [worker.name.clone(), worker.language.clone(), files, source.to_owned(), interpreter]
}

//! `windlass environments`: lists the interpreters that have a worker pool. Never starts a node.

use std::process::ExitCode;
use std::time::Duration;

use windlass_protocol::environments::{Environment, EnvironmentsQuery, ZygoteState};

use crate::terminal::{Terminal, Tone, table};
use crate::{duration, exit, node_access};

/// List the interpreters that have a worker pool
///
/// By default these are the usual interpreters on PATH, with their standard libraries preloaded. The file
/// ~/.config/windlass/environments.json, or the file that WINDLASS_ENVIRONMENTS names, can list other
/// interpreters and modules to preload; docs/environments.md describes it. Exits with 3 if no node is
/// running, and with 1 if the file is invalid.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON; null if no node is running
    #[arg(long)]
    json: bool,
    /// First wait until all environments are ready, at most this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let Some(client) = node_access::connect_if_running().await? else {
        terminal.say(if args.json { "null" } else { "no node is running" })?;
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    let wait_ms = args.wait.map_or(0, duration::millis);
    let list = client.environments(EnvironmentsQuery { wait_ms }).await?;
    let code = if list.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(code);
    }
    if let Some(error) = &list.error {
        terminal.note(error)?;
    }
    let rows: Vec<_> = list.environments.iter().map(row).collect();
    let lines = table(["INTERPRETER", "PRELOAD", "ZYGOTE", "PID", "MEMORY", "WAITING"], &rows);
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| list.environments[at].zygote.state) {
            None => Tone::Strong,
            Some(ZygoteState::Ready) => Tone::Good,
            Some(ZygoteState::Starting | ZygoteState::None) => Tone::Busy,
            Some(ZygoteState::Failed) => Tone::Error,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    for environment in &list.environments {
        let missing = environment.zygote.missing.iter();
        for what in missing.chain(&environment.zygote.error) {
            terminal.note(&format!("{}: {what}", environment.interpreter))?;
        }
    }
    Ok(code)
}

fn row(environment: &Environment) -> [String; 6] {
    let zygote = &environment.zygote;
    let state = match zygote.state {
        ZygoteState::None => "none",
        ZygoteState::Starting => "starting",
        ZygoteState::Ready => "ready",
        ZygoteState::Failed => "failed",
    };
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let preload = match environment.preload.is_empty() {
        true => "standard library".to_owned(),
        false => environment.preload.join(" "),
    };
    [
        environment.interpreter.clone(),
        preload,
        state.to_owned(),
        or_nothing(zygote.pid.map(|pid| pid.to_string())),
        or_nothing(zygote.pss_kib.map(|kib| format!("{:.1} MiB", kib as f64 / 1024.0))),
        format!("{} of {}", environment.pool.ready, environment.pool.size),
    ]
}

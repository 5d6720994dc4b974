//! `windlass agent list`: the engines, where they are installed, and what is missing.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use serde::Serialize;
use windlass_protocol::kinds::agent::{ENGINES, package};

use crate::terminal::{Terminal, Tone, table};

/// List the agents on this machine
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One engine on this machine.
#[derive(Debug, Serialize)]
struct InstalledEngine {
    name: &'static str,
    /// Where its program is.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// What is missing, and how to get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

pub fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let engines: Vec<InstalledEngine> = ENGINES.into_iter().map(InstalledEngine::find).collect();
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&engines)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<_> = engines.iter().map(row).collect();
    for (at, line) in table(["AGENT", "VERSION", "PROGRAM"], &rows).iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| &engines[at]) {
            None => Tone::Strong,
            Some(engine) if engine.missing.is_none() => Tone::Good,
            Some(_) => Tone::Busy,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    for engine in &engines {
        if let Some(missing) = &engine.missing {
            terminal.note(&format!("{}: {missing}", engine.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl InstalledEngine {
    fn find(name: &'static str) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program =
            std::env::split_paths(&path).map(|dir| dir.join(name)).find(|at| at.is_file());
        let version = program.as_ref().and_then(version_of);
        let missing = match (&program, &version) {
            (None, _) => {
                let package = package(name).unwrap_or(name);
                Some(format!("not on PATH; install it: npm install -g {package}"))
            }
            (Some(_), None) => {
                Some(format!("`{name} --version` fails; is its Node.js new enough?"))
            }
            (Some(_), Some(_)) => None,
        };
        Self { name, program, version, missing }
    }
}

/// What the program says of its version: the first word with a digit.
fn version_of(program: &PathBuf) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_version = |word: &&str| word.starts_with(|char: char| char.is_ascii_digit());
    text.split_whitespace().find(is_version).map(str::to_owned).filter(|_| output.status.success())
}

fn row(engine: &InstalledEngine) -> [String; 3] {
    let program = engine.program.as_ref().map(|program| program.display().to_string());
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [engine.name.to_owned(), or_dash(engine.version.clone()), or_dash(program)]
}

//! `cargo xtask agents`: real agents (Codex, Claude Code) against a stub of their model, and the
//! official MCP SDKs' clients, all of them with `windlass mcp` as their server. What they need is
//! installed from its registry, at one version each, and kept below `target`.

mod agent;
mod install;
mod leftovers;
mod place;
mod png;
mod row;
mod scenario;
mod sdk;
mod stub;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use self::agent::Agent;
use self::install::Installed;
use self::row::Row;
use crate::{Verdict, workspace};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these clients
    #[arg(long, value_name = "CLIENT", value_delimiter = ',')]
    only: Vec<Which>,
    /// One JSON object a line instead of the table
    #[arg(long)]
    json: bool,
    /// This program instead of the one that is built here
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
}

/// What `--only` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Codex,
    Claude,
    PythonSdk,
    TypescriptSdk,
}

impl Which {
    fn clients(self) -> &'static [Client] {
        match self {
            Self::Codex => &[Client::Codex],
            Self::Claude => &[Client::Claude],
            Self::PythonSdk => &[Client::PythonSdk, Client::PythonSdkOlder],
            Self::TypescriptSdk => &[Client::TypescriptSdk, Client::TypescriptSdkOlder],
        }
    }
}

/// A client at one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Client {
    Codex,
    Claude,
    PythonSdk,
    PythonSdkOlder,
    TypescriptSdk,
    TypescriptSdkOlder,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Codex => "codex",
            Self::Claude => "claude",
            Self::PythonSdk | Self::PythonSdkOlder => "python-sdk",
            Self::TypescriptSdk | Self::TypescriptSdkOlder => "typescript-sdk",
        })
    }
}

/// The rows so far; each is told as it comes, since the whole takes its time.
#[derive(Debug, Default)]
struct Report {
    rows: Vec<Row>,
}

impl Report {
    fn add(&mut self, row: Row) {
        let state = if row.passed { "passed" } else { "FAILED" };
        eprintln!("{} {}: {}: {state}", row.client, row.version, row.check);
        self.rows.push(row);
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    let began = Instant::now();
    let chosen = match args.only.is_empty() {
        true => Which::value_variants(),
        false => &args.only,
    };
    let clients: Vec<Client> = chosen.iter().flat_map(|which| which.clients()).copied().collect();
    let program = match &args.program {
        Some(program) => std::path::absolute(program)?,
        None => workspace::windlass()?,
    };
    let installed = Installed::prepare(&clients)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = Report::default();
    for client in clients {
        let played = runtime.block_on(play(client, &installed, &program, &mut report));
        if let Err(error) = played {
            report.add(broken(client, &error));
        }
    }
    match args.json {
        true => report.rows.iter().for_each(|row| println!("{}", row.json())),
        false => print!("{}", row::table(&report.rows, began.elapsed())),
    }
    // Last, where the end of a long run is all that is seen of it.
    let failed: Vec<&Row> = report.rows.iter().filter(|row| !row.passed).collect();
    failed.iter().for_each(|row| eprintln!("{}", row.complaint()));
    Ok(if failed.is_empty() { Verdict::Good } else { Verdict::Bad })
}

async fn play(
    client: Client,
    installed: &Installed,
    program: &Path,
    report: &mut Report,
) -> Result<()> {
    match Agent::of(client) {
        Some(agent) => scenario::play(client, agent, installed, program, report).await,
        None => sdk::play(client, installed, program, report).await,
    }
}

/// A client that could not be tried at all has failed; the others are tried nevertheless.
fn broken(client: Client, error: &anyhow::Error) -> Row {
    Row {
        client,
        version: Installed::version(client),
        check: "can be tried".to_owned(),
        passed: false,
        words: format!("{error:#}"),
        seconds: 0.0,
    }
}

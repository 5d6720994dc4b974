//! `cargo xtask agents`: runs real clients against `windlass mcp`: the agents Codex and Claude Code with a
//! stub of their model, and the clients of the official MCP SDKs. Each client is installed from its registry
//! at a pinned version and kept below `target`.

mod agent;
mod client_home;
mod install;
mod leftovers;
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
use self::row::CheckRow;
use crate::{RunVerdict, workspace};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only these clients
    #[arg(long, value_name = "CLIENT", value_delimiter = ',')]
    only: Vec<ClientChoice>,
    /// Print one JSON object per line instead of the table
    #[arg(long)]
    json: bool,
    /// Test this program instead of building one
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
}

/// A value of `--only`. An SDK stands for both of its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClientChoice {
    Codex,
    Claude,
    PythonSdk,
    TypescriptSdk,
}

impl ClientChoice {
    fn clients(self) -> &'static [ClientUnderTest] {
        match self {
            Self::Codex => &[ClientUnderTest::Codex],
            Self::Claude => &[ClientUnderTest::Claude],
            Self::PythonSdk => &[ClientUnderTest::PythonSdk, ClientUnderTest::PythonSdkOlder],
            Self::TypescriptSdk => {
                &[ClientUnderTest::TypescriptSdk, ClientUnderTest::TypescriptSdkOlder]
            }
        }
    }
}

/// A client at one version. `Older` SDKs speak the older revision of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ClientUnderTest {
    Codex,
    Claude,
    PythonSdk,
    PythonSdkOlder,
    TypescriptSdk,
    TypescriptSdkOlder,
}

impl fmt::Display for ClientUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Codex => "codex",
            Self::Claude => "claude",
            Self::PythonSdk | Self::PythonSdkOlder => "python-sdk",
            Self::TypescriptSdk | Self::TypescriptSdkOlder => "typescript-sdk",
        })
    }
}

/// The results so far. Each is printed when it is added, because the whole run takes minutes.
#[derive(Debug, Default)]
struct AgentsReport {
    rows: Vec<CheckRow>,
}

impl AgentsReport {
    fn add(&mut self, row: CheckRow) {
        let state = if row.passed { "passed" } else { "FAILED" };
        eprintln!("{} {}: {}: {state}", row.client, row.version, row.check);
        self.rows.push(row);
    }
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let began = Instant::now();
    let chosen = match args.only.is_empty() {
        true => ClientChoice::value_variants(),
        false => &args.only,
    };
    let clients: Vec<ClientUnderTest> =
        chosen.iter().flat_map(|which| which.clients()).copied().collect();
    let program = match &args.program {
        Some(program) => std::path::absolute(program)?,
        None => workspace::windlass()?,
    };
    let installed = Installed::prepare(&clients)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = AgentsReport::default();
    for client in clients {
        let done = runtime.block_on(play(client, &installed, &program, &mut report));
        if let Err(error) = done {
            report.add(broken(client, &error));
        }
    }
    match args.json {
        true => report.rows.iter().for_each(|row| println!("{}", row.json())),
        false => print!("{}", row::table(&report.rows, began.elapsed())),
    }
    // Printed last, because the end of a long run is what a terminal or CI log shows first.
    let failed: Vec<&CheckRow> = report.rows.iter().filter(|row| !row.passed).collect();
    failed.iter().for_each(|row| eprintln!("{}", row.complaint()));
    Ok(if failed.is_empty() { RunVerdict::Good } else { RunVerdict::Bad })
}

async fn play(
    client: ClientUnderTest,
    installed: &Installed,
    program: &Path,
    report: &mut AgentsReport,
) -> Result<()> {
    match Agent::of(client) {
        Some(agent) => scenario::play(client, agent, installed, program, report).await,
        None => sdk::play(client, installed, program, report).await,
    }
}

/// The failed check of a client that could not run at all. The other clients run nevertheless.
fn broken(client: ClientUnderTest, error: &anyhow::Error) -> CheckRow {
    CheckRow {
        client,
        version: Installed::version(client),
        check: "the client can run".to_owned(),
        passed: false,
        words: format!("{error:#}"),
        seconds: 0.0,
    }
}

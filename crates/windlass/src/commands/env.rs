//! `windlass env`: makes, lists, shows and removes package environments.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use windlass_client::Client;
use windlass_protocol::environments::EnvironmentsQuery;
use windlass_protocol::packages::{
    CreatePackageEnvironment, PackageEnvironment, PackageEnvironmentState,
};

use crate::commands::status::since;
use crate::package_options::{build, split};
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access};

/// Package environments: packages that sessions import without a network
///
/// The node installs the packages once, in a confined session that reaches the package index and nothing else. Sessions
/// read the environment and cannot change it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass env create data --with pandas,matplotlib
  windlass env create data --python 3.12 --with 'numpy>=2,<3'
  windlass run --environment data job.py
  windlass env show data --lock > data.lock
  windlass env create copy --lock data.lock
  windlass env rm data

`windlass run --with pandas job.py` makes an environment without a name and finds it again.")]
pub struct Args {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Debug, Subcommand)]
enum EnvCommand {
    /// Make an environment; if it is there already, do nothing
    Create {
        /// Letters, digits, `-`, `_` and `.`
        #[arg(value_name = "NAME")]
        name: String,
        /// Packages of the package index: pandas,matplotlib or 'numpy>=2,<3'; can be repeated
        #[arg(long, value_name = "PACKAGES", required_unless_present = "lock")]
        with: Vec<String>,
        /// Install what this lock file names, with its hashes
        #[arg(long, value_name = "FILE", conflicts_with = "with")]
        lock: Option<PathBuf>,
        /// The version of Python, or the path of an interpreter [default: python3 on PATH]
        #[arg(long, value_name = "VERSION")]
        python: Option<String>,
        /// Also install packages without a wheel: their own code builds them, in the sandbox of the build
        #[arg(long)]
        allow_source_builds: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the environments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an environment
    Show {
        #[arg(value_name = "NAME")]
        name: String,
        /// Print only the lock file: all packages with version and hashes
        #[arg(long, conflicts_with = "json")]
        lock: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an environment that no session uses
    Rm {
        #[arg(value_name = "NAME")]
        name: String,
    },
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = node_access::connect_or_start().await?;
    match args.command {
        EnvCommand::Create { name, with, lock, python, allow_source_builds, json } => {
            let lock = lock
                .map(|path| {
                    std::fs::read_to_string(&path)
                        .with_context(|| format!("cannot read {}", path.display()))
                })
                .transpose()?;
            let packages = split(&with);
            let request = CreatePackageEnvironment {
                name: Some(name),
                python,
                packages,
                lock,
                allow_source_builds,
                wait_ms: 0,
            };
            let made = build(&client, request, terminal).await?;
            if json {
                terminal.say(&serde_json::to_string_pretty(&made)?)?;
            } else {
                terminal.note(&format!(
                    "environment {0} is ready; use it: windlass run --environment {0} FILE",
                    made.name
                ))?;
            }
        }
        EnvCommand::List { json } => list(&client, json, terminal).await?,
        EnvCommand::Show { name, lock, json } => {
            let shown = client.package_environment(&name).await?;
            return show(&shown, lock, json, terminal);
        }
        EnvCommand::Rm { name } => {
            client.remove_package_environment(&name).await?;
            terminal.note(&format!("environment {name} is removed"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, json: bool, terminal: &mut Terminal) -> anyhow::Result<()> {
    let list = client.environments(EnvironmentsQuery::default()).await?.packages;
    if json {
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(());
    }
    let rows: Vec<[String; 5]> = list
        .iter()
        .map(|one| {
            let packages =
                if one.packages.is_empty() { "lock file".into() } else { one.packages.join(" ") };
            let state = state_name(one.state).to_owned();
            let used = duration::show(since(one.used_at_ms));
            [one.name.clone(), state, packages, one.python.clone(), used]
        })
        .collect();
    let lines = table(["NAME", "STATE", "PACKAGES", "PYTHON", "USED"], &rows);
    for (at, line) in lines.iter().enumerate() {
        let tone = match at.checked_sub(1).map(|at| list[at].state) {
            None => Tone::Strong,
            Some(PackageEnvironmentState::Ready) => Tone::Good,
            Some(PackageEnvironmentState::Building) => Tone::Busy,
            Some(PackageEnvironmentState::Failed) => Tone::Error,
        };
        terminal.say(&terminal.tone(tone, line))?;
    }
    Ok(())
}

fn show(
    shown: &PackageEnvironment,
    only_lock: bool,
    json: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    if json {
        terminal.say(&serde_json::to_string_pretty(shown)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if only_lock {
        let Some(lock) = &shown.lock else {
            terminal.note(&format!("environment {} has no lock file yet", shown.name))?;
            return Ok(ExitCode::FAILURE);
        };
        terminal.say(lock.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let packages =
        if shown.packages.is_empty() { "lock file".into() } else { shown.packages.join(" ") };
    let mut lines = vec![
        format!("name       {}", shown.name),
        format!("state      {}", state_name(shown.state)),
        format!("packages   {packages}"),
        format!("python     {}", shown.python),
        format!("directory  {}", shown.directory),
        format!("used       {} ago", duration::show(since(shown.used_at_ms))),
    ];
    lines.extend(shown.error.iter().map(|error| format!("error      {error}")));
    let installed = shown.lock.iter().flat_map(|lock| lock.lines()).filter_map(|line| {
        let package = line.split_whitespace().next()?;
        package.contains("==").then(|| format!("           {package}"))
    });
    let installed: Vec<String> = installed.collect();
    if !installed.is_empty() {
        lines.push("installed".to_owned());
        lines.extend(installed);
    }
    for line in lines {
        terminal.say(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn state_name(state: PackageEnvironmentState) -> &'static str {
    match state {
        PackageEnvironmentState::Building => "building",
        PackageEnvironmentState::Ready => "ready",
        PackageEnvironmentState::Failed => "failed",
    }
}

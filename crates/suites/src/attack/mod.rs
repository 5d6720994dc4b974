//! `cargo xtask attack`: the attacks of the test kit against sessions of each isolation level and network
//! setting, as root and as an ordinary user, and against sessions without a sandbox, so that the
//! attacks are known to bite. One that comes through fails the command.

mod document;
mod half;
mod row;
mod table;
mod user;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{self, Attack, NetworkSetting};

use self::row::Who;
use crate::{Verdict, workspace};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these attacks, by the name of their file without its ending
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these levels: full, landlock, none
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', value_parser = level)]
    level: Vec<Isolation>,
    /// Only these network settings: none, hosts, open
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', value_parser = network)]
    network: Vec<NetworkSetting>,
    /// One JSON object a line instead of the table
    #[arg(long)]
    json: bool,
    /// Play nothing; write the table of the attacks into docs/security.md
    #[arg(long)]
    document: bool,
    /// Only as the user who runs this, with this program, one JSON object a line
    #[arg(long, hide = true, value_name = "PROGRAM")]
    half: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<Verdict> {
    if args.document {
        document::write()?;
        return Ok(Verdict::Good);
    }
    let attacks = chosen(&args.only)?;
    let settings = settings(args);
    if let Some(program) = &args.half {
        half::play(program, &attacks, &settings, |row| println!("{}", row.json()))?;
        return Ok(Verdict::Good);
    }
    let program = workspace::windlass()?;
    let mut rows = Vec::new();
    half::play(&program, &attacks, &settings, |row| rows.push(row))?;
    if Who::this() == Who::Root {
        rows.extend(user::play(&program, args)?);
    }
    match args.json {
        true => rows.iter().for_each(|row| println!("{}", row.json())),
        false => print!("{}", table::table(&attacks, &rows)),
    }
    // Last, where the end of a long run is all that is seen of it.
    let failed: Vec<_> = rows.iter().filter(|row| row.fails()).collect();
    failed.iter().for_each(|row| eprintln!("{}", row.complaint()));
    Ok(if failed.is_empty() { Verdict::Good } else { Verdict::Bad })
}

fn chosen(only: &[String]) -> Result<Vec<Attack>> {
    let mut attacks = attacks::all();
    if let Some(name) = only.iter().find(|name| !attacks.iter().any(|a| a.program == **name)) {
        bail!("no attack is called {name:?}; their files are in crates/testkit/attacks");
    }
    attacks.retain(|attack| only.is_empty() || only.iter().any(|name| name == attack.program));
    Ok(attacks)
}

/// The levels and network settings to play: all that are asked for, or all. Without a sandbox the
/// network setting changes nothing, so it is played once.
fn settings(args: &Args) -> Vec<(Isolation, NetworkSetting)> {
    let (all_levels, all_networks) = (Isolation::ALL.to_vec(), NetworkSetting::ALL.to_vec());
    let levels = if args.level.is_empty() { &all_levels } else { &args.level };
    let networks = if args.network.is_empty() { &all_networks } else { &args.network };
    let mut settings = Vec::new();
    for level in levels {
        match level {
            Isolation::None => settings.push((*level, NetworkSetting::None)),
            _ => settings.extend(networks.iter().map(|network| (*level, *network))),
        }
    }
    settings
}

fn network(text: &str) -> Result<NetworkSetting, String> {
    NetworkSetting::parse(text).ok_or_else(|| "a network is none, hosts or open".to_owned())
}

fn level(text: &str) -> Result<Isolation, String> {
    let found = Isolation::ALL.into_iter().find(|level| level.as_str() == text);
    found.ok_or_else(|| "a level is full, landlock or none".to_owned())
}

/// Runs a command that has to succeed.
fn must(command: &mut Command) -> Result<()> {
    workspace::output_of(command).map(drop)
}

//! `cargo xtask attack`: runs the attacks of the testkit in sessions of each isolation level and network
//! setting, as root and as an ordinary user. It also runs them without a sandbox, which shows that the
//! attacks work. The command fails if an attack is not refused although the level claims to refuse it.

mod document;
mod half;
mod row;
mod table;
mod user;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, anyhow, bail};
use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{self, Attack, AttackWorker, NetworkSetting};

use self::row::Privilege;
use crate::{RunVerdict, workspace};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only these attacks, by file name without extension
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Run only at these levels: full, landlock, none
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', value_parser = level)]
    level: Vec<Isolation>,
    /// Run only with these network settings: none, hosts, open
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', value_parser = network)]
    network: Vec<NetworkSetting>,
    /// Run the attacks from sessions of this kind: python, shell, r or node. Kinds other than python run those
    /// that are programs of their own
    #[arg(long, value_name = "KIND", default_value = "python", value_parser = worker)]
    worker: AttackWorker,
    /// Print one JSON object per line instead of the table
    #[arg(long)]
    json: bool,
    /// Run no attack; write the table of attacks into docs/security.md
    #[arg(long)]
    document: bool,
    /// Run only as the current user, with this program, and print one JSON object per line
    #[arg(long, hide = true, value_name = "PROGRAM")]
    half: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    if args.document {
        document::write()?;
        return Ok(RunVerdict::Good);
    }
    let mut attacks = chosen(&args.only)?;
    attacks.retain(|attack| args.worker.can_play(attack));
    let settings = settings(args);
    if let Some(program) = &args.half {
        half::play(program, args.worker, &attacks, &settings, |row| println!("{}", row.json()))?;
        return Ok(RunVerdict::Good);
    }
    let program = workspace::windlass()?;
    // Both halves at once: each has a node, directories and services of its own.
    let rows = std::thread::scope(|scope| -> Result<Vec<_>> {
        let is_root = Privilege::this() == Privilege::Root;
        let user = is_root.then(|| scope.spawn(|| user::play(&program, args)));
        let mut rows = Vec::new();
        half::play(&program, args.worker, &attacks, &settings, |row| rows.push(row))?;
        if let Some(user) = user {
            let played = user.join().map_err(|_| anyhow!("the user's half panicked"))?;
            rows.extend(played?);
        }
        Ok(rows)
    })?;
    match args.json {
        true => rows.iter().for_each(|row| println!("{}", row.json())),
        false => print!("{}", table::table(&attacks, &rows)),
    }
    // Printed last, because the end of a long run is what a terminal or CI log shows first.
    let failed: Vec<_> = rows.iter().filter(|row| row.fails()).collect();
    failed.iter().for_each(|row| eprintln!("{}", row.complaint()));
    Ok(if failed.is_empty() { RunVerdict::Good } else { RunVerdict::Bad })
}

fn chosen(only: &[String]) -> Result<Vec<Attack>> {
    let mut attacks = attacks::all();
    if let Some(name) = only.iter().find(|name| !attacks.iter().any(|a| a.program == **name)) {
        bail!("there is no attack {name:?}; the attacks are the files in crates/testkit/attacks");
    }
    attacks.retain(|attack| only.is_empty() || only.iter().any(|name| name == attack.program));
    Ok(attacks)
}

/// The levels and network settings to run: those that the options name, or all. Without a sandbox the network
/// setting has no effect, so level `none` runs once.
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
    NetworkSetting::parse(text)
        .ok_or_else(|| "the network setting must be none, hosts or open".to_owned())
}

fn worker(text: &str) -> Result<AttackWorker, String> {
    AttackWorker::parse(text).ok_or_else(|| "the kind must be python, shell, r or node".to_owned())
}

fn level(text: &str) -> Result<Isolation, String> {
    let found = Isolation::ALL.into_iter().find(|level| level.as_str() == text);
    found.ok_or_else(|| "the level must be full, landlock or none".to_owned())
}

/// Runs a command. A failure of the command is an error.
fn must(command: &mut Command) -> Result<()> {
    workspace::output_of(command).map(drop)
}

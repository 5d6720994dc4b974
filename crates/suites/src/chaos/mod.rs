//! `cargo xtask chaos`: runs clients and faults against real nodes. A seed decides every operation and every
//! fault. Each client keeps a model of the node's earlier answers and compares every later answer with it.
//! For a failing seed the suite prints the command that repeats it. `docs/chaos.md` describes the suite. With `--fleet`
//! it runs the suite in `fleet` instead.

mod chaos_node;
mod client;
mod code;
mod faults;
mod fleet;
mod follower;
mod guests;
mod http_client;
mod input;
mod isolation;
mod judge;
mod ledger;
mod leftovers;
mod malformed;
mod misbehaving;
mod model;
mod operations;
mod play;
mod random;
mod raw_http;
mod small_disk;
mod stopping;
mod turns;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use self::faults::FaultKind;
use self::fleet::FleetRunPlan;
use self::isolation::ReexecStep;
use self::play::RunSetup;
use crate::{RunVerdict, workspace};

/// The mount of the cgroup controller that limits the number of processes.
const PIDS: &str = "/sys/fs/cgroup/pids";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of seeds, one after the other, or the seeds from A to B. Default: 1, and with --minutes no limit
    #[arg(long, value_name = "K|A..B", value_parser = parse_seeds)]
    seeds: Option<SeedsOption>,
    /// How long the clients of each seed work; checking and closing comes on top
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only these faults; without this option, all
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<FaultKind>,
    /// The number of further clients that count with each of Python, shell, R, Node.js and a Jupyter kernel
    #[arg(long, default_value_t = 0, value_name = "N")]
    kinds: usize,
    /// Run as this user, who is created if missing; only for root
    #[arg(long)]
    user: Option<String>,
    /// Run a fleet of nodes and its store, and faults of their network, processes and disks; only for root
    #[arg(long, conflicts_with_all = ["faults", "kinds", "user"])]
    fleet: bool,
    /// With --fleet: begin no further seed after this time
    #[arg(long, requires = "fleet", value_name = "M")]
    minutes: Option<u64>,
    /// The program to test. Default: the one that WINDLASS_XTASK_PROGRAM names, else a debug build
    #[arg(long, value_name = "PATH", conflicts_with = "user")]
    program: Option<PathBuf>,
}

/// The value of `--seeds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeedsOption {
    Count(u64),
    /// The first and the last seed.
    Between(u64, u64),
}

fn parse_seeds(text: &str) -> Result<SeedsOption, String> {
    let number = |text: &str| -> Result<u64, String> {
        let number = text.parse::<u64>();
        number.map_err(|_| format!("{text:?} is not a number; write K or A..B"))
    };
    match text.split_once("..") {
        None => Ok(SeedsOption::Count(number(text)?)),
        Some((first, last)) => Ok(SeedsOption::Between(number(first)?, number(last)?)),
    }
}

impl Args {
    fn seeds(&self) -> Range<u64> {
        match self.seeds {
            Some(SeedsOption::Between(first, last)) => first..last.saturating_add(1),
            Some(SeedsOption::Count(count)) => self.seed..self.seed.saturating_add(count),
            None if self.minutes.is_some() => self.seed..u64::MAX,
            None => self.seed..self.seed.saturating_add(1),
        }
    }

    fn program(&self) -> Result<PathBuf> {
        let Some(program) = &self.program else { return workspace::windlass() };
        let found = program.canonicalize();
        found.with_context(|| format!("there is no program {}", program.display()))
    }
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let program = args.program()?;
    if args.fleet {
        return fleet::run(&fleet_plan(args, program));
    }
    match ReexecStep::now() {
        ReexecStep::Outside if isolation::is_root() => isolation::enter_namespaces(&program),
        ReexecStep::Namespaces => isolation::enter_player(&program, args.user.as_deref()),
        ReexecStep::Outside | ReexecStep::Player => play_all(args, program),
    }
}

fn fleet_plan(args: &Args, program: PathBuf) -> FleetRunPlan {
    let mut again = format!("cargo xtask chaos --fleet --seconds {}", args.seconds);
    if let Some(named) = &args.program {
        again.push_str(&format!(" --program {}", named.display()));
    }
    FleetRunPlan {
        program,
        seeds: args.seeds(),
        work: Duration::from_secs(args.seconds),
        until: args.minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
        again,
    }
}

fn play_all(args: &Args, program: PathBuf) -> Result<RunVerdict> {
    let cgroup = PidsCgroup::make();
    let disk = std::env::var_os(isolation::DISK).filter(|path| !path.is_empty());
    let disk = disk.map(PathBuf::from);
    let mut faults = match args.faults.is_empty() {
        true => FaultKind::value_variants().to_vec(),
        false => args.faults.clone(),
    };
    if disk.is_none() && faults.contains(&FaultKind::Disk) {
        println!("skipped: disk: only root can mount a small disk");
        faults.retain(|fault| *fault != FaultKind::Disk);
    }
    if cgroup.is_none() && faults.contains(&FaultKind::Processes) {
        println!("skipped: processes: cannot create a cgroup in {PIDS}");
        faults.retain(|fault| *fault != FaultKind::Processes);
    }
    let limits_processes = faults.contains(&FaultKind::Processes);
    let stage = RunSetup {
        program,
        seconds: args.seconds,
        per_kind: args.kinds,
        disk: disk.filter(|_| faults.contains(&FaultKind::Disk)),
        cgroup: cgroup.as_ref().filter(|_| limits_processes).map(|cgroup| cgroup.path.clone()),
        faults,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut totals = Totals::default();
    for seed in args.seeds() {
        let played = runtime.block_on(play::play(&stage, seed))?;
        let count = |name: &str| played.counts.get(name).copied().unwrap_or_default();
        println!(
            "seed {seed}: {} turns, {} sessions, {} faults, {} violations, {:.0} s",
            count("turns"),
            count("sessions"),
            count("faults"),
            played.violations,
            played.seconds
        );
        if let Some(kept) = &played.kept {
            println!("  to repeat it: {}", again(args, seed));
            println!("  the node's state and log: {}", kept.display());
            totals.failed.push(seed);
        }
        totals.add(&played);
    }
    totals.print();
    Ok(if totals.violations == 0 { RunVerdict::Good } else { RunVerdict::Bad })
}

/// The command that repeats one seed.
fn again(args: &Args, seed: u64) -> String {
    let mut words = format!("cargo xtask chaos --seed {seed} --seconds {}", args.seconds);
    if !args.faults.is_empty() {
        let names: Vec<String> = args
            .faults
            .iter()
            .filter_map(|fault| Some(fault.to_possible_value()?.get_name().to_owned()))
            .collect();
        words.push_str(&format!(" --faults {}", names.join(",")));
    }
    if let Some(program) = &args.program {
        words.push_str(&format!(" --program {}", program.display()));
    }
    if args.kinds > 0 {
        words.push_str(&format!(" --kinds {}", args.kinds));
    }
    if let Some(user) = &args.user {
        words.push_str(&format!(" --user {user}"));
    }
    words
}

#[derive(Debug, Default)]
struct Totals {
    counts: BTreeMap<String, u64>,
    violations: u64,
    seconds: f64,
    failed: Vec<u64>,
}

impl Totals {
    fn add(&mut self, played: &play::SeedResult) {
        for (name, count) in &played.counts {
            *self.counts.entry(name.clone()).or_default() += count;
        }
        self.violations += played.violations;
        self.seconds += played.seconds;
    }

    fn print(&self) {
        println!("\ntotals");
        for (name, count) in &self.counts {
            println!("  {name:<36} {count:>9}");
        }
        println!("  {:<36} {:>9.0}", "seconds", self.seconds);
        println!("  {:<36} {:>9}", "violations", self.violations);
        if !self.failed.is_empty() {
            println!("  failing seeds: {:?}", self.failed);
        }
    }
}

/// The cgroup in which the run starts its nodes. Removed at the end.
#[derive(Debug)]
struct PidsCgroup {
    path: PathBuf,
}

impl PidsCgroup {
    fn make() -> Option<Self> {
        let path = Path::new(PIDS).join(format!("wl-chaos-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        Some(Self { path })
    }
}

impl Drop for PidsCgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_or_a_range() {
        assert_eq!(parse_seeds("3"), Ok(SeedsOption::Count(3)));
        assert_eq!(parse_seeds("4..6"), Ok(SeedsOption::Between(4, 6)));
        for wrong in ["", "x", "1..", "..2", "1..2..3", "-1"] {
            assert!(parse_seeds(wrong).is_err(), "{wrong}");
        }
    }
}

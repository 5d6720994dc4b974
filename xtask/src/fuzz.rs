//! `cargo xtask fuzz`: builds the fuzz targets and runs each from its corpus, for a number of executions (as
//! CI does) or for some minutes. It needs a C++ compiler, but no nightly toolchain: libFuzzer's coverage
//! comes from flags of the stable compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::RunVerdict;
use crate::workspace::{cargo, root, target};

/// Executions of each target in CI. All targets together take about a minute, after the build.
const RUNS: u64 = 5_000;

/// The longest input. It is enough to request several frames of the largest size.
const INPUT_BYTES_MAX: usize = 16 * 1024;

/// An input that takes longer is a failure.
const INPUT_WAIT: Duration = Duration::from_secs(10);

/// The memory limit of a target. The longest launch message, in parts and joined, needs far less.
const MEMORY_MIB_MAX: usize = 2048;

/// Compiler flags for libFuzzer's coverage counters.
const COVERAGE: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The targets to run; without names, all
    targets: Vec<String>,
    /// The number of executions of each target
    #[arg(long, default_value_t = RUNS, conflicts_with = "minutes")]
    runs: u64,
    /// Run each target for this many minutes instead
    #[arg(long)]
    minutes: Option<u64>,
    /// Add inputs that cover new code to the corpus of each target, as few and as small as possible
    #[arg(long)]
    grow: bool,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let all = targets()?;
    let chosen = match args.targets.is_empty() {
        true => all,
        false => args.targets.iter().map(|name| known(name, &all)).collect::<Result<_>>()?,
    };
    let began = Instant::now();
    let built = build(&chosen)?;
    println!("built {} targets in {:.0} s", chosen.len(), began.elapsed().as_secs_f64());
    let mut verdict = RunVerdict::Good;
    for name in &chosen {
        if !fuzz(args, name, &built)? {
            verdict = RunVerdict::Bad;
        }
    }
    Ok(verdict)
}

/// The names of all targets, in order.
fn targets() -> Result<Vec<String>> {
    let listed =
        root().join("fuzz/fuzz_targets").read_dir().context("cannot read fuzz/fuzz_targets")?;
    let name = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        Some(path.file_stem()?.to_str()?.to_owned()).filter(|_| is_rust)
    };
    let mut names: Vec<String> = listed.flatten().filter_map(name).collect();
    names.sort();
    Ok(names)
}

fn known(name: &str, all: &[String]) -> Result<String> {
    if all.iter().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    bail!("there is no fuzz target {name}; the targets are: {}", all.join(", "))
}

/// Builds the targets and returns the directory of their programs.
fn build(names: &[String]) -> Result<PathBuf> {
    let directory = target().join("fuzz");
    let triple = host_triple()?;
    let mut command = cargo();
    command
        // With --target, cargo applies the flags to the targets only, not to build scripts.
        .args(["build", "--release", "--locked", "--quiet", "--target", &triple])
        .arg("--manifest-path")
        .arg(root().join("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"));
    for name in names {
        command.args(["--bin", name]);
    }
    ensure!(command.status().context("cannot run cargo")?.success(), "cargo build failed");
    Ok(directory.join(triple).join("release"))
}

/// The compiler's target triple for this machine.
fn host_triple() -> Result<String> {
    let said =
        crate::workspace::output_of(Command::new("rustc").args(["-vV"]).current_dir(root()))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV prints no host")?.to_owned())
}

/// Runs one target. Returns whether it passed.
fn fuzz(args: &Args, name: &str, built: &Path) -> Result<bool> {
    let corpus = root().join("fuzz/corpus").join(name);
    let work = target().join("fuzz/work").join(name);
    let crashes = target().join("fuzz/crashes").join(name);
    for directory in [&corpus, &work, &crashes] {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let mut command = Command::new(built.join(name));
    command.arg(&work).arg(&corpus);
    command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command.arg(format!("-timeout={}", INPUT_WAIT.as_secs()));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    command.arg(format!("-artifact_prefix={}/", crashes.display()));
    command.args(["-print_final_stats=1", "-verbosity=0"]);
    match args.minutes {
        Some(minutes) => command.arg(format!("-max_total_time={}", minutes * 60)),
        // A fixed seed: each run tries the same inputs.
        None => command.args([format!("-runs={}", args.runs), "-seed=1".to_owned()]),
    };
    let began = Instant::now();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let seconds = began.elapsed().as_secs_f64();
    if !output.status.success() {
        println!("{name:16} FAILED after {seconds:.0} s; the input is in {}", crashes.display());
        println!("{said}");
        return Ok(false);
    }
    let figure = |key: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(key));
        line.map_or("?", str::trim).to_owned()
    };
    let executions = figure("stat::number_of_executed_units:");
    let memory = figure("stat::peak_rss_mb:");
    println!("{name:16} {executions:>10} executions in {seconds:>5.0} s, {memory} MiB at most");
    if args.grow {
        merge(name, built, &corpus, &work)?;
    }
    Ok(true)
}

/// Adds new inputs that cover more code to the corpus in git.
fn merge(name: &str, built: &Path, corpus: &Path, work: &Path) -> Result<()> {
    let merged = Command::new(built.join(name))
        .args(["-merge=1", "-verbosity=0", &format!("-max_len={INPUT_BYTES_MAX}")])
        .arg(corpus)
        .arg(work)
        .output()
        .with_context(|| format!("cannot merge the corpus of {name}"))?;
    ensure!(
        merged.status.success(),
        "cannot merge the corpus of {name}: {}",
        String::from_utf8_lossy(&merged.stderr)
    );
    Ok(())
}

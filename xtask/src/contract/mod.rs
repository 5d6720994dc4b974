//! `cargo xtask contract`: runs the tests of the promises in `docs/contract.md` and prints which promises
//! hold. nextest runs the tests; this module counts their results.

mod kinds;
mod lines;
mod report;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use windlass_protocol::kinds::{ALL as ALL_KINDS, WorkerKind};

use self::lines::ContractLine;
use self::report::ContractTest;
use crate::RunVerdict;
use crate::load::Load;
use crate::workspace;

/// The page with all promises.
const CONTRACT: &str = "docs/contract.md";

/// The nextest profile in `.config/nextest.toml`. It selects the tests, runs one at a time, and writes a
/// JUnit report.
const PROFILE: &str = "contract";

/// The `store` in `.config/nextest.toml`. nextest does not apply CARGO_TARGET_DIR to it.
const REPORTS: &str = "target/nextest";

const NO_NEXTEST: &str = "cannot run cargo nextest; install it with `cargo install cargo-nextest`";

/// The lines that this release promises. A line of these without a test is a failure.
const EXPECTED: &[std::ops::RangeInclusive<u8>] = &[1..=58, 60..=112];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run everything this many times and report lines that pass only sometimes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Run two busy-loop processes beside the tests
    #[arg(long)]
    load: bool,
    /// Run only the tests of this kind of worker: python, shell, r, node, pyodide or jupyter. Says for every
    /// other line where it is checked for the kind, or why it does not apply
    #[arg(long, value_name = "KIND", value_parser = kind)]
    worker: Option<&'static WorkerKind>,
    /// Run no test; write the table of the kinds into docs/workers.md
    #[arg(long)]
    document: bool,
    /// Run only these lines, such as `07 21`
    #[arg(value_name = "NN")]
    numbers: Vec<u8>,
}

/// The results of one line in all runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tally {
    passed: u32,
    failed: u32,
    /// The number of runs in which no test failed, but one of them could not run.
    skipped: u32,
    /// The time of the slowest run.
    time: Duration,
    /// Tests that failed in a run, each once, with the message of the first failure.
    failures: Vec<(String, String)>,
    /// Tests that could not run, each once, with the reason.
    skips: Vec<(String, String)>,
}

/// The result of a line in one run: that of its worst test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LineResult {
    Passed,
    Skipped,
    Failed,
}

impl LineResult {
    fn of(case: &ContractTest) -> Self {
        match (case.passed, &case.skipped) {
            (false, _) => Self::Failed,
            (true, Some(_)) => Self::Skipped,
            (true, None) => Self::Passed,
        }
    }
}

fn kind(name: &str) -> Result<&'static WorkerKind, String> {
    let names: Vec<&str> = ALL_KINDS.iter().map(|kind| kind.name).collect();
    let found = ALL_KINDS.iter().find(|kind| kind.name == name);
    found.ok_or_else(|| format!("the kinds are {}", names.join(", ")))
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    if args.document {
        kinds::write()?;
        return Ok(RunVerdict::Good);
    }
    let text = fs::read_to_string(workspace::root().join(CONTRACT))
        .with_context(|| format!("cannot read {CONTRACT}"))?;
    let mut lines = lines::parse(&text)?;
    for number in &args.numbers {
        if !lines.iter().any(|line| line.number == *number) {
            bail!("{CONTRACT} has no line {number:02}");
        }
    }
    if !args.numbers.is_empty() {
        lines.retain(|line| args.numbers.contains(&line.number));
    }

    build()?;
    let load = if args.load { Some(Load::start()?) } else { None };
    let started = Instant::now();
    let mut tallies = BTreeMap::new();
    let mut unknown = Vec::new();
    for run in 1..=args.runs {
        if args.runs > 1 {
            println!("run {run} of {}", args.runs);
        }
        let cases = run_once(args)?;
        unknown = lines::unknown(&cases, &lines);
        tally(&mut tallies, &cases);
    }
    drop(load);
    if let Some(kind) = args.worker {
        print!("{}", kinds::render(kind, &lines, &tallies));
        lines.retain(|line| {
            let is_tested = kinds::basis(kind, line.number) == kinds::LineBasis::Tested;
            is_tested || tallies.contains_key(&line.number)
        });
    }
    Ok(close(&lines, &tallies, &unknown, args.runs, started.elapsed()))
}

/// Builds the tests before the runs, so that the measured times contain no build.
fn build() -> Result<()> {
    let mut nextest = nextest();
    let status = nextest.arg("--no-run").status().context(NO_NEXTEST)?;
    ensure!(status.success(), "cargo nextest could not build the tests");
    Ok(())
}

fn nextest() -> Command {
    let mut nextest = workspace::cargo();
    nextest.args(["nextest", "run", "--workspace", "--profile", PROFILE]);
    // These variables describe the package xtask. The tests must not inherit them.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            nextest.env_remove(&*name);
        }
    }
    nextest
}

/// Runs the tests once. A failed test is part of the result. An error means that nextest could not run the
/// tests.
fn run_once(args: &Args) -> Result<Vec<ContractTest>> {
    let report = workspace::root().join(REPORTS).join(PROFILE).join("junit.xml");
    // nextest writes no report if no test matches. An old report must not be taken for this run's.
    match fs::remove_file(&report) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", report.display()));
        }
        _ => {}
    }
    let mut nextest = nextest();
    nextest.args(["--cargo-quiet", "--no-tests", "pass"]);
    let of_kind = match args.worker {
        Some(kind) => format!("test(/^{}::/) & ", kind.name),
        None => String::new(),
    };
    for number in &args.numbers {
        nextest.args(["--filterset", &format!("{of_kind}test(/(^|::)contract_{number:02}_/)")]);
    }
    if let (Some(kind), true) = (args.worker, args.numbers.is_empty()) {
        nextest.args(["--filterset", &format!("test(/^{}::contract_/)", kind.name)]);
    }
    let status = nextest.status().context(NO_NEXTEST)?;
    match fs::read_to_string(&report) {
        Ok(text) => report::parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && status.success() => {
            Ok(Vec::new())
        }
        Err(_) => bail!("nextest could not run the tests: it ended with {status}"),
    }
}

/// Adds the results of one run. A line passes if all its tests pass. It is skipped if one of them could not
/// run.
fn tally(tallies: &mut BTreeMap<u8, Tally>, cases: &[ContractTest]) {
    let mut run: BTreeMap<u8, (LineResult, Duration)> = BTreeMap::new();
    for case in cases {
        let Some(number) = lines::number_of(&case.name) else { continue };
        let line = run.entry(number).or_insert((LineResult::Passed, Duration::ZERO));
        line.0 = line.0.max(LineResult::of(case));
        line.1 += case.time;
        let tally = tallies.entry(number).or_default();
        if !case.passed {
            add_once(&mut tally.failures, &case.name, &case.reason);
        } else if let Some(reason) = &case.skipped {
            add_once(&mut tally.skips, &case.name, reason);
        }
    }
    for (number, (result, time)) in run {
        let tally = tallies.entry(number).or_default();
        tally.passed += u32::from(result == LineResult::Passed);
        tally.skipped += u32::from(result == LineResult::Skipped);
        tally.failed += u32::from(result == LineResult::Failed);
        tally.time = tally.time.max(time);
    }
}

/// Adds a test with its message, unless the list has the test already.
fn add_once(list: &mut Vec<(String, String)>, test: &str, reason: &str) {
    if !list.iter().any(|(name, _)| name == test) {
        list.push((test.to_owned(), reason.to_owned()));
    }
}

/// Prints the table, the failures and skips, and the last line with the counts.
fn close(
    lines: &[ContractLine],
    tallies: &BTreeMap<u8, Tally>,
    unknown: &[String],
    runs: u32,
    took: Duration,
) -> RunVerdict {
    let rows = table::rows(lines, tallies, runs);
    print!("{}", table::render(&rows, runs));
    let mut verdict = RunVerdict::Good;
    for name in unknown {
        println!("unknown: {CONTRACT} has no line for the test {name}");
        verdict = RunVerdict::Bad;
    }
    for row in &rows {
        if row.state == table::LineState::Failed {
            verdict = RunVerdict::Bad;
            for (test, reason) in &tallies[&row.number].failures {
                println!("failed: line {:02}: {test}", row.number);
                reason.lines().for_each(|line| println!("    {line}"));
            }
        }
    }
    print_skips(tallies);
    let missing = rows.iter().filter(|row| row.state == table::LineState::Missing);
    let missing: Vec<String> = missing
        .filter(|row| is_expected(row.number))
        .map(|row| format!("{:02}", row.number))
        .collect();
    if !missing.is_empty() {
        println!(
            "missing: this release promises these lines, but they have no test: {}",
            missing.join(" ")
        );
        verdict = RunVerdict::Bad;
    }
    println!("took {:.1} s", took.as_secs_f64());
    let count = |state| rows.iter().filter(|row| row.state == state).count();
    println!(
        "{} passed, {} failed, {} skipped",
        count(table::LineState::Passed),
        count(table::LineState::Failed),
        count(table::LineState::Missing) + count(table::LineState::Skipped)
    );
    verdict
}

/// Prints each test that could not run, with the reason.
fn print_skips(tallies: &BTreeMap<u8, Tally>) {
    for (number, tally) in tallies {
        for (test, reason) in &tally.skips {
            println!("skipped: line {number:02}: {test}: {reason}");
        }
    }
}

fn is_expected(number: u8) -> bool {
    EXPECTED.iter().any(|range| range.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, passed: bool, millis: u64) -> ContractTest {
        let (time, reason) = (Duration::from_millis(millis), format!("{millis} ms"));
        ContractTest { name: name.to_owned(), passed, skipped: None, time, reason }
    }

    #[test]
    fn a_line_passes_when_all_its_tests_do() {
        let mut tallies = BTreeMap::new();
        tally(
            &mut tallies,
            &[
                case("contract_33_getpass", true, 20),
                case("input::contract_33_pdb", false, 30),
                case("contract_34_short", true, 5),
            ],
        );
        assert_eq!((tallies[&33].passed, tallies[&33].failed), (0, 1));
        assert_eq!(tallies[&33].time, Duration::from_millis(50));
        let names: Vec<_> = tallies[&33].failures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["input::contract_33_pdb"]);
        assert_eq!((tallies[&34].passed, tallies[&34].failed), (1, 0));
    }

    #[test]
    fn a_line_with_a_test_that_could_not_run_is_skipped() {
        let mut tallies = BTreeMap::new();
        let skipped = Some("no disk".to_owned());
        let without = ContractTest { skipped, ..case("contract_31_full", true, 5) };
        let also = ContractTest { name: "contract_32_cut".to_owned(), ..without.clone() };
        tally(
            &mut tallies,
            &[case("contract_31_a", true, 1), without, case("contract_32_b", false, 1), also],
        );
        let counts = |number| {
            let tally: &Tally = &tallies[&number];
            (tally.passed, tally.skipped, tally.failed)
        };
        assert_eq!((counts(31), counts(32)), ((0, 1, 0), (0, 0, 1)));
        assert_eq!(tallies[&31].skips, [("contract_31_full".to_owned(), "no disk".to_owned())]);
    }

    #[test]
    fn this_release_promises_what_it_says() {
        for number in [
            1, 6, 10, 15, 49, 58, 60, 65, 66, 72, 73, 75, 78, 80, 89, 90, 96, 97, 99, 100, 103,
            107, 108, 110, 112,
        ] {
            assert!(is_expected(number), "{number}");
        }
        // The contract has no such lines.
        for number in [0, 59, 113] {
            assert!(!is_expected(number), "{number}");
        }
    }
}

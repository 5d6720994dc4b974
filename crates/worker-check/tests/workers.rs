//! Drives real workers through the suite: those of this repository must pass.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use windlass_worker_check::{CaseVerdict, CheckPlan, CheckReport, SnippetSet, check, page};

const BOOT: &str = "import sys; sys.path.insert(0, sys.argv.pop()); \
    from windlass_worker.main import main; del sys.path[0]; main()";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Whether a program is there. Otherwise the test is skipped.
fn has(program: &str, argument: &str) -> bool {
    let run = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let has = run.is_ok_and(|status| status.success());
    if !has {
        println!("skipped: {program} is not there");
    }
    has
}

fn plan(language: &str, command: &[&str]) -> CheckPlan {
    // A developer can run some cases only: WINDLASS_CHECK_CASES="input input-eof".
    let cases = std::env::var("WINDLASS_CHECK_CASES").unwrap_or_default();
    CheckPlan {
        command: command.iter().map(|part| (*part).to_owned()).collect(),
        environment: vec![],
        snippets: Some(SnippetSet::built_in(language).unwrap()),
        cases: cases.split_whitespace().map(str::to_owned).collect(),
        step_time: Duration::from_secs(20),
    }
}

fn check_all(plan: &CheckPlan) -> CheckReport {
    let report = check(plan, |_| {}).unwrap();
    println!("{}", page::render(&report, &|_, text| text.to_owned()));
    report
}

/// All cases pass, advisory ones too. Cases that are not applicable are `left_out`.
fn passes(report: &CheckReport, left_out: &[&str]) {
    let (_, failed, _) = report.counts();
    assert_eq!(failed, 0);
    for case in &report.cases {
        if let CaseVerdict::NotApplicable(why) = &case.verdict {
            assert!(left_out.contains(&case.name), "{}: {why}", case.name);
        }
    }
}

#[test]
fn the_python_worker_passes() {
    if !has("python3", "--version") {
        return;
    }
    let directory = repository().join("workers/python");
    let directory = directory.to_str().unwrap();
    passes(&check_all(&plan("python", &["python3", "-B", "-u", "-c", BOOT, directory])), &[]);
}

#[test]
fn the_tiny_perl_worker_passes() {
    if !has("perl", "-MJSON::PP") {
        return;
    }
    let program = repository().join("workers/tiny/worker.pl");
    passes(&check_all(&plan("perl", &["perl", program.to_str().unwrap()])), &[]);
}

#[test]
fn the_example_of_the_protocol_document_passes() {
    if !has("python3", "--version") {
        return;
    }
    let document = std::fs::read_to_string(repository().join("docs/protocol.md")).unwrap();
    let (_, example) = document.split_once("```python\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("worker.py");
    std::fs::write(&program, example).unwrap();
    let mut plan = plan("python", &["python3", program.to_str().unwrap()]);
    plan.snippets = Some(SnippetSet::parse(include_str!("expressions.toml")).unwrap());
    let left_out = [
        "interrupt-displays",
        "display",
        "tool",
        "tool-wrong-call",
        "tool-chunked",
        "tool-fails-halfway",
        "tool-interrupted",
    ];
    passes(&check_all(&plan), &left_out);
}

#[test]
fn every_piece_of_the_tutorial_is_in_the_tiny_worker() {
    let tutorial = std::fs::read_to_string(repository().join("docs/write-a-worker.md")).unwrap();
    let program = std::fs::read_to_string(repository().join("workers/tiny/worker.pl")).unwrap();
    let pieces: Vec<&str> =
        tutorial.split("```perl\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(pieces.len() > 5);
    for piece in pieces {
        assert!(program.contains(piece), "the worker does not have:\n{piece}");
    }
}

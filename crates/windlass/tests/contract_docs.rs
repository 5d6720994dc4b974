//! Contract line 78: the code blocks of README and docs do what the text says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use windlass_suites::docs::{self, PageReport};
use windlass_testkit::skip;

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// The ordinary user that `.ci/run` creates.
const USER: &str = "windlass-test";

#[test]
fn contract_78_every_code_block_runs_as_it_is_printed() {
    check(None);
}

#[test]
fn contract_78_every_code_block_runs_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return skip("the other test of this line runs as an ordinary user already");
    }
    if !Command::new("id").arg(USER).output().unwrap().status.success() {
        return skip(format!("there is no user {USER}"));
    }
    check(Some(USER));
}

fn check(user: Option<&str>) {
    let mut failures = Vec::new();
    for (page, result) in docs::check_pages(Path::new(PROGRAM), &[], user).unwrap() {
        match result {
            Ok(PageReport::Skipped { reason }) => skip(format!("{page}: {reason}")),
            Ok(report @ PageReport::Ran { .. }) => print!("{}", report.text(&page)),
            Err(error) => failures.push(format!("{page}: {error:#}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

//! Contract lines 110 and 111: what sessions print or display cannot reach the console's page, and a page that was open
//! while its node was restarted loses and doubles nothing. The tests are those of `console/tests/browser`, in a real
//! Chromium; here they are run line by line. `cargo xtask console` runs all of them, and installs what they need.

use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Runs a file of tests in the browser; it must pass.
fn passes_in_the_browser(file: &str) {
    let console = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console");
    if !console.join("node_modules/playwright-core").is_dir() {
        return windlass_testkit::skip("`npm ci` was not run in `console`");
    }
    let Ok(browser) = std::env::var("WINDLASS_TEST_CHROMIUM") else {
        return windlass_testkit::skip("WINDLASS_TEST_CHROMIUM names no browser");
    };
    let node = std::env::var("WINDLASS_TEST_NODE").unwrap_or_else(|_| "node".to_owned());
    let mut tests = Command::new(node);
    tests.args(["--test", "--test-timeout=120000"]).arg(Path::new("tests/browser").join(file));
    tests.env("WINDLASS_TEST_CHROMIUM", browser).env("WINDLASS_CONSOLE_PROGRAM", PROGRAM);
    // It would replace the files in the program, which are the ones to test.
    tests.env_remove("WINDLASS_TEST_CONSOLE_DIST");
    let ended = tests.current_dir(console).stdin(Stdio::null()).output().expect("cannot run node");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
    // A file without tests passes too.
    let passed = said.lines().find_map(|line| line.split_once("pass ")?.1.trim().parse().ok());
    assert!(passed.is_some_and(|passed: u32| passed > 0), "no test was run:\n{said}");
}

#[test]
fn contract_110_output_and_displays_cannot_reach_the_page() {
    passes_in_the_browser("output-attacks.test.mjs");
}

#[test]
fn contract_111_an_open_page_goes_on_over_restarts_of_the_node() {
    passes_in_the_browser("restart.test.mjs");
}

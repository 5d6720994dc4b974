//! Reads nextest's JUnit report: the name, time and result of each test.

use std::time::Duration;

use anyhow::{Context, Result};
use quick_junit::{Report, TestCase, TestCaseStatus};

/// The most characters of a failure message. The output of the test has the rest.
const REASON_CHARS_MAX: usize = 1000;

/// The start of the line with which a test says why it could not run.
const SKIP_MARK: &str = "contract-skip: ";

/// One test of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContractTest {
    pub name: String,
    pub passed: bool,
    /// Why the test, or a part of it, could not run here.
    pub skipped: Option<String>,
    pub time: Duration,
    /// The failure message with its location. Empty if the test passed or printed none.
    pub reason: String,
}

pub fn parse(xml: &str) -> Result<Vec<ContractTest>> {
    let report =
        Report::deserialize_from_str(xml).context("cannot parse nextest's JUnit report")?;
    let cases = report.test_suites.into_iter().flat_map(|suite| suite.test_cases);
    Ok(cases.map(ContractTest::from).collect())
}

impl From<TestCase> for ContractTest {
    fn from(case: TestCase) -> Self {
        let reason = match &case.status {
            TestCaseStatus::NonSuccess { description: Some(text), .. } => reason(text.as_str()),
            _ => String::new(),
        };
        Self {
            passed: matches!(case.status, TestCaseStatus::Success { .. }),
            skipped: case.system_out.and_then(|output| skip_reason(output.as_str())),
            time: case.time.unwrap_or_default(),
            name: case.name.into_string(),
            reason,
        }
    }
}

/// The first reason that the test gave for not running (`windlass_testkit::skip`).
fn skip_reason(output: &str) -> Option<String> {
    let reason = output.lines().find_map(|line| line.trim_start().strip_prefix(SKIP_MARK))?;
    Some(shortened(reason))
}

/// The panic message of a test, without the backtrace.
fn reason(text: &str) -> String {
    shortened(text.split("\nstack backtrace:").next().unwrap_or_default())
}

fn shortened(text: &str) -> String {
    text.trim().chars().take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_and_failed_tests_are_told_apart() {
        let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="2" failures="1">
    <testsuite name="windlass::turns" tests="2">
        <testcase name="contract_01_a" classname="windlass::turns" time="0.250">
        </testcase>
        <testcase name="m::contract_02_b" classname="windlass::turns" time="1.5">
            <failure type="test failure">&lt;testcase name=&quot;no&quot;&gt;
stack backtrace:
   0: far away</failure>
        </testcase>
        <testcase name="contract_03_c" classname="windlass::turns" time="0.1"/>
    </testsuite>
</testsuites>"#;
        let cases = parse(xml).unwrap();
        let seen: Vec<_> = cases.iter().map(|case| (case.name.as_str(), case.passed)).collect();
        assert_eq!(
            seen,
            [("contract_01_a", true), ("m::contract_02_b", false), ("contract_03_c", true)]
        );
        assert_eq!(cases[1].time, Duration::from_millis(1500));
        let reasons: Vec<_> = cases.iter().map(|case| case.reason.as_str()).collect();
        assert_eq!(reasons, ["", "<testcase name=\"no\">", ""]);
    }

    #[test]
    fn a_test_that_says_so_is_skipped() {
        let xml = r#"<testsuites><testsuite name="a"><testcase name="contract_01_a" time="0.1">
            <system-out>running 1 test
contract-skip: no &lt;cgroup&gt; here
test contract_01_a ... ok</system-out>
        </testcase>
        <testcase name="contract_02_b" time="0.1"><system-out>fine</system-out></testcase>
        </testsuite></testsuites>"#;
        let cases = parse(xml).unwrap();
        let skipped: Vec<_> = cases.iter().map(|case| case.skipped.as_deref()).collect();
        assert_eq!(skipped, [Some("no <cgroup> here"), None]);
        assert!(cases.iter().all(|case| case.passed));
    }

    #[test]
    fn a_report_cut_within_a_test_is_an_error() {
        assert!(parse("<testcase name=\"contract_01_a\"").is_err());
    }
}

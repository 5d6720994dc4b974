//! Reads nextest's JUnit report: the name, time and result of each test. This is no general XML parser: it
//! relies on nextest, which always escapes text.

use std::time::Duration;

use anyhow::{Context, Result};

/// The most characters of a failure message. The output of the test has the rest.
const REASON_CHARS_MAX: usize = 1000;

/// The start of the line with which a test says why it could not run.
const SKIP_MARK: &str = "contract-skip: ";

/// One test of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestCase {
    pub name: String,
    pub passed: bool,
    /// Why the test, or a part of it, could not run here.
    pub skipped: Option<String>,
    pub time: Duration,
    /// The failure message with its location. Empty if the test passed or printed none.
    pub reason: String,
}

pub fn parse(xml: &str) -> Result<Vec<TestCase>> {
    // Escaped text has no `<`, so this is always the element.
    xml.split("<testcase ").skip(1).map(case).collect()
}

/// Reads the text from one `<testcase ` to the next.
fn case(text: &str) -> Result<TestCase> {
    let end = text.find('>').context("the JUnit report ends within a test")?;
    let (tag, rest) = text.split_at(end);
    let name = attribute(tag, "name").context("the JUnit report has a test without a name")?;
    let time = attribute(tag, "time").and_then(|time| time.parse().ok()).unwrap_or(0.0);
    let body = if tag.ends_with('/') { "" } else { rest.split("</testcase>").next().unwrap_or("") };
    let passed = !["<failure", "<error", "<skipped"].iter().any(|element| body.contains(element));
    let time = Duration::try_from_secs_f64(time)?;
    let skipped = skip_reason(body);
    Ok(TestCase { name: name.to_owned(), passed, skipped, time, reason: reason(body) })
}

/// The first reason that the test gave for not running (`windlass_testkit::skip`).
fn skip_reason(body: &str) -> Option<String> {
    let (_, output) = body.split_once("<system-out>")?;
    let output = output.split("</system-out>").next()?;
    let reason = output.lines().find_map(|line| line.trim_start().strip_prefix(SKIP_MARK))?;
    Some(plain(reason.trim()))
}

/// The panic message of a test, without the backtrace.
fn reason(body: &str) -> String {
    let Some((_, failure)) = body.split_once("<failure") else { return String::new() };
    let text = failure.split_once('>').map_or("", |(_, text)| text);
    let text = text.split('<').next().unwrap_or_default();
    let text = text.split("\nstack backtrace:").next().unwrap_or_default();
    plain(text.trim())
}

/// Text without XML escapes, cut to [`REASON_CHARS_MAX`].
fn plain(text: &str) -> String {
    let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain));
    plain.chars().take(REASON_CHARS_MAX).collect()
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mark = format!("{name}=\"");
    let at = tag.match_indices(&mark).find(|(at, _)| *at == 0 || tag[..*at].ends_with(' '))?.0;
    tag[at + mark.len()..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_and_failed_tests_are_told_apart() {
        let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="2" failures="1">
    <testsuite name="windlass::turns" tests="2">
        <testcase name="contract_01_a" classname="windlass::turns" timestamp="x" time="0.250">
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
        let xml = r#"<testcase name="contract_01_a" time="0.1">
            <system-out>running 1 test
contract-skip: no &lt;cgroup&gt; here
test contract_01_a ... ok</system-out>
        </testcase>
        <testcase name="contract_02_b" time="0.1"><system-out>fine</system-out></testcase>"#;
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

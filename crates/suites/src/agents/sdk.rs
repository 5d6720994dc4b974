//! The clients of the official MCP SDKs. A script for each language runs the checks and prints one JSON
//! object per check. The list of checks is here, so that a check is failed if the script ends before it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;

use super::client_home::{ClientHome, ProgramExit};
use super::install::Installed;
use super::leftovers;
use super::row::CheckRow;
use super::{AgentsReport, ClientUnderTest};

/// `sdk.py PROGRAM REVISION`
const PYTHON: &str = include_str!("sdk.py");

/// `sdk.mjs PROGRAM REVISION DIRECTORY`. The directory holds the SDK's package.
const TYPESCRIPT: &str = include_str!("sdk.mjs");

/// The MCP revisions of the newest and of the older SDKs.
const NEWEST: &str = "2026-07-28";
const OLDER: &str = "2025-11-25";

/// How long all checks of one client may take.
const CLIENT_WAIT: Duration = Duration::from_secs(120);

/// The names of all checks. Both scripts use the same names.
const CHECKS: [&str; 11] = [
    "the revision is negotiated",
    "the tools are listed",
    "code runs",
    "structured content matches the output schema",
    "a variable is kept",
    "a picture is image content",
    "an exception is a tool error",
    "a long turn reports progress",
    "a cancelled call stops its turn",
    "the full output is a resource",
    "the session is listed",
];

#[derive(Debug, Deserialize)]
struct ScriptCheck {
    check: String,
    passed: bool,
    words: String,
    seconds: f64,
}

pub async fn play(
    client: ClientUnderTest,
    installed: &Installed,
    program: &Path,
    report: &mut AgentsReport,
) -> Result<()> {
    let home = ClientHome::prepare(program, &installed.node_bin())?;
    let ended = home.run(script(client, installed, &home), CLIENT_WAIT).await?;
    for checked in checked(&ended) {
        report.add(row(client, checked));
    }
    let began = Instant::now();
    let left = leftovers::check(&home, 1).await;
    report.add(row(
        client,
        ScriptCheck {
            check: "only the node and its sessions are left".to_owned(),
            passed: left.is_ok(),
            words: left.err().unwrap_or_default(),
            seconds: began.elapsed().as_secs_f64(),
        },
    ));
    Ok(())
}

fn script(client: ClientUnderTest, installed: &Installed, home: &ClientHome) -> Command {
    let directory = installed.directory(client);
    let revision = match client {
        ClientUnderTest::PythonSdkOlder | ClientUnderTest::TypescriptSdkOlder => OLDER,
        _ => NEWEST,
    };
    let mut command = match client {
        ClientUnderTest::TypescriptSdk | ClientUnderTest::TypescriptSdkOlder => {
            let mut node = home.command(installed.node_bin().join("node"));
            node.args(["--input-type=module", "--eval", TYPESCRIPT, "--"]);
            node
        }
        _ => {
            let mut python = home.command(directory.join("bin/python"));
            python.args(["-c", PYTHON]);
            python
        }
    };
    command.arg(home.node().program()).arg(revision).arg(directory);
    command
}

/// All checks in their order. A check that the script did not report is failed.
fn checked(ended: &ProgramExit) -> Vec<ScriptCheck> {
    let lines = ended.stdout.lines();
    let mut told: Vec<ScriptCheck> =
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    let all = CHECKS.iter().map(|check| {
        let at = told.iter().position(|checked| checked.check == *check);
        at.map(|at| told.swap_remove(at)).unwrap_or_else(|| ScriptCheck {
            check: (*check).to_owned(),
            passed: false,
            words: format!("the script did not report this check; {}", ended.summary()),
            seconds: 0.0,
        })
    });
    all.collect()
}

fn row(client: ClientUnderTest, checked: ScriptCheck) -> CheckRow {
    let ScriptCheck { check, passed, words, seconds } = checked;
    CheckRow { client, version: Installed::version(client), check, passed, words, seconds }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::super::client_home::ClientExit;
    use super::*;

    #[test]
    fn a_check_that_a_script_does_not_tell_has_failed() {
        let stdout =
            "noise\n{\"check\":\"code runs\",\"passed\":true,\"words\":\"\",\"seconds\":1}\n";
        let ended = ProgramExit {
            cause: ClientExit::Exited(ExitStatus::from_raw(256)),
            stdout: stdout.to_owned(),
            stderr: "Traceback\nboom\n".to_owned(),
        };
        let checked = checked(&ended);
        assert_eq!(checked.len(), CHECKS.len());
        let passed: Vec<_> =
            checked.iter().filter(|one| one.passed).map(|one| &one.check).collect();
        assert_eq!(passed, ["code runs"]);
        assert!(checked[0].words.ends_with("Traceback | boom"), "{}", checked[0].words);
    }

    #[test]
    fn both_scripts_tell_every_check() {
        for script in [PYTHON, TYPESCRIPT] {
            for check in CHECKS {
                assert!(script.contains(&format!("\"{check}\"")), "{check}");
            }
        }
    }
}

//! The official SDKs' clients: a script for each language, which prints one JSON object a check.
//! What must be checked is listed here, so that a script that ends early has failed.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;

use super::install::Installed;
use super::leftovers;
use super::place::{Ended, Place};
use super::row::Row;
use super::{Client, Report};

/// `sdk.py PROGRAM REVISION`
const PYTHON: &str = include_str!("sdk.py");

/// `sdk.mjs PROGRAM REVISION DIRECTORY`, the directory being that of the packages.
const TYPESCRIPT: &str = include_str!("sdk.mjs");

/// The revisions of MCP that the SDKs' generations speak.
const NEWEST: &str = "2026-07-28";
const OLDER: &str = "2025-11-25";

/// How long all checks of one client may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What each script checks, in its words.
const CHECKS: [&str; 11] = [
    "the revision is negotiated",
    "the tools are listed",
    "code runs",
    "structured content fits the output schema",
    "a variable is kept",
    "a picture is image content",
    "an exception is a tool error",
    "a long turn tells its progress",
    "a cancelled call stops its turn",
    "the full output is a resource",
    "the session is listed",
];

#[derive(Debug, Deserialize)]
struct Checked {
    check: String,
    passed: bool,
    words: String,
    seconds: f64,
}

pub async fn play(
    client: Client,
    installed: &Installed,
    program: &Path,
    report: &mut Report,
) -> Result<()> {
    let place = Place::prepare(program, &installed.node_bin())?;
    let ended = place.run(script(client, installed, &place), PATIENCE).await?;
    for checked in checked(&ended) {
        report.add(row(client, checked));
    }
    let began = Instant::now();
    let left = leftovers::check(&place, 1).await;
    report.add(row(
        client,
        Checked {
            check: "nothing is left but the node and its sessions".to_owned(),
            passed: left.is_ok(),
            words: left.err().unwrap_or_default(),
            seconds: began.elapsed().as_secs_f64(),
        },
    ));
    Ok(())
}

fn script(client: Client, installed: &Installed, place: &Place) -> Command {
    let directory = installed.directory(client);
    let revision = match client {
        Client::PythonSdkOlder | Client::TypescriptSdkOlder => OLDER,
        _ => NEWEST,
    };
    let mut command = match client {
        Client::TypescriptSdk | Client::TypescriptSdkOlder => {
            let mut node = place.command(installed.node_bin().join("node"));
            node.args(["--input-type=module", "--eval", TYPESCRIPT, "--"]);
            node
        }
        _ => {
            let mut python = place.command(directory.join("bin/python"));
            python.args(["-c", PYTHON]);
            python
        }
    };
    command.arg(place.node().program()).arg(revision).arg(directory);
    command
}

/// Every check, in its order: as the script told it, or as failed since it told nothing.
fn checked(ended: &Ended) -> Vec<Checked> {
    let lines = ended.stdout.lines();
    let mut told: Vec<Checked> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    let all = CHECKS.iter().map(|check| {
        let at = told.iter().position(|checked| checked.check == *check);
        at.map(|at| told.swap_remove(at)).unwrap_or_else(|| Checked {
            check: (*check).to_owned(),
            passed: false,
            words: format!("not told; {}", ended.last_words()),
            seconds: 0.0,
        })
    });
    all.collect()
}

fn row(client: Client, checked: Checked) -> Row {
    let Checked { check, passed, words, seconds } = checked;
    Row { client, version: Installed::version(client), check, passed, words, seconds }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::super::place::How;
    use super::*;

    #[test]
    fn a_check_that_a_script_does_not_tell_has_failed() {
        let stdout =
            "noise\n{\"check\":\"code runs\",\"passed\":true,\"words\":\"\",\"seconds\":1}\n";
        let ended = Ended {
            how: How::ByItself(ExitStatus::from_raw(256)),
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

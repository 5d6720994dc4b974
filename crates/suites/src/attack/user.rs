//! The ordinary user's half of a run, when root runs the command. It creates the user, copies `windlass` and
//! `xtask` to a directory that the user can read, and runs this program again as that user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::row::AttackRow;
use super::{Args, must};
use crate::workspace;

/// The same user that `.ci/run` runs tests as.
const USER: &str = "windlass-test";

/// The directory for the copied programs and the user's test files. Neither /tmp nor /var/tmp: a session has
/// its own private /tmp and /var/tmp.
const PARENT: &str = "/srv";

/// Environment variables to pass on to the user's half: the start method of the nodes, and the directory of
/// the attacks.
const PASSED_VARIABLES: [&str; 2] = ["WINDLASS_TEST_START", "WINDLASS_TEST_ATTACKS"];

pub fn play(program: &Path, args: &Args) -> Result<Vec<AttackRow>> {
    if workspace::output_of(Command::new("id").arg(USER)).is_err() {
        must(Command::new("useradd").args(["--system", "--no-create-home", USER]))?;
    }
    let directory = tempfile::Builder::new().prefix("wl-").tempdir_in(PARENT)?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let (windlass, xtask) = (directory.path().join("windlass"), directory.path().join("xtask"));
    fs::copy(program, &windlass)?;
    fs::copy(std::env::current_exe()?, &xtask)?;
    let stage = directory.path().join("stage");
    fs::create_dir(&stage)?;
    must(Command::new("chown").arg(USER).arg(&stage))?;
    let mut words = vec![
        "cd /tmp && env -i HOME=/tmp PATH=/usr/bin:/bin".to_owned(),
        format!("WINDLASS_TEST_PLACE={}", stage.display()),
    ];
    for name in PASSED_VARIABLES {
        words.extend(std::env::var(name).map(|value| format!("{name}={value}")));
    }
    words.extend([
        xtask.display().to_string(),
        "attack --half".to_owned(),
        windlass.display().to_string(),
    ]);
    words.push(format!("--worker {}", args.worker.as_str()));
    if !args.only.is_empty() {
        words.push(format!("--only {}", args.only.join(",")));
    }
    if !args.level.is_empty() {
        let levels: Vec<&str> = args.level.iter().map(|level| level.as_str()).collect();
        words.push(format!("--level {}", levels.join(",")));
    }
    if !args.network.is_empty() {
        let networks: Vec<&str> = args.network.iter().map(|one| one.as_str()).collect();
        words.push(format!("--network {}", networks.join(",")));
    }
    let mut su = Command::new("su");
    su.args([USER, "-s", "/bin/sh", "-c"]).arg(words.join(" ")).current_dir("/tmp");
    let text = workspace::output_of(&mut su)?;
    let read = |line: &str| {
        serde_json::from_str(line)
            .with_context(|| format!("cannot parse this line of the user's half: {line:?}"))
    };
    text.lines().map(read).collect()
}

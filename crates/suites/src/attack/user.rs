//! The half of a run that an ordinary user plays, when root runs the command: the user is made, the
//! two programs are put where it can read them, and this program is run again as that user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::row::Row;
use super::{Args, must};
use crate::workspace;

/// The user that tests run as, as in `.ci/run`.
const USER: &str = "windlass-test";

/// Where the programs and the user's stage are put.
const PLACE: &str = "/srv";

/// What this command was told by variables, and its half is too: how nodes start workers, and where the
/// programs are.
const PASSED_ON: [&str; 2] = ["WINDLASS_TEST_START", "WINDLASS_TEST_ATTACKS"];

pub fn play(program: &Path, args: &Args) -> Result<Vec<Row>> {
    if workspace::output_of(Command::new("id").arg(USER)).is_err() {
        must(Command::new("useradd").args(["--system", "--no-create-home", USER]))?;
    }
    let place = tempfile::Builder::new().prefix("wl-").tempdir_in(PLACE)?;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755))?;
    let (windlass, xtask) = (place.path().join("windlass"), place.path().join("xtask"));
    fs::copy(program, &windlass)?;
    fs::copy(std::env::current_exe()?, &xtask)?;
    // The stage is put up here: neither in /tmp nor in /var/tmp, of which a session has its own.
    let stage = place.path().join("stage");
    fs::create_dir(&stage)?;
    must(Command::new("chown").arg(USER).arg(&stage))?;
    let mut words = vec![
        "cd /tmp && env -i HOME=/tmp PATH=/usr/bin:/bin".to_owned(),
        format!("WINDLASS_TEST_PLACE={}", stage.display()),
    ];
    for name in PASSED_ON {
        words.extend(std::env::var(name).map(|value| format!("{name}={value}")));
    }
    words.extend([
        xtask.display().to_string(),
        "attack --half".to_owned(),
        windlass.display().to_string(),
    ]);
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
        serde_json::from_str(line).with_context(|| format!("the user's half says {line:?}"))
    };
    text.lines().map(read).collect()
}

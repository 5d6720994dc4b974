//! The interpreter that measurements use: real CPython, in a clean environment, since inherited
//! variables and site files slow its start and would measure the machine's setup.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Names another interpreter for the measurements.
const VARIABLE: &str = "WINDLASS_BENCH_PYTHON";

/// The system's own; one managed by a tool may start through a shim.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// The interpreter's path.
pub fn path() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| SYSTEM_PYTHON.into(), PathBuf::from)
}

/// The interpreter with nothing of this process's environment.
pub fn command() -> Command {
    command_of(path())
}

/// Another program in the same clean environment.
pub fn command_of(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8");
    command
}

/// From the start of a command to the first byte that it writes. It has ended when this returns.
pub fn first_byte(command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let mut byte = [0; 1];
    let read = child.stdout.as_mut().context("no output")?.read_exact(&mut byte);
    let took = started.elapsed();
    child.wait()?;
    read.with_context(|| format!("{command:?} said nothing"))?;
    Ok(took)
}

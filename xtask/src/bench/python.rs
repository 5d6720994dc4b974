//! The interpreter for measurements: CPython in a clean environment. Inherited variables and site files would
//! slow its start, and the figures would depend on the machine's setup.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The variable that names another interpreter for the measurements.
const VARIABLE: &str = "WINDLASS_BENCH_PYTHON";

/// The system's Python. A Python of a version manager may start through a slow shim.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// The interpreter's path.
pub fn path() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| SYSTEM_PYTHON.into(), PathBuf::from)
}

/// A command that runs the interpreter with no inherited variables.
pub fn command() -> Command {
    command_of(path())
}

/// A command that runs another program in the same clean environment.
pub fn command_of(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8");
    command
}

/// The time from the start of a command to the first byte of its output. Waits for the end of the command.
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
    read.with_context(|| format!("{command:?} printed nothing"))?;
    Ok(took)
}

//! The interpreter that measurements use: real CPython, in a clean environment, since inherited
//! variables and site files slow its start and would measure the machine's setup.

use std::path::PathBuf;
use std::process::Command;

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
    let mut command = Command::new(path());
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8");
    command
}

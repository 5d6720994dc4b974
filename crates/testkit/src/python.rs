//! The Python interpreter that the sessions of the tests use.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

/// A real CPython: `WINDLASS_TEST_PYTHON`, or the system's. Never a Python from PATH, which may be a shim
/// that starts another one.
pub fn python() -> PathBuf {
    std::env::var_os("WINDLASS_TEST_PYTHON")
        .map_or_else(|| PathBuf::from("/usr/bin/python3"), PathBuf::from)
}

/// A Python with matplotlib and numpy: `WINDLASS_TEST_MATPLOTLIB_PYTHON`, or a virtual environment beside
/// `tmp`, cargo's directory for tests. The environment is created once and kept.
pub fn python_with_matplotlib(tmp: &str) -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("WINDLASS_TEST_MATPLOTLIB_PYTHON") {
        return Ok(named.into());
    }
    let place = Path::new(tmp).with_file_name("contract-venv");
    let interpreter = place.join("bin/python");
    let has = Command::new(&interpreter).args(["-c", "import matplotlib, numpy"]).status();
    if !has.is_ok_and(|status| status.success()) {
        let made = Command::new(python()).args(["-m", "venv"]).arg(&place).status()?;
        ensure!(made.success(), "cannot create the virtual environment {}", place.display());
        let install = ["-m", "pip", "install", "--quiet", "matplotlib", "numpy"];
        let installed = Command::new(&interpreter).args(install).status()?;
        ensure!(installed.success(), "cannot install matplotlib into {}", place.display());
    }
    Ok(interpreter)
}

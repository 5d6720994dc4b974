//! Figures of other tools. `jupyter_*`: the same figures with Jupyter (jupyter_client and ipykernel from
//! PyPI, in a virtual environment below the target directory). `bwrap_python`: the time from the start of
//! bubblewrap with an interpreter to the first byte of its answer. A confined session that starts its own
//! interpreter cannot be faster.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::figure::{Figure, millis};
use super::{BenchPlan, python};
use crate::start::PythonEnvironment;

/// The script prints one JSON object: for each figure a list of samples in milliseconds or MiB.
const SCRIPT: &str = include_str!("jupyter.py");

const ROUNDS: usize = 300;
const BWRAP_ROUNDS: usize = 40;
const BWRAP_PANDAS_ROUNDS: usize = 15;

#[derive(Debug, Deserialize)]
struct JupyterSamples {
    warm_turn: Vec<f64>,
    first_answer: Vec<f64>,
    interrupt_sleep: Vec<f64>,
    session_mib: Vec<f64>,
}

pub fn jupyter(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let venv = prepare()?;
    let output = Command::new(venv.join("bin/python"))
        .args(["-c", SCRIPT, &plan.rounds(ROUNDS).to_string()])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", &venv)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the Jupyter measurement failed: {said}");
    let measured: JupyterSamples = serde_json::from_slice(&output.stdout)
        .context("the Jupyter measurement printed no figures")?;
    Ok(vec![
        Figure::of("jupyter_warm_turn", "ms", &measured.warm_turn),
        Figure::of("jupyter_first_answer", "ms", &measured.first_answer),
        Figure::of("jupyter_interrupt_sleep", "ms", &measured.interrupt_sleep),
        Figure::of("jupyter_session_mib", "MiB", &measured.session_mib),
    ])
}

/// `bwrap_python` and `bwrap_python_np`. The baseline of each is the same interpreter without a sandbox.
pub fn bwrap_pythons(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let pandas = PythonEnvironment::with_pandas()?.interpreter;
    Ok(vec![
        bwrap_python("bwrap_python", &python::path(), "print(1+1)", plan.rounds(BWRAP_ROUNDS))?,
        bwrap_python(
            "bwrap_python_np",
            &pandas,
            "import numpy, pandas; print(1+1)",
            plan.rounds(BWRAP_PANDAS_ROUNDS),
        )?,
    ])
}

fn bwrap_python(name: &str, interpreter: &Path, code: &str, rounds: usize) -> Result<Figure> {
    let (mut wrapped, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        wrapped.push(python::first_byte(&mut super::confined::bwrap(interpreter, code))?);
        let mut alone = python::command_of(interpreter);
        bare.push(python::first_byte(alone.args(["-c", code]))?);
    }
    Ok(Figure::of_times(name, &wrapped).beside(&millis(&bare)))
}

/// Installs bubblewrap if it is missing. The measurement is in `confined`.
pub fn install_bwrap() -> Result<()> {
    if super::confined::bwrap_is_installed() {
        return Ok(());
    }
    let installed = Command::new("apt-get").args(["install", "--yes", "bubblewrap"]).status();
    let installed = installed.context("bwrap is not installed, and there is no apt-get")?;
    ensure!(installed.success(), "bwrap is not installed, and apt-get could not install it");
    Ok(())
}

/// Creates the virtual environment with Jupyter, if it is missing, and returns its path.
fn prepare() -> Result<PathBuf> {
    let venv = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-peers")).to_owned();
    if !venv.join("bin/jupyter").exists() {
        let made = python::command().args(["-m", "venv"]).arg(&venv).status()?;
        ensure!(made.success(), "cannot create a virtual environment in {}", venv.display());
        // This process's environment is passed on: pip needs its settings to find its index.
        let installed = Command::new(venv.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "jupyter_client", "ipykernel"])
            .status()?;
        ensure!(installed.success(), "cannot install jupyter_client and ipykernel");
    }
    Ok(venv)
}

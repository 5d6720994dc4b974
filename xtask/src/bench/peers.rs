//! Figures of other tools. `jupyter_*`: the same figures with Jupyter (jupyter_client and ipykernel from
//! PyPI, in a virtual environment below the target directory). `bwrap_python`: the time from the start of
//! bubblewrap with an interpreter to the first byte of its answer. A confined session that starts its own
//! interpreter cannot be faster.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::figure::{Figure, millis};
use super::kernels::{self, KernelRounds};
use super::{BenchPlan, python};
use crate::start::PythonEnvironment;

const ROUNDS: usize = 300;
/// Starts and interrupts take longer than turns, so there are fewer of them.
const TURNS_PER_START: usize = 50;
const STARTS_MIN: usize = 3;
const BWRAP_ROUNDS: usize = 40;
const BWRAP_PANDAS_ROUNDS: usize = 15;

pub fn jupyter(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let starts = (plan.rounds(ROUNDS) / TURNS_PER_START).max(STARTS_MIN);
    let rounds = KernelRounds {
        turns: plan.rounds(ROUNDS),
        starts,
        interrupts: starts,
        ..KernelRounds::default()
    };
    let measured = kernels::samples(&kernels::install_python()?, &kernels::IPYKERNEL, rounds)?;
    let measured = measured.map_err(anyhow::Error::msg)?;
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

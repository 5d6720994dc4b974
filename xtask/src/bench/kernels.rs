//! Jupyter kernels that jupyter_client drives directly, without Windlass: `kind_*_jupyter_ipykernel`, `_ir` and
//! `_deno`. They are baselines for the kinds of worker in `kinds`. `peers` uses the same script.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;

use super::figure::Figure;
use super::{BenchPlan, Measurement, python};

/// A Python with ipykernel and jupyter_client.
const PYTHON_VARIABLE: &str = "WINDLASS_TEST_JUPYTER_PYTHON";
/// The program of Deno.
const DENO_VARIABLE: &str = "WINDLASS_TEST_DENO";

/// The script prints one JSON object: for each figure a list of samples in milliseconds or MiB.
const SCRIPT: &str = include_str!("jupyter.py");

const TURNS: usize = 100;
const STARTS: usize = 5;
const INTERRUPTS: usize = 40;
const WARM_UP_TURNS: usize = 20;

macro_rules! measurement {
    ($name:literal, $kernel:path) => {
        Measurement {
            figures: &[
                concat!("kind_warm_turn_jupyter_", $name),
                concat!("kind_first_answer_exec_jupyter_", $name),
                concat!("kind_idle_mib_jupyter_", $name),
                concat!("kind_interrupt_sleep_jupyter_", $name),
                concat!("kind_interrupt_busy_jupyter_", $name),
            ],
            measure: |plan| measure(plan, $name, &$kernel),
        }
    };
}

pub const BENCHES: &[Measurement] =
    &[measurement!("ipykernel", IPYKERNEL), measurement!("ir", IR), measurement!("deno", DENO)];

/// A kernel, and its code for each figure.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MeasuredKernel {
    kernel: &'static str,
    code: &'static str,
    /// `None` for a kernel that may sleep on after an interrupt.
    sleep: Option<&'static str>,
    busy: &'static str,
}

pub const IPYKERNEL: MeasuredKernel = MeasuredKernel {
    kernel: "python3",
    code: "1+1",
    sleep: Some("import time; print('go'); time.sleep(60)"),
    busy: "print('go')\nwhile True: pass",
};

const IR: MeasuredKernel = MeasuredKernel {
    kernel: "ir",
    code: "1+1",
    sleep: Some("cat('go\\n'); Sys.sleep(60)"),
    busy: "cat('go\\n'); repeat {}",
};

const DENO: MeasuredKernel = MeasuredKernel {
    kernel: "deno",
    code: "1+1",
    sleep: None,
    busy: "console.log('go'); for (;;);",
};

/// How often each part of a kernel is measured.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct KernelRounds {
    pub turns: usize,
    /// Turns before the first measured turn.
    pub warm_ups: usize,
    pub starts: usize,
    pub interrupts: usize,
}

/// Times are in milliseconds, sizes in MiB.
#[derive(Debug, Deserialize)]
pub struct KernelSamples {
    pub warm_turn: Vec<f64>,
    pub first_answer: Vec<f64>,
    pub session_mib: Vec<f64>,
    pub interrupt_sleep: Vec<f64>,
    pub interrupt_busy: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum KernelReport {
    Measured(KernelSamples),
    Missing { missing: String },
}

fn measure(plan: &BenchPlan, name: &str, kernel: &MeasuredKernel) -> Result<Vec<Figure>> {
    let rounds = KernelRounds {
        turns: plan.rounds(TURNS),
        warm_ups: WARM_UP_TURNS,
        starts: plan.rounds(STARTS),
        interrupts: plan.rounds(INTERRUPTS),
    };
    let samples = match find_python() {
        Ok(python) => samples(&python, kernel, rounds)?,
        Err(missing) => Err(missing),
    };
    let samples = match samples {
        Ok(samples) => samples,
        Err(missing) => {
            eprintln!("skipped: kind_*_jupyter_{name}: {missing}");
            return Ok(Vec::new());
        }
    };
    let figure = |part: &str, unit: &str, samples: &[f64]| {
        Figure::of(&format!("kind_{part}_jupyter_{name}"), unit, samples)
    };
    if kernel.sleep.is_none() {
        eprintln!("skipped: kind_interrupt_sleep_jupyter_{name}: the kernel may sleep on");
    }
    let figures = [
        figure("warm_turn", "ms", &samples.warm_turn),
        figure("first_answer_exec", "ms", &samples.first_answer),
        figure("idle_mib", "MiB", &samples.session_mib),
        figure("interrupt_sleep", "ms", &samples.interrupt_sleep),
        figure("interrupt_busy", "ms", &samples.interrupt_busy),
    ];
    Ok(figures.into_iter().filter(|figure| figure.n > 0).collect())
}

/// Runs the script with this Python. The inner error says what the machine lacks.
pub fn samples(
    python: &Path,
    kernel: &MeasuredKernel,
    rounds: KernelRounds,
) -> Result<Result<KernelSamples, String>> {
    let home = tempfile::tempdir()?;
    if kernel.kernel == DENO.kernel {
        match std::env::var(DENO_VARIABLE) {
            Ok(deno) => install_deno(&home, &deno)?,
            Err(_) => return Ok(Err(format!("{DENO_VARIABLE} is not set"))),
        }
    }
    let mut asked = serde_json::to_value(kernel)?;
    let rounds = serde_json::to_value(rounds)?;
    for (name, value) in rounds.as_object().into_iter().flatten() {
        asked[name] = value.clone();
    }
    let output = python::command_of(python)
        .args(["-c", SCRIPT, &asked.to_string()])
        .env("HOME", home.path())
        .env("JUPYTER_PATH", home.path())
        .output()
        .with_context(|| format!("cannot run {}", python.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the Jupyter measurement failed: {said}");
    let report = serde_json::from_slice(&output.stdout)
        .context("the Jupyter measurement printed no figures")?;
    Ok(match report {
        KernelReport::Measured(samples) => Ok(samples),
        KernelReport::Missing { missing } => Err(missing),
    })
}

/// Deno installs its kernel only for a user. This directory has the same kernel.
fn install_deno(home: &TempDir, deno: &str) -> Result<()> {
    let directory = home.path().join("kernels").join(DENO.kernel);
    std::fs::create_dir_all(&directory)?;
    let spec = json!({
        "argv": [deno, "jupyter", "--kernel", "--conn", "{connection_file}"],
        "display_name": "Deno",
        "language": "typescript",
        "interrupt_mode": "message",
    });
    Ok(std::fs::write(directory.join("kernel.json"), spec.to_string())?)
}

/// A Python with ipykernel: that of the variable, or that of `--peers` if it is installed.
pub fn find_python() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(PYTHON_VARIABLE) {
        return Ok(named.into());
    }
    let python = venv().join("bin/python");
    let missing = || format!("{PYTHON_VARIABLE} is not set; `--peers` installs a Python with it");
    installed(&venv()).then_some(python).ok_or_else(missing)
}

/// Creates the virtual environment with Jupyter, if it is missing, and returns its Python.
pub fn install_python() -> Result<PathBuf> {
    let venv = venv();
    let interpreter = venv.join("bin/python");
    if !installed(&venv) {
        let made = python::command().args(["-m", "venv"]).arg(&venv).status()?;
        ensure!(made.success(), "cannot create a virtual environment in {}", venv.display());
        // This process's environment is passed on: pip needs its settings to find its index.
        let installed = Command::new(&interpreter)
            .args(["-m", "pip", "install", "--quiet", "jupyter_client", "ipykernel"])
            .status()?;
        ensure!(installed.success(), "cannot install jupyter_client and ipykernel");
    }
    Ok(interpreter)
}

fn installed(venv: &Path) -> bool {
    venv.join("bin/jupyter").exists()
}

fn venv() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-peers").into()
}

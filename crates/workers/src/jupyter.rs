//! The worker that runs any Jupyter kernel. The kernel is its child; the worker is the kernel's client on one side
//! and speaks the worker protocol on the other.
//!
//! - [`launch`] starts the kernel, [`kernel`] is its process, [`wire`] are its channels.
//! - [`turn`] decides when a turn is over, [`adapter`] acts.
//! - [`displays`], [`media`] and [`input`] translate output and input.
//! - [`python_setup`] and [`tool_calls`] give Python kernels host tools.

mod adapter;
mod displays;
mod input;
mod kernel;
mod launch;
mod media;
mod python_setup;
mod turn;
mod wire;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::Value;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_kernelspecs::{KERNEL_FILE, KernelSpec};
use windlass_worker_kit::{KeeperMessage, Link, StartupFigures, capability};

use crate::link_socket::LinkWatch;
use crate::private_dir::PrivateDir;
use crate::socket_calls::SocketCalls;
use adapter::{Adapter, KernelTraits, WorkerEnd};
use kernel::KernelProcess;
use launch::{KernelStartError, StartedKernel};
use python_setup::PythonSetup;

const USAGE: &str =
    "usage: windlass-worker jupyter (--spec KERNELSPEC_DIRECTORY | --kernel-json FILE)";
const USAGE_STATUS: u8 = 2;

/// What ipykernel takes for the end of standard input. Other kernels have no such text.
const PYTHON_END_OF_INPUT: &str = "\u{4}";

pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(file) = kernel_file(arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(USAGE_STATUS);
    };
    match run_kernel(file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn kernel_file(mut arguments: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let option = arguments.next()?;
    let path = PathBuf::from(arguments.next()?);
    match option.to_str()? {
        "--spec" => Some(path.join(KERNEL_FILE)),
        "--kernel-json" => Some(path),
        _ => None,
    }
}

/// Runs one kernel from its start to its end.
fn run_kernel(file: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let link = Link::from_environment()?;
    let spec = KernelSpec::read(&std::path::absolute(file)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A handler and not `SIG_IGN`, which the kernel would inherit.
        let mut sigint = signal(SignalKind::interrupt())?;
        let dir = PrivateDir::create("jupyter")?;
        let ended = serve_session(link, &spec, &dir, &mut sigint).await;
        dir.remove();
        ended
    })
}

async fn serve_session(
    mut link: Link,
    spec: &KernelSpec,
    dir: &PrivateDir,
    sigint: &mut Signal,
) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let mut process = None;
    let started = select! {
        started = start(spec, dir, &mut process) => Some(started),
        () = ended(&mut link) => None,
    };
    let (kernel, setup) = match (started, &mut process) {
        (Some(Ok(started)), Some(_)) => started,
        (other, process) => {
            if let Some(process) = process {
                process.kill().await;
            }
            return match other {
                Some(Err(error)) => Err(error.into()),
                _ => Ok(()),
            };
        }
    };
    let process = process.take().ok_or("the kernel has no process")?;
    let traits = traits_of(spec, &kernel.info);
    let mut capabilities = vec![
        capability::STDIN,
        capability::INTERRUPT,
        capability::DISPLAY,
        capability::BACKGROUND_OUTPUT,
    ];
    if setup.tools.is_some() {
        capabilities.push(capability::TOOLS);
    }
    let name = name_of(&kernel.info, setup.version.as_deref());
    let tools = SocketCalls::new(setup.tools);
    let mut adapter = Adapter::new(link, process, kernel.channels, traits, tools)?;
    let runtime_load_ms = u32::try_from(began.elapsed().as_millis()).ok();
    let startup = StartupFigures { runtime_load_ms, ..StartupFigures::default() };
    adapter.ready(&name, &capabilities, &startup);
    let end = adapter.run(sigint).await;
    adapter.finish(&end).await;
    match end {
        WorkerEnd::Shutdown { .. } | WorkerEnd::KeeperGone => Ok(()),
        WorkerEnd::KernelEnded(status) => Err(format!("the kernel ended ({status})").into()),
        WorkerEnd::KernelBroken(cause) => Err(cause.into()),
    }
}

async fn start(
    spec: &KernelSpec,
    dir: &PrivateDir,
    process: &mut Option<KernelProcess>,
) -> Result<(StartedKernel, PythonSetup), KernelStartError> {
    let mut kernel = launch::launch(spec, dir, process).await?;
    let setup = if is_python(spec, &kernel.info) {
        python_setup::prepare(&mut kernel.channels, dir).await
    } else {
        PythonSetup::default()
    };
    Ok((kernel, setup))
}

/// Waits until the keeper asks the worker to end.
async fn ended(link: &mut Link) {
    let Ok(watch) = LinkWatch::new(link) else { return };
    while watch.readable().await.is_ok() {
        watch.look(link);
        while let Some(message) = link.next() {
            if matches!(message, KeeperMessage::Shutdown { .. } | KeeperMessage::Closed) {
                return;
            }
        }
    }
}

fn is_python(spec: &KernelSpec, info: &Value) -> bool {
    let language = info["language_info"]["name"].as_str().unwrap_or(&spec.language);
    matches!(language, "python" | "ipython")
}

fn traits_of(spec: &KernelSpec, info: &Value) -> KernelTraits {
    let implementation = info["implementation"].as_str().unwrap_or_default().to_lowercase();
    KernelTraits {
        interrupt_mode: spec.interrupt_mode,
        is_late: implementation.contains("deno"),
        shows_values: implementation == "irkernel",
        end_of_input: if is_python(spec, info) { PYTHON_END_OF_INPUT } else { "" },
    }
}

/// The worker's name for people: `ipykernel 7.4.0 (python 3.11.2)`.
fn name_of(info: &Value, ipykernel_version: Option<&str>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let language = &info["language_info"];
    let kernel = match ipykernel_version {
        Some(version) => format!("ipykernel {version}"),
        None => {
            format!("{} {}", text(&info["implementation"]), text(&info["implementation_version"]))
        }
    };
    format!("{kernel} ({} {})", text(&language["name"]), text(&language["version"]))
}

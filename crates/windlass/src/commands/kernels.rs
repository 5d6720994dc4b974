//! `windlass kernels`: lists the Jupyter kernels that sessions can run. Needs no node.

use std::process::ExitCode;

use serde_json::json;
use windlass_kernelspecs::{FoundKernel, KernelPaths, find_all};
use windlass_protocol::kinds;

use crate::terminal::{Terminal, Tone, table};

/// List the Jupyter kernels that sessions can run
///
/// Looks where Jupyter looks: JUPYTER_PATH, the active virtual environment, the user's directory and the
/// system's. Run one with `--worker jupyter:NAME`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let (kernels, unusable) = find_all(&KernelPaths::from_environment());
    if args.json {
        let kernels: Vec<_> = kernels.iter().map(as_json).collect();
        let unusable: Vec<_> = unusable.iter().map(ToString::to_string).collect();
        let list = json!({"kernels": kernels, "unusable": unusable});
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if kernels.is_empty() {
        terminal.say("no Jupyter kernel is installed; for Python: pip install ipykernel")?;
    } else {
        let rows: Vec<_> = kernels.iter().map(row).collect();
        let lines = table(["WORKER", "NAME", "LANGUAGE", "DIRECTORY"], &rows);
        for (at, line) in lines.iter().enumerate() {
            let tone = match at.checked_sub(1).map(|at| &kernels[at]) {
                None => Tone::Strong,
                Some(kernel) if kernel.missing.is_empty() => Tone::Good,
                Some(_) => Tone::Busy,
            };
            terminal.say(&terminal.tone(tone, line))?;
        }
    }
    for kernel in kernels.iter().filter(|kernel| !kernel.missing.is_empty()) {
        terminal.note(&format!("{}: missing: {}", kernel.spec.name, kernel.missing.join(", ")))?;
    }
    for error in unusable {
        terminal.note(&error.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn worker_name(kernel: &FoundKernel) -> String {
    format!("{}{}{}", kinds::jupyter::KIND.name, kinds::VARIANT_SEPARATOR, kernel.spec.name)
}

fn row(kernel: &FoundKernel) -> [String; 4] {
    let spec = &kernel.spec;
    let directory = spec.directory.display().to_string();
    [worker_name(kernel), spec.display_name.clone(), spec.language.clone(), directory]
}

fn as_json(kernel: &FoundKernel) -> serde_json::Value {
    let spec = &kernel.spec;
    json!({
        "worker": worker_name(kernel),
        "name": spec.name,
        "display_name": spec.display_name,
        "language": spec.language,
        "directory": spec.directory,
        "argv": spec.argv,
        "missing": kernel.missing,
    })
}

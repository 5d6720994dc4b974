//! The shell worker.

use std::process::ExitCode;

use windlass_worker_kit::{Link, capability};

pub fn run() -> ExitCode {
    let Ok(mut link) = Link::from_environment() else { return ExitCode::FAILURE };
    let _ = link.ready("bash", &[capability::STDIN, capability::INTERRUPT], None);
    ExitCode::SUCCESS
}

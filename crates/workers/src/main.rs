//! The program of the workers that are written in Rust. The first argument selects the worker.

mod r;
mod shell;
mod zygote;

use std::process::ExitCode;

const USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let kind = arguments.next().unwrap_or_default();
    match kind.to_str() {
        Some("shell") => shell::run(),
        Some("r") => r::run(arguments),
        Some(kind @ "jupyter") => {
            eprintln!("windlass-worker: {kind}: not built yet");
            ExitCode::from(USAGE)
        }
        _ => {
            eprintln!("usage: windlass-worker shell | r | jupyter");
            ExitCode::from(USAGE)
        }
    }
}

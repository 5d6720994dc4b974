//! The program of the workers that are written in Rust. The first argument selects the worker.

mod jupyter;
mod shell;
mod tool_socket;

use std::process::ExitCode;

const USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let kind = arguments.next().unwrap_or_default();
    match kind.to_str() {
        Some("shell") => shell::run(),
        Some("jupyter") => jupyter::run(arguments),
        Some(kind @ "r") => {
            eprintln!("windlass-worker: {kind}: not built yet");
            ExitCode::from(USAGE)
        }
        _ => {
            eprintln!("usage: windlass-worker shell | r | jupyter");
            ExitCode::from(USAGE)
        }
    }
}

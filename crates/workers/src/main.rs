//! The program of the workers that are written in Rust. The first argument selects the worker. Under the name
//! `windlass-tool`, the program calls a host tool from a shell session.

mod agent;
mod jupyter;
mod link_socket;
mod mcp;
mod outbox;
mod private_dir;
mod r;
mod shell;
mod socket_calls;
mod tool;
mod tool_socket;
mod zygote;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

const USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    if Path::new(&program).file_name() == Some(OsStr::new("windlass-tool")) {
        return tool::run(arguments);
    }
    let kind = arguments.next().unwrap_or_default();
    match kind.to_str() {
        Some("shell") => shell::run(),
        Some(shell::START_BASH) => shell::start_bash(arguments),
        Some("tool") => tool::run(arguments),
        Some("r") => r::run(arguments),
        Some("jupyter") => jupyter::run(arguments),
        Some("agent") => agent::run(arguments),
        Some("mcp") => mcp::run(arguments),
        _ => {
            eprintln!("usage: windlass-worker shell | r | jupyter | agent | mcp | tool");
            ExitCode::from(USAGE)
        }
    }
}

//! `windlass hold-server COMMAND ARGS...`: runs an MCP server for the node, and ends it with everything
//! that it started. Started by the node; it needs no argument parser, runtime or terminal.

use std::process::ExitCode;

pub fn run() -> ExitCode {
    windlass_keeper::run_server(std::env::args_os().skip(2).collect())
}

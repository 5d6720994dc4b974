//! `windlass hold-server COMMAND ARGS...`: runs an MCP server for the node, and kills all processes of the
//! server at its end. The node starts it; it needs no argument parser, runtime or terminal.

use std::process::ExitCode;

pub fn run() -> ExitCode {
    windlass_keeper::run_server(std::env::args_os().skip(2).collect())
}

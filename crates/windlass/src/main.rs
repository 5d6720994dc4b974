//! The binary: chooses what to be. A keeper, what keepers are forked from, or the holder of an MCP
//! server, is chosen before anything else is touched: thousands of them may run on a machine, and none
//! of them needs an argument parser or an async runtime.

use std::process::ExitCode;

use windlass_protocol::nursery::COMMAND;

mod agents;
mod answers;
mod cli;
mod commands;
mod control_table;
mod displays;
mod duration;
mod exit;
mod follow;
mod leaving;
mod node_access;
mod outlook;
mod output_bytes;
mod policy_options;
mod size;
mod storage_notes;
mod terminal;
mod typed_input;
mod workspace;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "keeper") {
        return commands::keeper::run();
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == windlass_mcp::servers::HOLD) {
        return commands::hold_server::run();
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == COMMAND) {
        return commands::nursery::run();
    }
    cli::run()
}

//! The `windlass` binary. The first argument selects the role.
//!
//! The keeper, the nursery (which forks keepers) and the holder of an MCP server are dispatched before
//! anything else runs: a machine may run thousands of these processes, and they need no argument parser
//! and no async runtime.

use std::process::ExitCode;

use windlass_protocol::nursery::COMMAND;

mod agent_view;
mod agents;
mod answers;
mod cli;
mod commands;
mod config_file;
mod control_table;
mod counted;
mod displays;
mod duration;
mod exit;
mod fleet_table;
mod follow;
mod node_access;
mod outlook;
mod output_bytes;
mod package_options;
mod policy_options;
mod repl_banner;
mod repl_editor;
mod running_turn;
mod service_manager;
mod session_guard;
mod session_options;
mod settings;
mod size;
mod storage_notes;
mod telemetry_table;
mod tenant_tables;
mod terminal;
mod tool_lines;
mod top;
mod typed_input;
mod worker_choice;
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

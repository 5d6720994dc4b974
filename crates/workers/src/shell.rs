//! The shell worker: turns run in one bash, which keeps its state between turns.
//!
//! - [`bash`] starts bash with its private descriptors and restarts it with its saved state.
//! - [`script`] is the shell code of the mechanism.
//! - [`session`] is the worker's loop: one poll over everything that can happen.
//! - [`input`] owns what the code reads; [`look`] finds processes that wait for it.
//! - [`surroundings`] is the shell code for arguments, directory and variables of one turn.
//! - [`stopping`] decides which signals an interrupt sends, and when.
//! - [`tools`] serves `windlass-tool`.

mod bash;
mod input;
mod look;
mod outcome;
mod script;
mod session;
mod stopping;
mod surroundings;
mod terminal;
mod tools;

use std::process::ExitCode;

use windlass_worker_kit::Link;

pub use self::bash::{START_BASH, send_descriptor, start_bash};
pub use self::tools::SUCCESS as TOOL_SUCCESS;

pub fn run() -> ExitCode {
    let link = match Link::from_environment() {
        Ok(link) => link,
        Err(cause) => {
            eprintln!("windlass-worker: {cause}");
            return ExitCode::FAILURE;
        }
    };
    match session::serve(link) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("windlass-worker: {cause}");
            ExitCode::FAILURE
        }
    }
}

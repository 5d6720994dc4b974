//! `windlass keeper HOLD`: supervises the processes of one session. The node starts it with a listening
//! socket as standard input; it needs no argument parser, runtime or terminal.

use std::process::ExitCode;

use windlass_keeper::HoldMode;

pub fn run() -> ExitCode {
    let mode = std::env::args().nth(2).unwrap_or_else(|| HoldMode::Auto.as_str().to_owned());
    match HoldMode::parse(&mode) {
        Some(mode) => windlass_keeper::run(mode),
        None => {
            eprintln!("error: HOLD is {mode}, but must be auto, pid-namespace or subreaper");
            ExitCode::FAILURE
        }
    }
}

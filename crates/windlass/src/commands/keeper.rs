//! `windlass keeper HOLD`: supervises the processes of one session. The node starts it with a listening
//! socket as standard input; it needs no argument parser, runtime or terminal.

use std::process::ExitCode;

use windlass_keeper::Wanted;

pub fn run() -> ExitCode {
    let wanted = std::env::args().nth(2).unwrap_or_else(|| Wanted::Auto.as_str().to_owned());
    match Wanted::parse(&wanted) {
        Some(wanted) => windlass_keeper::run(wanted),
        None => {
            eprintln!("error: HOLD is {wanted}, but must be auto, pid-namespace or subreaper");
            ExitCode::FAILURE
        }
    }
}

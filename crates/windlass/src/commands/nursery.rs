//! `windlass nursery`: forks keepers and zygotes for the node. The node starts it with a socket to the node
//! as standard input; it needs no argument parser, runtime or terminal.

use std::process::ExitCode;

pub fn run() -> ExitCode {
    windlass_keeper::run_nursery()
}

//! `windlass nursery`: forks keepers and zygotes for the node. Started by the node, with a socket to it
//! as standard input; it needs no argument parser, runtime or terminal.

use std::process::ExitCode;

pub fn run() -> ExitCode {
    windlass_keeper::run_nursery()
}

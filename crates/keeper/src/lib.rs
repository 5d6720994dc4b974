//! Holds one session's processes: the worker, everything the worker starts, its raw output, and
//! every event the node has not acknowledged. When the keeper ends, for any cause, they end too.
//!
//! Theory of operation. The node creates the keeper's listening socket and starts `windlass
//! keeper` with it as standard input. The keeper takes hold of its future process tree
//! (`windlass_procs::hold`), then runs one poll loop (`keeper`) over: the listener, the node's
//! connection (`node_side`), the worker's protocol socket and raw pipes (`worker`), and
//! signals. There is no async runtime, no thread and no timer tick: the loop wakes for a
//! descriptor or for the nearest deadline. Every byte from the worker is hostile.
//!
//! Where it can, the node has keepers forked by its `nursery` instead of starting a program for
//! each: that takes less time, and they share most of their memory.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod calls;
mod commands;
mod complaint;
mod connection;
mod egress;
mod family;
mod fork;
#[doc(hidden)]
pub mod fuzzing;
mod input;
mod joining;
mod keeper;
mod node_side;
mod nursery;
mod own;
mod rounds;
mod server;
mod signals;
mod stage;
mod starting;
mod turn;
mod usage;
mod watch;
mod worker;
mod worker_side;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use complaint::complain;
pub use nursery::run_nursery;
use rustix::stdio;
pub use server::run_server;
pub use windlass_procs::Wanted;
use windlass_procs::hold;
use windlass_procs::pace::{Pace, Whom, set_pace};

/// What tools that list processes call a keeper.
const NAME: &std::ffi::CStr = c"windlass-keeper";

/// Runs the keeper whose listening socket is standard input. Errors go to standard error, which
/// the node has pointed at its log.
pub fn run(wanted: Wanted) -> ExitCode {
    match keep(wanted) {
        Kept::ToItsEnd => ExitCode::SUCCESS,
        Kept::NotBegun => ExitCode::FAILURE,
    }
}

/// How a keeper went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    ToItsEnd,
    NotBegun,
}

fn keep(wanted: Wanted) -> Kept {
    // Its guard and whatever else it forks are called so, too; only looks depend on it.
    let _ = rustix::thread::set_name(NAME);
    match start(wanted) {
        Ok(()) => Kept::ToItsEnd,
        Err(error) => {
            complain!("keeper: {error}");
            Kept::NotBegun
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("the process tree cannot be held: {0}")]
    Hold(#[from] windlass_procs::HoldError),
    #[error("{act}: {cause}")]
    Setup { act: &'static str, cause: std::io::Error },
}

fn start(wanted: Wanted) -> Result<(), StartError> {
    let setup =
        |act| move |errno: rustix::io::Errno| StartError::Setup { act, cause: errno.into() };
    // A session of its own: no terminal's hang-up or Ctrl-C reaches it.
    rustix::process::setsid().map_err(setup("start a process session"))?;
    let listener = take_listener().map_err(|cause| StartError::Setup {
        act: "take the listening socket from standard input",
        cause,
    })?;
    let held = hold::enter(wanted)?;
    set_pace(Whom::This, Pace::Prompt);
    let signals = signals::Signals::take(held.hold())
        .map_err(|errno| StartError::Setup { act: "take signals", cause: errno.into() })?;
    keeper::Keeper::new(listener, held, signals).run();
    Ok(())
}

/// Standard input becomes ours alone (closed on exec), and `/dev/null` takes its place.
fn take_listener() -> std::io::Result<OwnedFd> {
    let listener = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    stdio::dup2_stdin(&null)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    Ok(listener)
}

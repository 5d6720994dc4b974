//! Holds one session's processes (the worker and everything that the worker starts), the worker's raw output,
//! and every event that the node has not acknowledged. When the keeper ends, for any cause, the processes end
//! too.
//!
//! How it works:
//!
//! 1. The node creates the keeper's listening socket and starts `windlass keeper` with it as standard input.
//! 2. The keeper takes hold of its future process tree (`windlass_procs::hold`).
//! 3. The keeper runs one poll loop (`keeper`) over the listener, the node's connection (`node_side`), the
//!    worker's protocol socket and raw pipes (`worker`), and signals.
//!
//! There is no async runtime, no thread and no timer tick: the loop wakes for a descriptor or for the nearest
//! deadline. Every byte from the worker is hostile.
//!
//! If it can, the node has its `nursery` fork keepers and does not start a program for each. A fork is
//! faster, and forked keepers share most of their memory.

#![deny(clippy::print_stderr, clippy::print_stdout)]

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
mod last_stderr;
mod node_side;
mod nursery;
mod process_scope;
mod rounds;
mod server;
mod signals;
mod stage;
mod starting;
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
pub use windlass_procs::HoldMode;
use windlass_procs::hold;
use windlass_procs::sched_slice::{SchedSlice, SliceTarget, set_slice};

/// The name of a keeper in lists of processes.
const NAME: &std::ffi::CStr = c"windlass-keeper";

/// Runs the keeper whose listening socket is standard input. Errors go to standard error, which the node has
/// redirected to its log.
pub fn run(mode: HoldMode) -> ExitCode {
    match keep(mode) {
        KeeperExit::Done => ExitCode::SUCCESS,
        KeeperExit::NotStarted => ExitCode::FAILURE,
    }
}

/// How a keeper ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeeperExit {
    Done,
    NotStarted,
}

fn keep(mode: HoldMode) -> KeeperExit {
    // The guard and other forks of the keeper inherit the name. The name is only for display.
    let _ = rustix::thread::set_name(NAME);
    match start(mode) {
        Ok(()) => KeeperExit::Done,
        Err(error) => {
            complain!("keeper: {error}");
            KeeperExit::NotStarted
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum KeeperInitError {
    #[error("the process tree cannot be held: {0}")]
    Hold(#[from] windlass_procs::HoldError),
    #[error("cannot {act}: {cause}")]
    Setup { act: &'static str, cause: std::io::Error },
}

fn start(mode: HoldMode) -> Result<(), KeeperInitError> {
    let setup =
        |act| move |errno: rustix::io::Errno| KeeperInitError::Setup { act, cause: errno.into() };
    // In its own process session the keeper gets no hang-up or Ctrl-C of a terminal.
    rustix::process::setsid().map_err(setup("start a process session"))?;
    let listener = take_listener().map_err(|cause| KeeperInitError::Setup {
        act: "take the listening socket from standard input",
        cause,
    })?;
    let held = hold::enter(mode)?;
    set_slice(SliceTarget::CurrentThread, SchedSlice::Short);
    let signals = signals::Signals::take(held.hold())
        .map_err(|errno| KeeperInitError::Setup { act: "take signals", cause: errno.into() })?;
    keeper::Keeper::new(listener, held, signals).run();
    Ok(())
}

/// Moves the listener from standard input to a descriptor that is closed on exec. `/dev/null` becomes
/// standard input.
fn take_listener() -> std::io::Result<OwnedFd> {
    let listener = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    stdio::dup2_stdin(&null)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    Ok(listener)
}

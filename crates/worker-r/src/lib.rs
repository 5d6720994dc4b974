//! The R worker: embeds R in this process and runs turns in R's own top level.
//!
//! - [`libr`] loads libR at run time. No header of R is needed to build it.
//! - [`start`] starts R and says that the worker is ready.
//! - [`warm`] is R in a zygote.
//! - [`console`] has R's callbacks and drives the turns.
//! - [`session`] has the protocol's side of a turn. It never calls R.
//! - [`surroundings`] sets arguments, directory and variables for one turn.
//! - [`natives`] and `r/windlass.R` are what the code can call: displays, host tools, JSON.
//!
//! `unsafe` is allowed here because R is a C library. R's errors unwind with `longjmp`: a Rust value with a
//! destructor must not live across a call that can raise one.

mod console;
mod json;
mod libr;
mod library;
mod natives;
mod session;
mod signals;
mod start;
mod surroundings;
mod warm;

use std::cell::RefCell;
use std::os::fd::{OwnedFd, RawFd};
use std::process::ExitCode;

use windlass_procs::inherited::take_inherited;
use windlass_worker_kit::{FD_VARIABLE, Link};

use start::{HeldOutput, Profiles};

pub use warm::{LoadedPackages, WarmR, ZygoteLife, run_zygote};

thread_local! {
    /// What the first call of R's top level takes over.
    static STARTING: RefCell<Option<Starting>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Starting {
    link: Link,
    socket: RawFd,
    held: Option<HeldOutput>,
}

/// The worker's life, started as a program. Returns only if it cannot start.
pub fn run() -> ExitCode {
    let Some(socket) = inherited_socket() else {
        eprintln!("windlass-worker: {FD_VARIABLE} does not name the protocol socket");
        return ExitCode::FAILURE;
    };
    if let Err(error) = start::initialize(Profiles::Read) {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        eprintln!("windlass-worker: {error}{}", cause.unwrap_or_default());
        return ExitCode::FAILURE;
    }
    let (link, socket) = start::link_over(start::out_of_the_way(socket));
    let held = HeldOutput::begin();
    STARTING.replace(Some(Starting { link, socket, held }));
    start::run(&[load_library, serve_starting])
}

fn inherited_socket() -> Option<OwnedFd> {
    take_inherited(std::env::var(FD_VARIABLE).ok()?.parse().ok()?).ok()
}

/// R's top level is there: load the worker's R code.
fn load_library() {
    natives::register();
    library::load();
}

/// The last stage of a start: the worker is ready and begins to serve.
fn serve_starting() {
    library::set_options(start::terminal_columns());
    let Some(Starting { link, socket, held }) = STARTING.take() else { signals::leave(1) };
    start::attach(link, socket);
    if let Some(held) = held {
        held.end();
    }
}

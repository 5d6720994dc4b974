//! What the process does on SIGINT.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// SIGINT has no effect on this process. A program that this process starts inherits that, unless it calls
/// [`default_interrupt`] first.
pub fn ignore_interrupt() -> std::io::Result<()> {
    set(SigHandler::SigIgn)
}

/// SIGINT ends this process.
pub fn default_interrupt() -> std::io::Result<()> {
    set(SigHandler::SigDfl)
}

fn set(handler: SigHandler) -> std::io::Result<()> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: neither disposition runs code of this process.
    unsafe { sigaction(Signal::SIGINT, &action) }?;
    Ok(())
}

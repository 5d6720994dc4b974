//! Signals as a descriptor: a child ended, or somebody wants the keeper to stop.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What signals said since the last look.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heard {
    pub child: bool,
    pub stop: bool,
}

#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    pub fn take() -> Result<Self, Errno> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self)
    }

    /// Takes all that is pending, without blocking.
    pub fn hear(&self) -> Heard {
        let mut heard = Heard::default();
        while let Ok(Some(signal)) = self.0.read_signal() {
            if signal.ssi_signo == Signal::SIGCHLD as u32 {
                heard.child = true;
            } else {
                heard.stop = true;
            }
        }
        heard
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

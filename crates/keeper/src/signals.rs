//! Signals by descriptor (`signalfd`): a child has ended, or the keeper is told to stop.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use windlass_protocol::link::Hold;

/// The signals since the last read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedSignals {
    /// SIGCHLD.
    pub child: bool,
    /// SIGTERM, SIGINT or SIGHUP.
    pub stop: bool,
}

#[derive(Debug)]
pub(crate) struct Signals {
    signals: SignalFd,
    stop_senders: StopSenders,
}

/// Whose stop signals the keeper obeys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopSenders {
    Anyone,
    /// Only processes outside of the keeper's pid namespace, whose sender id is 0 inside. The session's
    /// processes must not stop the keeper.
    OutsideNamespace,
}

impl Signals {
    pub fn take(hold: Hold) -> Result<Self, Errno> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let stop_senders = match hold {
            Hold::PidNamespace => StopSenders::OutsideNamespace,
            Hold::Subreaper => StopSenders::Anyone,
        };
        Ok(Self { signals: SignalFd::with_flags(&set, flags)?, stop_senders })
    }

    /// Reads all pending signals without blocking.
    pub fn read(&self) -> ReceivedSignals {
        let mut received = ReceivedSignals::default();
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo == Signal::SIGCHLD as u32 {
                received.child = true;
            } else if self.stop_senders == StopSenders::Anyone || signal.ssi_pid == 0 {
                received.stop = true;
            }
        }
        received
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

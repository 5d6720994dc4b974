//! The channel on which a process reports its startup while it is confined. Each packet is one message. The
//! channel is close-on-exec: it closes when the program runs.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg,
    shutdown, socketpair,
};

use crate::enter::canary::{CanaryResults, RESULT_BYTES};
use crate::enter::{ConfineStep, StepError};

/// The longest message.
const MESSAGE_BYTES: usize = 64;

/// One end of a socket pair.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

#[derive(Debug)]
pub(crate) enum StartupMessage {
    Pids {
        init: i32,
        worker: i32,
    },
    Listener(OwnedFd),
    /// A network namespace for a worker.
    Network(OwnedFd),
    Canaries(CanaryResults),
    Failed(StepError),
    /// The pooled worker has built its view. The interpreter sends this message itself.
    Built,
}

impl Channel {
    pub fn pair() -> std::io::Result<(Self, Self)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), Self(theirs)))
    }

    /// The end that this process has inherited or received.
    pub fn of(end: OwnedFd) -> Self {
        Self(end)
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Closes this end in a process that never drops it, because it never returns.
    pub fn close(&self) {
        // SAFETY: the descriptor is ours, and this process does not use it again.
        unsafe { libc::close(self.0.as_raw_fd()) };
    }

    /// Closes this end for sending, in this process and in every process that has a copy of it. The other end
    /// then reads the end of the stream. This end can still receive.
    pub fn close_sending(&self) {
        let _ = shutdown(&self.0, Shutdown::Write);
    }

    /// Waits until the other end is closed for sending. There is no timeout: the calling process ends with
    /// its keeper.
    pub fn wait_for_end(&self) {
        let mut byte = [0_u8; 1];
        loop {
            match recv(&self.0, &mut byte, RecvFlags::empty()) {
                Ok((_, 0)) => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Sends a message. Errors are ignored: a receiver that no longer listens has already killed this
    /// process.
    pub fn send(&self, message: &StartupMessage) {
        let mut bytes = [0u8; MESSAGE_BYTES];
        match message {
            StartupMessage::Pids { init, worker } => {
                bytes[0] = b'P';
                bytes[1..5].copy_from_slice(&init.to_ne_bytes());
                bytes[5..9].copy_from_slice(&worker.to_ne_bytes());
            }
            StartupMessage::Listener(_) | StartupMessage::Network(_) | StartupMessage::Built => {
                return;
            }
            StartupMessage::Canaries(results) => {
                bytes[0] = b'C';
                bytes[1] = u8::from(results.required_failed);
                bytes[2..2 + RESULT_BYTES].copy_from_slice(&results.through);
            }
            StartupMessage::Failed(failed) => {
                bytes[0] = b'F';
                bytes[1] = failed.step as u8;
                bytes[2..6].copy_from_slice(&failed.errno.to_ne_bytes());
                bytes[6..8].copy_from_slice(&failed.index.to_ne_bytes());
            }
        }
        let _ = rustix::net::send(&self.0, &bytes, SendFlags::NOSIGNAL);
    }

    /// Sends a descriptor. `tag` is the first byte of its message.
    pub fn send_descriptor(&self, tag: u8, descriptor: BorrowedFd<'_>) {
        let descriptors = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let tag = [tag];
        let bytes = [IoSlice::new(&tag)];
        let _ = sendmsg(&self.0, &bytes, &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// Receives the next message. `None` if every process has closed the other end.
    pub fn receive(&self, until: Instant) -> Result<Option<StartupMessage>, Errno> {
        self.wait(until)?;
        let mut bytes = [0u8; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&self.0, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes == 0 {
            return Ok(None);
        }
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        parse(&bytes, descriptor).map(Some).ok_or(Errno::PROTO)
    }

    fn wait(&self, until: Instant) -> Result<(), Errno> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        let mut polled = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        match poll(&mut polled, Some(&timeout))? {
            0 => Err(Errno::TIMEDOUT),
            _ => Ok(()),
        }
    }
}

fn parse(bytes: &[u8; MESSAGE_BYTES], descriptor: Option<OwnedFd>) -> Option<StartupMessage> {
    let number = |at: usize| Some(i32::from_ne_bytes(bytes[at..at + 4].try_into().ok()?));
    Some(match bytes[0] {
        b'P' => StartupMessage::Pids { init: number(1)?, worker: number(5)? },
        b'L' => StartupMessage::Listener(descriptor?),
        b'N' => StartupMessage::Network(descriptor?),
        b'C' => StartupMessage::Canaries(CanaryResults {
            required_failed: bytes[1] != 0,
            through: bytes[2..2 + RESULT_BYTES].try_into().ok()?,
        }),
        b'F' => StartupMessage::Failed(StepError {
            step: ConfineStep::from_number(bytes[1])?,
            errno: number(2)?,
            index: u16::from_ne_bytes(bytes[6..8].try_into().ok()?),
        }),
        b'B' => StartupMessage::Built,
        _ => return None,
    })
}

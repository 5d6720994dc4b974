//! What a process says on its way into the sandbox, one word per message. It closes by itself when
//! the program runs.

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

use crate::enter::canary::{RESULT_BYTES, Results};
use crate::enter::{Failed, Step};

/// The longest message.
const WORD_BYTES: usize = 64;

#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

#[derive(Debug)]
pub(crate) enum Word {
    Pids {
        init: i32,
        worker: i32,
    },
    Listener(OwnedFd),
    /// A network namespace for a worker.
    Network(OwnedFd),
    Canaries(Results),
    Failed(Failed),
    /// The view is built that was to be built ahead. Said by the interpreter itself.
    Built,
}

impl Channel {
    pub fn pair() -> std::io::Result<(Self, Self)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), Self(theirs)))
    }

    /// The end that this process was given.
    pub fn of(end: OwnedFd) -> Self {
        Self(end)
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Says nothing more. For a process that goes on with something else and never returns.
    pub fn close(&self) {
        // SAFETY: the descriptor is ours, and this process uses it no more.
        unsafe { libc::close(self.0.as_raw_fd()) };
    }

    /// Closes this end for sending, here and in every process that has a copy of it. The other end hears
    /// the end of the stream; this one can still receive.
    pub fn say_no_more(&self) {
        let _ = shutdown(&self.0, Shutdown::Write);
    }

    /// Waits until the other end says no more, without a limit: for a process that ends with its keeper.
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

    /// Says a word; whoever no longer listens has ended us already.
    pub fn say(&self, word: &Word) {
        let mut bytes = [0u8; WORD_BYTES];
        match word {
            Word::Pids { init, worker } => {
                bytes[0] = b'P';
                bytes[1..5].copy_from_slice(&init.to_ne_bytes());
                bytes[5..9].copy_from_slice(&worker.to_ne_bytes());
            }
            Word::Listener(_) | Word::Network(_) | Word::Built => return,
            Word::Canaries(results) => {
                bytes[0] = b'C';
                bytes[1] = u8::from(results.required_failed);
                bytes[2..2 + RESULT_BYTES].copy_from_slice(&results.through);
            }
            Word::Failed(failed) => {
                bytes[0] = b'F';
                bytes[1] = failed.step as u8;
                bytes[2..6].copy_from_slice(&failed.errno.to_ne_bytes());
                bytes[6..8].copy_from_slice(&failed.place.to_ne_bytes());
            }
        }
        let _ = rustix::net::send(&self.0, &bytes, SendFlags::NOSIGNAL);
    }

    /// Hands a descriptor over, under the word for it.
    pub fn hand_over(&self, word: u8, descriptor: BorrowedFd<'_>) {
        let descriptors = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let word = [word];
        let bytes = [IoSlice::new(&word)];
        let _ = sendmsg(&self.0, &bytes, &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// The next word; nothing when the other end is closed everywhere.
    pub fn hear(&self, until: Instant) -> Result<Option<Word>, Errno> {
        self.wait(until)?;
        let mut bytes = [0u8; WORD_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&self.0, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes == 0 {
            return Ok(None);
        }
        let given = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        parse(&bytes, given).map(Some).ok_or(Errno::PROTO)
    }

    fn wait(&self, until: Instant) -> Result<(), Errno> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        let mut asked = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        match poll(&mut asked, Some(&timeout))? {
            0 => Err(Errno::TIMEDOUT),
            _ => Ok(()),
        }
    }
}

fn parse(bytes: &[u8; WORD_BYTES], given: Option<OwnedFd>) -> Option<Word> {
    let number = |at: usize| Some(i32::from_ne_bytes(bytes[at..at + 4].try_into().ok()?));
    Some(match bytes[0] {
        b'P' => Word::Pids { init: number(1)?, worker: number(5)? },
        b'L' => Word::Listener(given?),
        b'N' => Word::Network(given?),
        b'C' => Word::Canaries(Results {
            required_failed: bytes[1] != 0,
            through: bytes[2..2 + RESULT_BYTES].try_into().ok()?,
        }),
        b'F' => Word::Failed(Failed {
            step: Step::from_number(bytes[1])?,
            errno: number(2)?,
            place: u16::from_ne_bytes(bytes[6..8].try_into().ok()?),
        }),
        b'B' => Word::Built,
        _ => return None,
    })
}

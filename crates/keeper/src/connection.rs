//! The connection to a node: reads its frames, and writes the events that the link half holds. It keeps only
//! a position in the held events, never a copy of them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use windlass_lifecycle::link::KeeperHalf;
use windlass_protocol::LinkSeq;
use windlass_protocol::frame::{self, Decoder, EncodeError};
use windlass_protocol::link::{FromKeeper, ToKeeper};
use windlass_protocol::parts::Joiner;

/// Maximum number of buffers in one `writev`.
const SLICES_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct NodeConnection {
    socket: OwnedFd,
    decoder: Decoder,
    joiner: Joiner,
    /// Unnumbered messages, sent between events.
    control: BytesMut,
    /// The last event that is written completely.
    sent: LinkSeq,
    /// Bytes written of the event after `sent`.
    partly: usize,
    blocked: bool,
    /// The last descriptor that arrived with the bytes.
    passed: Option<OwnedFd>,
}

/// Why a connection is unusable.
#[derive(Debug)]
pub(crate) enum ConnectionLost {
    Closed,
    Malformed,
}

impl NodeConnection {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: Decoder::default(),
            joiner: Joiner::default(),
            control: BytesMut::new(),
            sent: LinkSeq(0),
            partly: 0,
            blocked: false,
            passed: None,
        }
    }

    /// Whether the socket's buffer is full and the poll loop must wait until it is writable.
    pub fn blocked(&self) -> bool {
        self.blocked
    }

    /// Continues with the event after `after`. Called when a node attaches.
    pub fn resume(&mut self, after: LinkSeq) {
        self.sent = after;
        self.partly = 0;
    }

    pub fn say(&mut self, message: &FromKeeper) -> Result<(), EncodeError> {
        let mut encoded = Vec::with_capacity(256);
        frame::encode(&mut encoded, message, &[])?;
        self.control.extend_from_slice(&encoded);
        Ok(())
    }

    /// Reads once from the socket. Returns the number of bytes; 0 if none have arrived.
    pub fn fill(&mut self, scratch: &mut [u8]) -> Result<usize, ConnectionLost> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(scratch)];
        // The socket is non-blocking. The kernel closes further descriptors than the first.
        let received = recvmsg(&self.socket, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC);
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                self.passed = descriptors.next();
            }
        }
        match received.map(|received| received.bytes) {
            Ok(0) => Err(ConnectionLost::Closed),
            Ok(read) => {
                self.decoder.push(&scratch[..read]);
                Ok(read)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(_) => Err(ConnectionLost::Closed),
        }
    }

    /// Takes the last descriptor that arrived.
    pub fn take_passed(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    /// The first message, if it has arrived completely. It is read even if the sender has closed the
    /// connection already, and no later message is handled before it.
    pub fn first_message(
        &mut self,
        scratch: &mut [u8],
    ) -> Result<Option<ToKeeper>, ConnectionLost> {
        loop {
            let filled = self.fill(scratch);
            match (self.next_message()?, filled) {
                (Some((message, _)), _) => return Ok(Some(message)),
                (None, Ok(0)) => return Ok(None),
                (None, Ok(_)) => {}
                (None, Err(gone)) => return Err(gone),
            }
        }
    }

    /// The next complete message that has arrived, with its body.
    pub fn next_message(&mut self) -> Result<Option<(ToKeeper, Bytes)>, ConnectionLost> {
        while let Some(frame) = self.decoder.next_frame().map_err(|_| ConnectionLost::Malformed)? {
            let message = self.joiner.take(frame).map_err(|_| ConnectionLost::Malformed)?;
            if message.is_some() {
                return Ok(message);
            }
        }
        Ok(None)
    }

    /// Writes as much as the socket accepts: control messages at event boundaries, then events.
    pub fn flush(&mut self, link: &KeeperHalf) -> Result<(), ConnectionLost> {
        loop {
            let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(8);
            let control_first = self.partly == 0 && !self.control.is_empty();
            if control_first {
                slices.push(IoSlice::new(&self.control));
            }
            let mut skip = self.partly;
            for event in link.held_after(self.sent) {
                for part in [&event.head, &event.body] {
                    let cut = skip.min(part.len());
                    skip -= cut;
                    if cut < part.len() {
                        slices.push(IoSlice::new(&part[cut..]));
                    }
                }
                if slices.len() + 2 > SLICES_MAX {
                    break;
                }
            }
            if slices.is_empty() {
                self.blocked = false;
                return Ok(());
            }
            match rustix::io::writev(&self.socket, &slices) {
                Ok(written) => self.wrote(written, control_first, link),
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(ConnectionLost::Closed),
            }
        }
    }

    fn wrote(&mut self, mut written: usize, control_first: bool, link: &KeeperHalf) {
        if control_first {
            let control = written.min(self.control.len());
            let _ = self.control.split_to(control);
            written -= control;
            if !self.control.is_empty() {
                return;
            }
        }
        written += self.partly;
        self.partly = 0;
        for event in link.held_after(self.sent) {
            let length = event.head.len() + event.body.len();
            if written < length {
                self.partly = written;
                return;
            }
            written -= length;
            self.sent = event.link;
        }
    }
}

impl AsFd for NodeConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

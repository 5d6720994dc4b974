//! The nursery's end of the socket to its node: messages, and the descriptors that are passed with them.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use windlass_protocol::limits::LAUNCH_BYTES_MAX;
use windlass_protocol::nursery::{DESCRIPTORS_MAX, FromNursery, MESSAGE_BYTES_MAX, ToNursery};

pub(crate) struct NurserySocket {
    socket: OwnedFd,
    /// One byte more than the longest message, so that a longer one is detected.
    bytes: Vec<u8>,
}

/// The result of one read from the socket.
#[derive(Debug)]
pub(crate) enum Received {
    /// A spurious wake-up.
    Nothing,
    /// The node has closed the socket.
    Closed,
    Request {
        request: ToNursery,
        descriptors: Vec<OwnedFd>,
    },
}

impl NurserySocket {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, bytes: vec![0; MESSAGE_BYTES_MAX + 1] }
    }

    pub fn receive(&mut self) -> io::Result<Received> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut into = [IoSliceMut::new(&mut self.bytes)];
        let received = match recvmsg(&self.socket, &mut into, &mut rights, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::Closed),
            Err(errno) => return Err(errno.into()),
        };
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        let mut descriptors = Vec::with_capacity(DESCRIPTORS_MAX);
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // Some descriptors were lost: there were too many, or this process has none free. Without
            // descriptors the request is refused.
            descriptors.clear();
        }
        let message = &self.bytes[..received.bytes];
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("a message of the node is too long"));
        }
        match serde_json::from_slice(message)? {
            ToNursery::InFile { id, bytes } => {
                let request = read_request(id, bytes, &mut descriptors)?;
                Ok(Received::Request { request, descriptors })
            }
            request => Ok(Received::Request { request, descriptors }),
        }
    }

    /// Sends an answer that the node waits for.
    pub fn say(&self, answer: &FromNursery, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = serde_json::to_vec(answer)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let fits = rights.push(SendAncillaryMessage::ScmRights(descriptors));
            debug_assert!(fits, "there is space for {DESCRIPTORS_MAX}");
        }
        let parts = [IoSlice::new(&message)];
        loop {
            match sendmsg(&self.socket, &parts, &mut rights, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a notice that the node does not wait for. It is lost if the socket's buffer is full.
    pub fn mention(&self, notice: &FromNursery) {
        if let Ok(message) = serde_json::to_vec(notice) {
            let _ = send(&self.socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

/// Reads the request from the file in the first of these descriptors, which is removed from the list.
fn read_request(id: u64, bytes: u64, descriptors: &mut Vec<OwnedFd>) -> io::Result<ToNursery> {
    if descriptors.is_empty() {
        return Err(io::Error::other("the file of a request was not passed with it"));
    }
    let file = File::from(descriptors.remove(0));
    let length = usize::try_from(bytes).ok().filter(|length| *length <= LAUNCH_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a request of the node is too long"))?;
    let mut text = vec![0; length];
    file.read_exact_at(&mut text, 0)?;
    match serde_json::from_slice(&text)? {
        ToNursery::InFile { .. } => Err(io::Error::other("a request in a file names another file")),
        request if ToNursery::id(&request) == id => Ok(request),
        _ => Err(io::Error::other("the request in a file has another id than its message")),
    }
}

impl AsFd for NurserySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

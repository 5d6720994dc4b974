//! Messages to and from the nursery, with their descriptors.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use windlass_protocol::limits::LAUNCH_BYTES_MAX;
use windlass_protocol::nursery::{DESCRIPTORS_MAX, FromNursery, MESSAGE_BYTES_MAX, ToNursery};

/// A request, encoded for sending.
#[derive(Debug)]
pub(super) struct EncodedRequest {
    message: Vec<u8>,
    /// Holds the request if it is too large for a message. The message then only refers to the file.
    file: Option<OwnedFd>,
}

impl EncodedRequest {
    /// Fails for a request that is over the limit, before anything is sent.
    pub fn new(request: &ToNursery) -> io::Result<Self> {
        let message = serde_json::to_vec(request)?;
        if message.len() <= MESSAGE_BYTES_MAX {
            return Ok(Self { message, file: None });
        }
        if message.len() > LAUNCH_BYTES_MAX {
            let bytes = message.len();
            let why = format!("a request of {bytes} bytes is over the limit of {LAUNCH_BYTES_MAX}");
            return Err(io::Error::other(why));
        }
        let mut file = File::from(memfd_create(c"windlass-request", MemfdFlags::CLOEXEC)?);
        file.write_all(&message)?;
        let said = ToNursery::InFile { id: request.id(), bytes: message.len() as u64 };
        Ok(Self { message: serde_json::to_vec(&said)?, file: Some(file.into()) })
    }
}

/// Sends one message. On an error nothing was sent. The buffer always has space, because only one request is
/// in flight at a time.
pub(super) fn send(
    socket: &OwnedFd,
    EncodedRequest { message, file }: &EncodedRequest,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> =
        file.iter().map(AsFd::as_fd).chain(descriptors.iter().copied()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !rights.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("the request has too many descriptors"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket, &[IoSlice::new(message)], &mut rights, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits for one message. Returns it with its pidfd, if it has one.
pub(super) fn receive(
    socket: &OwnedFd,
    until: Instant,
) -> io::Result<(FromNursery, Option<OwnedFd>)> {
    wait(socket, until)?;
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let handle = rights.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((serde_json::from_slice(&bytes[..received.bytes])?, handle))
}

fn wait(socket: &OwnedFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let patience = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&patience)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

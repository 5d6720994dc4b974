//! Sends a descriptor together with bytes over a unix socket.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Sends `descriptor` with as many of `bytes` as fit into the socket's buffer now. Returns how many.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    let fits = rights.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(fits, "the buffer has space for one descriptor");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut rights, flags) {
            Ok(sent) => return Ok(sent),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

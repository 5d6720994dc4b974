//! Sending a descriptor along with bytes over a unix socket.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Sends `descriptor` with `bytes`, or as many of them as there is room for now; how many.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    let fits = rights.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(fits, "the space is for one descriptor");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut rights, flags) {
            Ok(sent) => return Ok(sent),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

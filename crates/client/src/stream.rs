//! A stream that wakes its task only for the event that the task waits for.
//!
//! The runtime's own stream registers for both directions at once. Each time the peer reads from
//! the socket, the kernel reports it writable and wakes a task that waits for an answer, on the
//! path of every warm turn. This stream registers for reading, and for writing only while the
//! socket buffer is full. Both ends of the HTTP door and the node's end of a keeper's link use it.
//!
//! Not `AsyncFd`: without unsafe code it reads into initialised memory only, so every read would first clear its
//! buffer (up to 512 KiB of a keeper's output).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

/// See the module documentation. Works with the descriptor of any stream socket: the runtime's pipe
/// ends only read, write and wait, which works on sockets too.
#[derive(Debug)]
pub struct LeanStream {
    socket: pipe::Receiver,
    /// Waits for space in the socket buffer. Present only while the buffer is full.
    blocked: Option<pipe::Sender>,
}

impl LeanStream {
    /// Connects at once or fails: a listening unix socket completes a connection in the kernel,
    /// unless its backlog is full (`WouldBlock`).
    pub fn connect(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(socket)
    }

    /// Takes over a connected stream socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket: pipe::Receiver::from_owned_fd_unchecked(socket)?, blocked: None })
    }

    /// Waits until there are bytes to read or the other side has closed.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Whether unread bytes have arrived.
    pub fn has_bytes(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.socket, &mut [0_u8; 1], flags).is_ok_and(|(_, bytes)| bytes > 0)
    }

    /// The process at the other end, as the kernel recorded it at connect or listen.
    pub fn peer_pid(&self) -> Option<u32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Writes as much as the socket buffer takes now, without waiting.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.socket, bytes)?)
    }

    /// Writes directly, or through the waiting end once the socket buffer is full.
    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        direct: impl FnOnce(BorrowedFd<'_>) -> Result<usize, Errno>,
        waiting: impl FnOnce(Pin<&mut pipe::Sender>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.blocked.is_none() {
            match direct(self.socket.as_fd()) {
                Err(Errno::AGAIN) => {
                    let end = self.socket.as_fd().try_clone_to_owned()?;
                    self.blocked = Some(pipe::Sender::from_owned_fd_unchecked(end)?);
                }
                done => return Poll::Ready(done.map_err(io::Error::from)),
            }
        }
        let Some(sender) = &mut self.blocked else { return Poll::Pending };
        let written = ready!(waiting(Pin::new(sender), cx));
        self.blocked = None;
        Poll::Ready(written)
    }
}

impl AsFd for LeanStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for LeanStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for LeanStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let direct = |socket: BorrowedFd<'_>| rustix::io::write(socket, bytes);
        self.poll_write_with(cx, direct, |sender, cx| sender.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let direct = |socket: BorrowedFd<'_>| rustix::io::writev(socket, slices);
        self.poll_write_with(cx, direct, |sender, cx| sender.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Write);
        Poll::Ready(done.map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn more_than_the_socket_holds_goes_through_whole() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut near = LeanStream::new(near.into()).unwrap();
        let mut far = LeanStream::new(far.into()).unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut got = vec![0; sent.len()];
        let writing = async {
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let reading = async {
            far.read_exact(&mut got).await.unwrap();
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        };
        tokio::join!(writing, reading);
        assert_eq!(sent, got);
    }
}

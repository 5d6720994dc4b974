//! The protocol socket in the async runtime.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net;

use tokio::io::Interest;
use tokio::net::UnixStream;
use windlass_worker_kit::Link;

/// Another descriptor of the protocol socket, close-on-exec. The link itself never blocks either.
pub fn second_descriptor(link: &Link) -> io::Result<UnixStream> {
    let socket = net::UnixStream::from(link.as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Tells when the keeper has sent something.
#[derive(Debug)]
pub struct LinkWatch {
    socket: UnixStream,
}

impl LinkWatch {
    pub fn new(link: &Link) -> io::Result<Self> {
        Ok(Self { socket: second_descriptor(link)? })
    }

    /// Waits until there is something to read, or the keeper is gone.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Reads everything that is there.
    pub fn look(&self, link: &mut Link) {
        // The link reads until the socket is empty. The runtime must know that, to wait for the next bytes.
        let _ = self.socket.try_io(Interest::READABLE, || -> io::Result<()> {
            link.look();
            Err(io::ErrorKind::WouldBlock.into())
        });
    }
}

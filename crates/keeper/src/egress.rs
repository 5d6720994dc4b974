//! The sandbox's way to the network: a listener inside it, whose connections are passed on to the
//! node as they are. The keeper reads no byte of them, waits for nobody, and decides nothing.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use windlass_protocol::SessionId;

/// Connections passed on in one round of the poll loop; the rest wait in the listener's queue.
const ROUND_MAX: usize = 16;

/// The listener inside the sandbox, and where its connections go.
#[derive(Debug)]
pub(crate) struct Egress {
    listener: OwnedFd,
    /// The node's socket for them. A new node listens at the same path.
    node: PathBuf,
    session: SessionId,
}

impl Egress {
    /// Takes over a listening TCP socket.
    pub fn new(listener: OwnedFd, node: PathBuf, session: SessionId) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        Ok(Self { listener, node, session })
    }

    /// Its connections are another session's from now on.
    pub fn speak_for(&mut self, session: SessionId) {
        self.session = session;
    }

    /// Passes on what waits, a bounded number. A connection that no node takes is closed: whoever
    /// opened it may try again.
    pub fn pass_on(&self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ROUND_MAX {
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(connection) => {
                    // Whether the node has it or not, ours is closed.
                    let _ = self.hand_over(&connection);
                }
                // This one went away while it waited; the next may not have.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// One message: the session's id, and the connection with it. A node's socket takes it without
    /// the node, or refuses at once.
    fn hand_over(&self, connection: &OwnedFd) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let node = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&node, &SocketAddrUnix::new(&self.node)?)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let descriptors = [connection.as_fd()];
        let fits = rights.push(SendAncillaryMessage::ScmRights(&descriptors));
        debug_assert!(fits, "the space is for one descriptor");
        let id = [IoSlice::new(self.session.as_str().as_bytes())];
        rustix::net::sendmsg(&node, &id, &mut rights, SendFlags::NOSIGNAL).map(drop)
    }
}

impl AsFd for Egress {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::time::Duration;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

    use super::*;

    /// A test that waits this long has failed.
    const PATIENCE: Duration = Duration::from_secs(10);

    fn egress(node: &Path) -> (Egress, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let session = SessionId::parse("s1").unwrap();
        (Egress::new(listener.into(), node.to_owned(), session).unwrap(), address)
    }

    fn connect(address: std::net::SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A path of this test's own, removed with the value.
    struct TempSocketPath(PathBuf);

    impl TempSocketPath {
        fn new(name: &str) -> Self {
            let name = format!("windlass-egress-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for TempSocketPath {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// What one connection of a keeper's brought.
    fn receive(node: &UnixListener) -> (String, TcpStream) {
        let (keeper, _) = node.accept().unwrap();
        let mut id = [0; 128];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let read =
            rustix::net::recvmsg(&keeper, &mut [IoSliceMut::new(&mut id)], &mut rights, flags)
                .unwrap()
                .bytes;
        let mut passed: Vec<OwnedFd> = Vec::new();
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                passed.extend(descriptors);
            }
        }
        assert_eq!(passed.len(), 1, "one descriptor comes with the message");
        let stream = TcpStream::from(passed.remove(0));
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        (String::from_utf8_lossy(&id[..read]).into_owned(), stream)
    }

    #[test]
    fn each_connection_goes_to_the_node_with_the_session_s_id() {
        let path = TempSocketPath::new("goes");
        let node = UnixListener::bind(&path.0).unwrap();
        let (egress, address) = egress(&path.0);
        let mut clients = [connect(address), connect(address)];
        egress.pass_on();
        for client in &mut clients {
            let (session, mut served) = receive(&node);
            assert_eq!(session, "s1");
            served.write_all(b"from the node").unwrap();
            drop(served);
            let mut heard = String::new();
            client.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "from the node");
        }
    }

    #[test]
    fn without_a_node_the_connection_is_closed_and_a_later_one_goes_through() {
        let path = TempSocketPath::new("without");
        let (egress, address) = egress(&path.0);
        let mut early = connect(address);
        egress.pass_on();
        assert_eq!(early.read(&mut [0]).unwrap(), 0, "closed, not left hanging");
        // A socket that nobody listens at any more is the same as none.
        drop(UnixListener::bind(&path.0).unwrap());
        let mut refused = connect(address);
        egress.pass_on();
        assert_eq!(refused.read(&mut [0]).unwrap(), 0);
        std::fs::remove_file(&path.0).unwrap();
        let node = UnixListener::bind(&path.0).unwrap();
        let _late = connect(address);
        egress.pass_on();
        assert_eq!(receive(&node).0, "s1");
    }

    #[test]
    fn one_round_passes_on_a_bounded_number() {
        let path = TempSocketPath::new("bounded");
        let node = UnixListener::bind(&path.0).unwrap();
        let (egress, address) = egress(&path.0);
        let _clients: Vec<_> = (0..ROUND_MAX + 3).map(|_| connect(address)).collect();
        let arrived = || {
            node.set_nonblocking(true).unwrap();
            std::iter::from_fn(|| node.accept().ok()).count()
        };
        egress.pass_on();
        assert_eq!(arrived(), ROUND_MAX);
        egress.pass_on();
        assert_eq!(arrived(), 3);
        egress.pass_on();
        assert_eq!(arrived(), 0, "nothing waits, and nothing blocks");
    }
}

//! The sandbox's egress: a listener inside the sandbox. The keeper accepts its connections and passes their
//! descriptors to the node. The keeper reads no byte of them, never blocks, and decides nothing.

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

/// Connections that are passed on in one round of the poll loop; the others wait in the listener's queue.
const ROUND_MAX: usize = 16;

/// The listener inside the sandbox, and where its connections go.
#[derive(Debug)]
pub(crate) struct Egress {
    listener: OwnedFd,
    /// The path of the node's egress socket. A new node listens at the same path.
    node: PathBuf,
    session: SessionId,
}

impl Egress {
    /// Takes over a listening TCP socket.
    pub fn new(listener: OwnedFd, node: PathBuf, session: SessionId) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        Ok(Self { listener, node, session })
    }

    /// From now on, connections are passed on with the id of another session.
    pub fn set_session(&mut self, session: SessionId) {
        self.session = session;
    }

    /// Passes on waiting connections, at most [`ROUND_MAX`]. A connection that no node accepts is closed; the
    /// session's code can connect again.
    pub fn pass_on(&self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ROUND_MAX {
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(connection) => {
                    // The keeper's descriptor is closed in any case, also if the node did not get the
                    // connection.
                    let _ = self.hand_over(&connection);
                }
                // The client closed this connection while it waited; the next one may be open.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Sends one message: the session's id with the connection's descriptor. The socket queues the message
    /// even while the node is busy, or refuses it at once, so this call does not block.
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

    /// A unique socket path for one test. The file is removed on drop.
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

    /// Receives one message of a keeper: the session's id and the connection.
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
        // A socket file without a listener is handled like a missing file.
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

//! The console's own door: where it listens, and which logins depend on its port. It holds the port at both loopback
//! addresses, because a browser that is told `localhost` may use either of them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

/// How often the kernel may choose a port that another program has at the IPv6 address.
const CHOICES_MAX: usize = 16;

/// The names of the loopback addresses in the header `Host`.
const LOOPBACK_NAMES: [&str; 3] = ["127.0.0.1", "[::1]", "localhost"];

/// The loopback addresses of the console.
pub(super) enum ConsoleDoor {
    /// Nobody has logged in yet. The port is that of an earlier node.
    Closed {
        port: Option<u16>,
    },
    Open(OpenDoor),
    /// The node stops: the next node may listen at the port.
    Stopped {
        port: Option<u16>,
    },
}

/// The sockets of a door, all with the same port.
pub(super) struct OpenDoor {
    /// The IPv4 address.
    address: SocketAddr,
    held: Vec<TcpListener>,
    /// The sockets of `held`, once more, for the tasks that serve them. Empty once the tasks have them.
    unserved: Vec<TcpListener>,
}

impl ConsoleDoor {
    /// Opens a door at the port of an earlier node.
    pub fn reopen(port: u16) -> io::Result<Self> {
        listen(port).map(Self::Open)
    }

    /// Opens the door if it is closed, at the port of an earlier node if that is free. Returns its address.
    pub fn open(&mut self) -> io::Result<SocketAddr> {
        let port = match self {
            Self::Open(open) => return Ok(open.address),
            Self::Stopped { .. } => return Err(io::Error::other("the node is about to stop")),
            Self::Closed { port } => *port,
        };
        let opened = port.and_then(|port| listen(port).ok());
        let open = opened.map_or_else(|| listen(0), Ok)?;
        let address = open.address;
        *self = Self::Open(open);
        Ok(address)
    }

    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Closed { port } | Self::Stopped { port } => *port,
            Self::Open(open) => Some(open.address.port()),
        }
    }

    /// The sockets to serve and their IPv4 address, once.
    pub fn take_listeners(&mut self) -> Option<(SocketAddr, Vec<TcpListener>)> {
        match self {
            Self::Open(open) if !open.unserved.is_empty() => {
                Some((open.address, std::mem::take(&mut open.unserved)))
            }
            _ => None,
        }
    }

    /// Stops listening, also at the sockets that have been taken. Connections stay, and the port is free for the next
    /// node.
    pub fn stop(&mut self) {
        if let Self::Open(open) = self {
            for listener in &open.held {
                if let Err(error) = shutdown(listener, Shutdown::Both) {
                    tracing::warn!(%error, "cannot stop listening for the console");
                }
            }
        }
        *self = Self::Stopped { port: self.port() };
    }

    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped { .. })
    }
}

/// Whether a login that began at this `Host` used the console's own door at the port.
pub(super) fn is_at_port(host: &str, port: u16) -> bool {
    let Some((name, host_port)) = host.rsplit_once(':') else { return false };
    let is_loopback = LOOPBACK_NAMES.iter().any(|known| name.eq_ignore_ascii_case(known));
    is_loopback && host_port.parse() == Ok(port)
}

/// Listens where only programs of this machine can connect. With port 0 the kernel chooses a port.
fn listen(port: u16) -> io::Result<OpenDoor> {
    let mut tries = CHOICES_MAX;
    loop {
        tries -= 1;
        match listen_once(port) {
            // The next port that the kernel chooses may be free at both addresses.
            Err(error) if port == 0 && tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            listened => return listened,
        }
    }
}

fn listen_once(port: u16) -> io::Result<OpenDoor> {
    let ipv4 = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let address = ipv4.local_addr()?;
    let mut held = vec![ipv4];
    match TcpListener::bind((Ipv6Addr::LOCALHOST, address.port())) {
        Ok(ipv6) => held.push(ipv6),
        Err(error) if lacks_ipv6(&error) => {}
        // Another program would get the pages of a browser that is told `localhost`.
        Err(error) => return Err(error),
    }
    for listener in &held {
        listener.set_nonblocking(true)?;
    }
    let unserved = held.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?;
    Ok(OpenDoor { address, held, unserved })
}

/// Whether this machine has no loopback address of IPv6, so that no other program can listen there.
fn lacks_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that a program has at the IPv6 address alone; `None` on a machine without IPv6.
    fn taken_at_ipv6() -> Option<(TcpListener, u16)> {
        let taken = match TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
            Err(error) if lacks_ipv6(&error) => return None,
            taken => taken.unwrap(),
        };
        let port = taken.local_addr().unwrap().port();
        Some((taken, port))
    }

    #[test]
    fn a_port_that_another_program_has_at_one_loopback_address_is_taken() {
        let Some((_taken, port)) = taken_at_ipv6() else { return };
        assert!(listen(port).is_err());
        let mut door = ConsoleDoor::Closed { port: Some(port) };
        let address = door.open().unwrap();
        assert_ne!(address.port(), port);
        let (_, listeners) = door.take_listeners().unwrap();
        assert_eq!(listeners.len(), 2);
        assert!(TcpListener::bind((Ipv6Addr::LOCALHOST, address.port())).is_err());
        assert!(door.take_listeners().is_none());
    }

    #[test]
    fn the_port_of_a_stopped_door_is_free_while_its_sockets_are_open() {
        let mut door = ConsoleDoor::Closed { port: None };
        let address = door.open().unwrap();
        let _served = door.take_listeners().unwrap();
        let _connection = std::net::TcpStream::connect(address).unwrap();
        assert!(ConsoleDoor::reopen(address.port()).is_err());
        door.stop();
        assert!(door.open().is_err() && door.is_stopped());
        assert_eq!(door.port(), Some(address.port()));
        let next = ConsoleDoor::reopen(address.port()).unwrap();
        assert_eq!(next.port(), door.port());
    }

    #[tokio::test]
    async fn a_task_that_waits_for_connections_learns_that_the_door_has_stopped() {
        let mut door = ConsoleDoor::Closed { port: None };
        door.open().unwrap();
        let (_, listeners) = door.take_listeners().unwrap();
        let waiting: Vec<_> = listeners
            .into_iter()
            .map(|listener| {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::spawn(async move { listener.accept().await.is_err() })
            })
            .collect();
        tokio::task::yield_now().await;
        door.stop();
        for one in waiting {
            assert!(one.await.unwrap());
        }
    }

    #[test]
    fn only_logins_at_a_loopback_name_and_the_port_are_of_the_console_s_own_door() {
        for (host, expected) in [
            ("127.0.0.1:4000", true),
            ("[::1]:4000", true),
            ("localhost:4000", true),
            ("LocalHost:4000", true),
            ("127.0.0.1:4001", false),
            ("127.0.0.1", false),
            ("node.example:4000", false),
            ("192.0.2.1:4000", false),
            (":4000", false),
            ("", false),
        ] {
            assert_eq!(is_at_port(host, 4000), expected, "{host}");
        }
    }
}

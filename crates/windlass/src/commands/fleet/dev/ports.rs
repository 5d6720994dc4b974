//! Ports of loopback for the parts of the fleet.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Ports that nothing listens at. Another program can take one before the fleet does; then the part that needs it says so.
pub(super) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    // All are bound at once, so that they differ.
    let listeners = (0..count).map(bind).collect::<io::Result<Vec<_>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

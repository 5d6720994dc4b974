//! The network namespace's inside: its loopback device, and the listener that leads to the proxy.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen as start_listening, socket_with, sockopt,
};

use super::rights::check;
use crate::plan::PROXY_PORT;

/// Connections that wait for the keeper to pass them on.
const BACKLOG: i32 = 64;

pub(super) fn bring_up_loopback() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the pointer is to a live value of the layout that this request takes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) })
}

pub(super) fn listen() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, PROXY_PORT))?;
    start_listening(&socket, BACKLOG)?;
    Ok(socket)
}

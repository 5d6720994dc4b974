//! Sets up a network namespace: its loopback device, and the listener that leads to the proxy.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen as start_listening, socket_with, sockopt,
};

use super::rights::check;
use super::{ConfineStep, StepError};
use crate::plan::PROXY_PORT;

/// Maximum number of connections that wait until the keeper accepts them.
const BACKLOG: i32 = 64;

/// Makes a network namespace with a loopback device for another process. The calling process enters it, too.
pub(super) fn make() -> Result<OwnedFd, StepError> {
    // SAFETY: no memory is passed; the caller has one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
        .map_err(StepError::at(ConfineStep::Unshare))?;
    namespace_of(&bring_up_loopback().map_err(StepError::at(ConfineStep::Loopback))?)
        .map_err(StepError::at(ConfineStep::Unshare))
}

/// The network namespace of a socket.
fn namespace_of(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    const SIOCGSKNS: libc::Ioctl = 0x894C;
    // SAFETY: this request takes no memory.
    let namespace = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    check(namespace)?;
    // SAFETY: the kernel has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}

/// Brings up the loopback device. Returns a socket of this network namespace.
pub(super) fn bring_up_loopback() -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the pointer is to a live value of the layout that this request takes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) })?;
    Ok(socket)
}

pub(super) fn listen() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, PROXY_PORT))?;
    start_listening(&socket, BACKLOG)?;
    Ok(socket)
}

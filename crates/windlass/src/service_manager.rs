//! What a service manager such as systemd gives a node: a listening socket (`LISTEN_FDS`), and a socket for the message
//! that the node is ready (`NOTIFY_SOCKET`). Never talks to the service manager in any other way.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use windlass_procs::inherited::take_inherited;

/// The number of the first descriptor that a service manager passes on.
const FIRST_DESCRIPTOR: i32 = 3;

/// Why the sockets of a service manager cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PassedSocketError {
    #[error("the service manager passes LISTEN_FDS={0:?}; a node takes one unix socket")]
    Count(String),
    #[error("cannot use the socket of the service manager: {0}")]
    Io(#[from] io::Error),
    #[error("the descriptor of the service manager is not a listening unix socket")]
    NotListening,
}

/// The listening socket that the service manager passed to this process, if there is one. Call this before the process
/// opens files of its own.
pub fn take_listener() -> Result<Option<UnixListener>, PassedSocketError> {
    let Some(count) = passed_to_this_process(|name| std::env::var_os(name)) else {
        return Ok(None);
    };
    if count != "1" {
        return Err(PassedSocketError::Count(count));
    }
    let socket = take_inherited(FIRST_DESCRIPTOR)?;
    let failed = |errno: rustix::io::Errno| io::Error::from(errno);
    let is_unix = socket_domain(&socket).map_err(failed)? == rustix::net::AddressFamily::UNIX;
    if !is_unix || !socket_acceptconn(&socket).map_err(failed)? {
        return Err(PassedSocketError::NotListening);
    }
    Ok(Some(UnixListener::from(socket)))
}

/// The value of `LISTEN_FDS`, if `LISTEN_PID` names this process. A process inherits variables that are for its parent.
fn passed_to_this_process(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let pid = variable("LISTEN_PID")?;
    if pid.to_str() != Some(&std::process::id().to_string()) {
        return None;
    }
    Some(variable("LISTEN_FDS")?.to_string_lossy().into_owned())
}

/// Tells the service manager that the node serves. Without a service manager this does nothing.
pub fn say_ready() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = notify(&name, b"READY=1") {
        tracing::warn!(%error, socket = ?name, "cannot tell the service manager that the node is ready");
    }
}

fn notify(name: &OsString, message: &[u8]) -> io::Result<()> {
    // A name that starts with @ is in the abstract namespace.
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_another_process_are_ignored() {
        let variables = |pid: String| {
            move |name: &str| match name {
                "LISTEN_PID" => Some(OsString::from(pid.clone())),
                "LISTEN_FDS" => Some("1".into()),
                _ => None,
            }
        };
        let own = std::process::id();
        assert_eq!(passed_to_this_process(variables(own.to_string())), Some("1".to_owned()));
        assert_eq!(passed_to_this_process(variables((own + 1).to_string())), None);
        assert_eq!(passed_to_this_process(variables(format!("{own} "))), None);
        assert_eq!(passed_to_this_process(|_| None), None);
    }

    #[test]
    fn the_message_reaches_a_socket_with_a_path_and_an_abstract_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("windlass-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&by_name).unwrap();
        for (socket, address) in
            [(by_path, path.into_os_string()), (by_name, format!("@{name}").into())]
        {
            notify(&address, b"READY=1").unwrap();
            let mut message = [0; 16];
            let length = socket.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"READY=1");
        }
    }
}

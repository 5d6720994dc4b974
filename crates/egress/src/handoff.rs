//! Receives a connection from a keeper: one message, with one descriptor and the session's id.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketType, recvmsg, sockopt,
};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use windlass_protocol::SessionId;
use windlass_protocol::ids::{ID_CHARS_MAX, IdError};

/// Why a keeper's message cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("cannot receive the message: {0}")]
    Io(#[from] io::Error),
    #[error("the message has {0} descriptors instead of one")]
    Descriptors(usize),
    #[error("the descriptor is not a stream socket")]
    NoStream,
    #[error("the message has no valid session id: {0}")]
    Id(#[from] IdError),
}

/// Space for one descriptor more than is allowed, so that a second descriptor is detected.
const DESCRIPTORS_MAX: usize = 2;

/// Waits for the message of `keeper`: the client's connection and its session.
pub(super) async fn receive(keeper: &UnixStream) -> Result<(TcpStream, SessionId), ReceiveError> {
    let (id, mut descriptors) = keeper.async_io(Interest::READABLE, || receive_now(keeper)).await?;
    let count = descriptors.len();
    let Some(descriptor) = descriptors.pop().filter(|_| count == 1) else {
        return Err(ReceiveError::Descriptors(count));
    };
    if sockopt::socket_type(&descriptor).ok() != Some(SocketType::STREAM) {
        return Err(ReceiveError::NoStream);
    }
    let session = SessionId::parse(String::from_utf8_lossy(&id))?;
    let client = std::net::TcpStream::from(descriptor);
    client.set_nonblocking(true)?;
    Ok((TcpStream::from_std(client)?, session))
}

fn receive_now(keeper: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One byte more than the longest id, so that a longer text is not truncated to a valid id.
    let mut id = vec![0; ID_CHARS_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(keeper, &mut [IoSliceMut::new(&mut id)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    id.truncate(received.bytes);
    let mut descriptors = Vec::with_capacity(DESCRIPTORS_MAX);
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // The message had more descriptors than the space holds, or the node had no free descriptor.
        return Err(io::Error::other("descriptors were lost"));
    }
    Ok((id, descriptors))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::fd::{AsFd, BorrowedFd};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Sends a message of these bytes and descriptors; returns the received session id.
    async fn passed(bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<String, ReceiveError> {
        let (keeper, node) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(rights.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(&keeper, &[IoSlice::new(bytes)], &mut rights, SendFlags::empty()).unwrap();
        receive(&node).await.map(|(_, session)| session.to_string())
    }

    #[tokio::test]
    async fn one_connection_comes_with_its_session_s_id() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let connection = listener.as_fd();
        assert_eq!(passed(b"s-1", &[connection]).await.unwrap(), "s-1");
        type Expected = fn(&ReceiveError) -> bool;
        let cases: [(&[u8], Vec<BorrowedFd<'_>>, Expected); 6] = [
            (b"s1", vec![], |error| matches!(error, ReceiveError::Descriptors(0))),
            (b"s1", vec![connection; 2], |error| matches!(error, ReceiveError::Descriptors(2))),
            (b"s1", vec![connection; 8], |error| matches!(error, ReceiveError::Io(_))),
            (b"s1", vec![file.as_fd()], |error| matches!(error, ReceiveError::NoStream)),
            (b"../s1", vec![connection], |error| matches!(error, ReceiveError::Id(_))),
            (&[b'a'; 65], vec![connection], |error| matches!(error, ReceiveError::Id(_))),
        ];
        for (bytes, descriptors, expected) in cases {
            let error = passed(bytes, &descriptors).await.unwrap_err();
            assert!(expected(&error), "{bytes:?} {error}");
        }
    }

    #[tokio::test]
    async fn a_keeper_that_closes_without_a_message_is_an_error() {
        let (keeper, node) = UnixStream::pair().unwrap();
        drop(keeper);
        assert!(matches!(receive(&node).await, Err(ReceiveError::Descriptors(0))));
    }
}

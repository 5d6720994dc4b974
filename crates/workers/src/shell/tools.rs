//! Serves `windlass-tool`. The program sends one end of a socket pair over a channel that it has inherited.
//! Then it sends its request over the pair and reads the answer. No socket has a name, so this works in
//! sessions that may not make named sockets.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use windlass_protocol::limits::{MESSAGE_BYTES_MAX, TOOL_CALLS_MAX};
use windlass_worker_kit::{CallNo, Link, TurnNo, WorkerLinkError};

use super::bash::receive_descriptor;

/// The first byte of an answer.
pub const SUCCESS: u8 = b'+';
pub const FAILURE: u8 = b'-';

/// Bytes of a request besides its arguments.
const REQUEST_EXTRA_BYTES: usize = 4096;

/// What `windlass-tool` sends.
#[derive(Debug, Deserialize)]
struct ToolRequest<'a> {
    name: String,
    deadline_ms: Option<u64>,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// All open calls of `windlass-tool`.
#[derive(Debug)]
pub struct ToolDesk {
    channel: OwnedFd,
    pub bash_end: OwnedFd,
    connections: BTreeMap<CallNo, ToolConnection>,
    last_call: CallNo,
}

/// One running `windlass-tool`.
#[derive(Debug)]
struct ToolConnection {
    socket: OwnedFd,
    state: ConnectionState,
}

#[derive(Debug)]
enum ConnectionState {
    Asking(Vec<u8>),
    /// The call was sent in this turn.
    Called(TurnNo),
    Answering {
        answer: Vec<u8>,
        sent: usize,
    },
}

impl ToolDesk {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (channel, bash_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        fcntl_setfl(&channel, OFlags::NONBLOCK)?;
        Ok(Self { channel, bash_end, connections: BTreeMap::new(), last_call: CallNo(0) })
    }

    /// What to poll.
    pub fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        let connections = self.connections.values().map(|connection| {
            let wanted = match connection.state {
                ConnectionState::Asking(_) | ConnectionState::Called(_) => PollFlags::IN,
                ConnectionState::Answering { .. } => PollFlags::OUT,
            };
            PollFd::new(&connection.socket, wanted)
        });
        std::iter::once(PollFd::new(&self.channel, PollFlags::IN)).chain(connections)
    }

    /// Takes new connections, requests and hang-ups, and sends calls. `turn` is the running turn.
    pub fn serve(&mut self, link: &mut Link, turn: Option<TurnNo>) -> Result<(), WorkerLinkError> {
        while self.connections.len() < TOOL_CALLS_MAX
            && let Some(socket) = receive_descriptor(&self.channel)
        {
            if fcntl_setfl(&socket, OFlags::NONBLOCK).is_ok() {
                self.last_call = self.last_call.next();
                let state = ConnectionState::Asking(Vec::new());
                self.connections.insert(self.last_call, ToolConnection { socket, state });
            }
        }
        let mut gone = Vec::new();
        for (call, connection) in &mut self.connections {
            if !connection.advance(*call, link, turn)? {
                gone.push(*call);
            }
        }
        for call in gone {
            self.connections.remove(&call);
        }
        Ok(())
    }

    /// The keeper has answered a call.
    pub fn answer(&mut self, call: CallNo, ok: bool, body: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&call)
            && matches!(connection.state, ConnectionState::Called(_))
        {
            connection.reply(if ok { SUCCESS } else { FAILURE }, body);
            if !connection.send_answer() {
                self.connections.remove(&call);
            }
        }
    }

    /// The turn is over, and with it its calls.
    pub fn end_turn(&mut self, turn: TurnNo) {
        for connection in self.connections.values_mut() {
            if matches!(connection.state, ConnectionState::Called(of) if of == turn) {
                connection.fail("the turn is over");
                connection.send_answer();
            }
        }
    }
}

impl ToolConnection {
    /// Whether the connection still lives.
    fn advance(
        &mut self,
        call: CallNo,
        link: &mut Link,
        turn: Option<TurnNo>,
    ) -> Result<bool, WorkerLinkError> {
        if let ConnectionState::Answering { .. } = self.state {
            return Ok(self.send_answer());
        }
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) => count,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => continue,
                Err(_) => 0,
            };
            match &mut self.state {
                ConnectionState::Asking(request) if count > 0 => {
                    request.extend_from_slice(&buffer[..count]);
                    if request.len() > MESSAGE_BYTES_MAX + REQUEST_EXTRA_BYTES {
                        self.fail("the arguments are over the limit of 16 MiB");
                        return Ok(self.send_answer());
                    }
                    // A request ends with a zero byte. The socket stays open, so that its end can be seen.
                    if request.last() == Some(&0) {
                        self.call(call, link, turn)?;
                        return Ok(!matches!(self.state, ConnectionState::Answering { .. })
                            || self.send_answer());
                    }
                }
                ConnectionState::Called(of) => {
                    // The program is gone: nobody waits for the answer.
                    if Some(*of) == turn && count == 0 {
                        link.tool_cancel(*of, call)?;
                    }
                    if count == 0 {
                        return Ok(false);
                    }
                }
                _ => return Ok(false),
            }
        }
    }

    fn call(
        &mut self,
        call: CallNo,
        link: &mut Link,
        turn: Option<TurnNo>,
    ) -> Result<(), WorkerLinkError> {
        let ConnectionState::Asking(request) = &mut self.state else { return Ok(()) };
        let mut request = std::mem::take(request);
        request.pop();
        let Some(turn) = turn else {
            self.fail("no turn is running");
            return Ok(());
        };
        let Ok(ToolRequest { name, deadline_ms, arguments }) = serde_json::from_slice(&request)
        else {
            self.fail("the request is malformed");
            return Ok(());
        };
        match link.tool_call(turn, call, &name, deadline_ms, arguments.get().as_bytes()) {
            Ok(()) => self.state = ConnectionState::Called(turn),
            Err(WorkerLinkError::Refused(cause)) => self.fail(&cause.to_string()),
            Err(other) => return Err(other),
        }
        Ok(())
    }

    fn fail(&mut self, message: &str) {
        let body = serde_json::json!({ "message": message, "code": "tool_cancelled" }).to_string();
        self.reply(FAILURE, body.as_bytes());
    }

    fn reply(&mut self, first: u8, body: &[u8]) {
        let mut answer = Vec::with_capacity(body.len() + 1);
        answer.push(first);
        answer.extend_from_slice(body);
        self.state = ConnectionState::Answering { answer, sent: 0 };
    }

    /// Sends what the socket takes. False when all is sent or nobody reads.
    fn send_answer(&mut self) -> bool {
        let ConnectionState::Answering { answer, sent } = &mut self.state else { return true };
        while *sent < answer.len() {
            match send(&self.socket, &answer[*sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => *sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        false
    }
}

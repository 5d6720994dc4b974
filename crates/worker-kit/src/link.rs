//! The protocol socket of a worker. Reads without blocking, writes whole frames, and keeps reading while a
//! write waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use windlass_procs::inherited::take_inherited;
use windlass_protocol::frame::EncodeError;
use windlass_protocol::limits::{CHUNK_BYTES_MAX, FRAME_BYTES_MAX};
use windlass_protocol::worker::{
    FD_VARIABLE, FromWorker, StartupFigures, WorkerError, WorkerOutcome,
};
use windlass_protocol::{CallNo, Stream, TurnNo};

use crate::inbox::{Inbox, InboxError, KeeperMessage};
use crate::outgoing::{self, Display};

/// Why a message was not sent, or why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum WorkerLinkError {
    #[error("{FD_VARIABLE} does not name the protocol socket: {0}")]
    NoSocket(String),
    /// The keeper is gone. The worker has nothing left to do.
    #[error("the protocol socket is closed")]
    Closed,
    #[error("the protocol socket failed: {0}")]
    Failed(#[from] io::Error),
    /// For example, a message over its limit. Nothing was sent, and the link continues.
    #[error(transparent)]
    Refused(#[from] EncodeError),
}

/// The worker's end of the protocol socket.
#[derive(Debug)]
pub struct Link {
    /// Absent once [`Link::close`] was called.
    socket: Option<OwnedFd>,
    inbox: Inbox,
    /// Why nothing more can be read.
    end: Option<InputEnd>,
    received: Vec<u8>,
    frames: Vec<u8>,
}

/// Why nothing more comes from the keeper.
#[derive(Debug)]
enum InputEnd {
    Closed,
    Malformed(InboxError),
}

impl Link {
    /// The socket that the environment names, close-on-exec. Call this first in `main`. The variable stays in
    /// the environment of the process: remove it from that of children.
    pub fn from_environment() -> Result<Self, WorkerLinkError> {
        let text =
            std::env::var(FD_VARIABLE).map_err(|e| WorkerLinkError::NoSocket(e.to_string()))?;
        let number = text
            .parse()
            .map_err(|_| WorkerLinkError::NoSocket(format!("{text:?} is not a number")))?;
        let socket =
            take_inherited(number).map_err(|e| WorkerLinkError::NoSocket(e.to_string()))?;
        Ok(Self::over(socket))
    }

    pub fn over(socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
            inbox: Inbox::default(),
            end: None,
            received: vec![0; FRAME_BYTES_MAX],
            frames: Vec::new(),
        }
    }

    /// Reads everything that is there into whole messages. Never blocks.
    pub fn look(&mut self) {
        while self.end.is_none() && self.inbox.has_room() {
            let Some(socket) = &self.socket else { return };
            match recv(socket, &mut self.received[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.end = Some(InputEnd::Closed),
                Ok((count, _)) => {
                    if let Err(malformed) = self.inbox.push(&self.received[..count]) {
                        self.end = Some(InputEnd::Malformed(malformed));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.end = Some(InputEnd::Closed),
            }
        }
    }

    /// The next message among those that were read. [`KeeperMessage::Closed`] again and again once the socket is
    /// closed and all messages were taken.
    #[expect(
        clippy::should_implement_trait,
        reason = "no iterator: `None` means that nothing is there yet"
    )]
    pub fn next(&mut self) -> Option<KeeperMessage> {
        self.inbox.next().or_else(|| self.end.as_ref().map(|_| KeeperMessage::Closed))
    }

    /// The next message. Blocks until there is one.
    pub fn wait(&mut self) -> KeeperMessage {
        loop {
            if let Some(message) = self.next() {
                return message;
            }
            self.look();
            if let Some(message) = self.next() {
                return message;
            }
            let Some(socket) = &self.socket else { return KeeperMessage::Closed };
            // An interrupted call is repeated: an interrupt of a turn also comes as a message.
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], None);
        }
    }

    /// Reads what is there. Then says whether an interrupt for this turn has come, also one that came before
    /// the turn's code.
    pub fn interrupted(&mut self, turn: TurnNo) -> bool {
        self.look();
        self.inbox.interrupted(turn)
    }

    /// Whether nothing more comes from the keeper.
    pub fn is_closed(&self) -> bool {
        self.end.is_some()
    }

    /// What the keeper sent that is no message, if that is why the link is closed.
    pub fn malformed(&self) -> Option<&InboxError> {
        match &self.end {
            Some(InputEnd::Malformed(cause)) => Some(cause),
            _ => None,
        }
    }

    /// Closes this process's descriptor, in a forked child that is not the worker. The worker's own link is not
    /// affected.
    pub fn close(&mut self) {
        self.socket = None;
        self.end = Some(InputEnd::Closed);
    }

    pub fn ready(
        &mut self,
        worker: &str,
        capabilities: &[&str],
        startup: Option<&StartupFigures>,
    ) -> Result<(), WorkerLinkError> {
        self.send_encoded(|out| outgoing::ready(out, worker, capabilities, startup))
    }

    /// Output of the running turn that does not go through the raw pipes.
    pub fn output(
        &mut self,
        turn: TurnNo,
        stream: Stream,
        bytes: &[u8],
    ) -> Result<(), WorkerLinkError> {
        self.send_output(turn, stream, false, bytes)
    }

    /// Output of a thread or process that has outlived its turn.
    pub fn background_output(
        &mut self,
        turn: TurnNo,
        stream: Stream,
        bytes: &[u8],
    ) -> Result<(), WorkerLinkError> {
        self.send_output(turn, stream, true, bytes)
    }

    fn send_output(
        &mut self,
        turn: TurnNo,
        stream: Stream,
        background: bool,
        bytes: &[u8],
    ) -> Result<(), WorkerLinkError> {
        for part in bytes.chunks(CHUNK_BYTES_MAX) {
            let header = |_| FromWorker::Output { turn, stream, background };
            self.send_encoded(|out| outgoing::in_frames(out, part, header))?;
        }
        Ok(())
    }

    pub fn display(
        &mut self,
        turn: TurnNo,
        display: Display<'_>,
        body: &[u8],
    ) -> Result<(), WorkerLinkError> {
        let header = |more| FromWorker::Display {
            turn,
            mime: outgoing::name(display.mime),
            id: display.id.map(outgoing::name),
            update: display.update,
            more,
        };
        self.send_encoded(|out| outgoing::in_frames(out, body, header))
    }

    /// The code asks for input. The answer comes as [`KeeperMessage::Input`].
    pub fn stdin_wait(
        &mut self,
        turn: TurnNo,
        prompt: &str,
        secret: bool,
    ) -> Result<(), WorkerLinkError> {
        let prompt = prompt.to_owned();
        self.send_plain(FromWorker::StdinWait { turn, prompt, secret })
    }

    /// The code calls a host tool. `arguments` is a JSON object.
    pub fn tool_call(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        name: &str,
        deadline_ms: Option<u64>,
        arguments: &[u8],
    ) -> Result<(), WorkerLinkError> {
        let name = outgoing::name(name);
        let header =
            |more| FromWorker::ToolCall { turn, call, name: name.clone(), deadline_ms, more };
        self.send_encoded(|out| outgoing::in_frames(out, arguments, header))
    }

    pub fn tool_cancel(&mut self, turn: TurnNo, call: CallNo) -> Result<(), WorkerLinkError> {
        self.send_plain(FromWorker::ToolCancel { turn, call })
    }

    /// The turn is over. `error` is a name and a message.
    pub fn idle(
        &mut self,
        turn: TurnNo,
        outcome: WorkerOutcome,
        error: Option<(&str, &str)>,
    ) -> Result<(), WorkerLinkError> {
        self.idle_with_status(turn, outcome, error, None)
    }

    /// Like [`Self::idle`], with the exit status of the code.
    pub fn idle_with_status(
        &mut self,
        turn: TurnNo,
        outcome: WorkerOutcome,
        error: Option<(&str, &str)>,
        exit_code: Option<i32>,
    ) -> Result<(), WorkerLinkError> {
        let error = error.map(|(name, message)| WorkerError {
            name: name.to_owned(),
            message: message.to_owned(),
        });
        self.send_plain(FromWorker::Idle { turn, outcome, error, exit_code, value: None })
    }

    pub fn session_end(&mut self, reason: &str) -> Result<(), WorkerLinkError> {
        self.send_plain(FromWorker::SessionEnd { reason: reason.to_owned() })
    }

    /// A message without a body. Its texts are shortened.
    pub fn send_plain(&mut self, message: FromWorker) -> Result<(), WorkerLinkError> {
        self.send_encoded(|out| outgoing::plain(out, message))
    }

    /// A message with a body of at most one frame, for kinds that have no method here.
    pub fn send_frame(&mut self, message: &FromWorker, body: Bytes) -> Result<(), WorkerLinkError> {
        self.send_encoded(|out| windlass_protocol::frame::encode(out, message, &body))
    }

    fn send_encoded(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), WorkerLinkError> {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let sent = encode(&mut frames).map_err(WorkerLinkError::from);
        let sent = sent.and_then(|()| self.write(&frames));
        if frames.capacity() <= 2 * FRAME_BYTES_MAX {
            self.frames = frames;
        }
        sent
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WorkerLinkError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(socket) = &self.socket else { return Err(WorkerLinkError::Closed) };
            match send(socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::AGAIN) => self.wait_to_write()?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    return Err(WorkerLinkError::Closed);
                }
                Err(other) => return Err(io::Error::from(other).into()),
            }
        }
        Ok(())
    }

    /// Waits until the socket takes bytes, and reads what comes meanwhile: the keeper may itself wait until the
    /// worker reads.
    fn wait_to_write(&mut self) -> Result<(), WorkerLinkError> {
        let Some(socket) = &self.socket else { return Err(WorkerLinkError::Closed) };
        let mut wanted = PollFlags::OUT;
        if self.end.is_none() && self.inbox.has_room() {
            wanted |= PollFlags::IN;
        }
        let mut watched = [PollFd::new(socket, wanted)];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(other) => return Err(io::Error::from(other).into()),
        }
        if watched[0].revents().contains(PollFlags::IN) {
            self.look();
        }
        Ok(())
    }
}

impl AsFd for Link {
    /// The socket, to poll for input. Poll a closed link no more: [`Link::is_closed`] says so.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Some(socket) => socket.as_fd(),
            None => rustix::stdio::stdin(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use windlass_protocol::frame;

    use super::*;

    fn pair() -> (UnixStream, Link) {
        let (keeper, worker) = UnixStream::pair().unwrap();
        (keeper, Link::over(worker.into()))
    }

    fn framed(header: &str, body: &[u8]) -> Vec<u8> {
        let header: serde_json::Value = serde_json::from_str(header).unwrap();
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, &header, body).unwrap();
        bytes
    }

    #[test]
    fn look_never_blocks_and_wait_does() {
        let (mut keeper, mut link) = pair();
        link.look();
        assert_eq!(link.next(), None);
        let turn = framed(r#"{"kind":"turn_start","turn":3}"#, b"code");
        keeper.write_all(&turn[..5]).unwrap();
        link.look();
        assert_eq!(link.next(), None);
        let writer = thread::spawn(move || {
            keeper.write_all(&turn[5..]).unwrap();
            keeper
        });
        let code = Bytes::from_static(b"code");
        assert_eq!(link.wait(), KeeperMessage::TurnStart { turn: TurnNo(3), code, context: None });
        drop(writer.join().unwrap());
        assert_eq!(link.wait(), KeeperMessage::Closed);
        assert_eq!(link.next(), Some(KeeperMessage::Closed));
        assert!(matches!(link.session_end("over"), Err(WorkerLinkError::Closed)));
    }

    #[test]
    fn an_interrupt_before_its_turn_is_known_when_the_turn_comes() {
        let (mut keeper, mut link) = pair();
        keeper.write_all(&framed(r#"{"kind":"interrupt","turn":2}"#, b"")).unwrap();
        assert!(link.interrupted(TurnNo(2)));
        keeper.write_all(&framed(r#"{"kind":"turn_start","turn":2}"#, b"x")).unwrap();
        assert_eq!(link.wait(), KeeperMessage::Interrupt { turn: TurnNo(2) });
        assert!(matches!(link.wait(), KeeperMessage::TurnStart { .. }));
        assert!(link.interrupted(TurnNo(2)));
        assert!(!link.interrupted(TurnNo(3)));
    }

    #[test]
    fn a_large_call_and_a_large_answer_pass_each_other() {
        let (mut keeper, mut link) = pair();
        let size = 8 * 1024 * 1024;
        let peer = thread::spawn(move || {
            // The keeper writes everything before it reads: the worker must read while it writes.
            let part = vec![b'a'; CHUNK_BYTES_MAX];
            for _ in 0..size / CHUNK_BYTES_MAX {
                let header = r#"{"kind":"tool_result","turn":1,"call":1,"ok":true,"more":true}"#;
                keeper.write_all(&framed(header, &part)).unwrap();
            }
            let header = r#"{"kind":"tool_result","turn":1,"call":1,"ok":true}"#;
            keeper.write_all(&framed(header, b"")).unwrap();
            let mut received = Vec::new();
            keeper.read_to_end(&mut received).unwrap();
            received.len()
        });
        link.tool_call(TurnNo(1), CallNo(2), "t.t", None, &vec![b'b'; size]).unwrap();
        let KeeperMessage::ToolResult { body, .. } = link.wait() else { panic!() };
        assert_eq!(body.len(), size / CHUNK_BYTES_MAX * CHUNK_BYTES_MAX);
        drop(link);
        assert!(peer.join().unwrap() > size);
    }

    #[test]
    fn a_message_over_its_limit_leaves_the_link_usable() {
        let (_keeper, mut link) = pair();
        let long = vec![0; 17 * 1024 * 1024];
        let refused = link.tool_call(TurnNo(1), CallNo(1), "t.t", None, &long);
        assert!(matches!(refused, Err(WorkerLinkError::Refused(_))));
        link.idle(TurnNo(1), WorkerOutcome::Ok, None).unwrap();
    }

    #[test]
    fn malformed_bytes_close_the_link() {
        let (mut keeper, mut link) = pair();
        keeper.write_all(&framed(r#"{"kind":"interrupt","turn":1}"#, b"")).unwrap();
        keeper.write_all(b"\xff\xff\xff\xff").unwrap();
        assert_eq!(link.wait(), KeeperMessage::Interrupt { turn: TurnNo(1) });
        assert_eq!(link.wait(), KeeperMessage::Closed);
        assert!(link.malformed().is_some());
    }
}

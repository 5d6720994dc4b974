//! The worker process as the keeper sees it: its protocol socket, its two raw pipes, its pid.
//! Moves bytes; what they mean is decided in `turn` and `keeper`.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use windlass_confine::Started;
use windlass_protocol::Stream;
use windlass_protocol::event::StartedBy;
use windlass_protocol::frame::{self, Decoder, EncodeError, Frame, FrameError};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::worker::{CAPABILITIES_MAX, CAPABILITY_BYTES_MAX, ToWorker};

use crate::usage::Meter;

/// Raw output bytes put into one event.
const PIPE_READ_BYTES: usize = 128 * 1024;

/// What a pipe holds at first.
pub(crate) const PIPE_BYTES: usize = 64 * 1024;

/// What a pipe is made to hold once the worker has filled it: a flood then wakes us less often.
const FLOOD_PIPE_BYTES: usize = 1024 * 1024;

/// What a worker has said of itself.
#[derive(Debug)]
pub(crate) struct SaidReady {
    pub worker: String,
    pub capabilities: Vec<String>,
}

impl SaidReady {
    /// What counts of a worker's words: the worker is not trusted to be brief.
    pub fn new(worker: &str, mut capabilities: Vec<String>) -> Self {
        capabilities.retain(|capability| capability.len() <= CAPABILITY_BYTES_MAX);
        capabilities.truncate(CAPABILITIES_MAX);
        Self { worker: worker.to_owned(), capabilities }
    }
}

/// A started worker.
#[derive(Debug)]
pub(crate) struct Worker {
    pub pid: u32,
    /// The first process of its pid namespace, where it has one.
    pub init: Option<u32>,
    /// The processes that move it into its cgroups, until they have ended.
    pub joining: Vec<u32>,
    pub start: StartedBy,
    /// What it called itself when it said that it is ready, while it must still be moved.
    pub said_ready: Option<SaidReady>,
    pub meter: Meter,
    /// It knows `fork`.
    pub forks: bool,
    socket: OwnedFd,
    decoder: Decoder,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// Pieces of frames that wait for room in the socket; of the first, `written` bytes are out.
    outgoing: VecDeque<Piece>,
    written: usize,
    /// Bytes of all of them.
    queued: usize,
    /// The last piece that is out whole was not the end of its frame.
    within_frame: bool,
}

/// A frame, or its head or body.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    ends_frame: bool,
}

/// Who has sent what lies in a socket, as the kernel says; nothing where nothing does. The bytes stay.
pub(crate) fn sender_of(socket: &OwnedFd) -> Result<Option<u32>, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut told = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut told, flags) {
        Ok(got) if got.bytes == 0 => return Err(Errno::PIPE),
        Ok(_) => {}
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    let pid = told.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(who) => Some(who.pid.as_raw_nonzero().get()),
        _ => None,
    });
    pid.map(|pid| Some(pid.unsigned_abs())).ok_or(Errno::SRCH)
}

/// What reading the protocol socket gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    Some,
    Nothing,
    Closed,
}

/// The keeper's ends of a worker's socket and pipes.
#[derive(Debug)]
pub(crate) struct Lines {
    pub socket: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// The worker's ends.
#[derive(Debug)]
pub(crate) struct WorkerLines {
    pub socket: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

impl Lines {
    pub fn make() -> Result<(Self, WorkerLines), Errno> {
        let (socket, their_socket) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        for end in [&socket, &stdout, &stderr] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let theirs =
            WorkerLines { socket: their_socket, stdout: their_stdout, stderr: their_stderr };
        Ok((Self { socket, stdout, stderr }, theirs))
    }
}

impl Worker {
    /// One that was started so, with these lines to it.
    pub fn new(started: &Started, start: StartedBy, lines: Lines) -> Self {
        let Started { pid, init, joining, .. } = started;
        Self::running(*pid, *init, joining.clone(), start, lines)
    }

    /// One that another worker has forked.
    pub fn of_twin(pid: u32, init: Option<u32>, joining: Option<u32>, lines: Lines) -> Self {
        Self::running(pid, init, joining.into_iter().collect(), StartedBy::Fork, lines)
    }

    fn running(
        pid: u32,
        init: Option<u32>,
        joining: Vec<u32>,
        start: StartedBy,
        lines: Lines,
    ) -> Self {
        Self {
            pid,
            init,
            joining,
            start,
            said_ready: None,
            meter: Meter::of(pid),
            forks: false,
            socket: lines.socket,
            decoder: Decoder::default(),
            stdout: Some(lines.stdout),
            stderr: Some(lines.stderr),
            outgoing: VecDeque::new(),
            written: 0,
            queued: 0,
            within_frame: false,
        }
    }

    /// Passes the descriptors of a twin, with one byte. The worker waits for them, and nothing else is
    /// on its way.
    pub fn hand_over(&self, ends: &WorkerLines) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let descriptors = [ends.socket.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd()];
        let fits = rights.push(SendAncillaryMessage::ScmRights(&descriptors));
        debug_assert!(fits, "the space is for three descriptors");
        sendmsg(&self.socket, &[IoSlice::new(b"f")], &mut rights, SendFlags::NOSIGNAL).map(drop)
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn pipe(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        match stream {
            Stream::Stdout => self.stdout.as_ref(),
            Stream::Stderr => self.stderr.as_ref(),
            Stream::Result | Stream::Traceback => None,
        }
        .map(AsFd::as_fd)
    }

    /// Bytes of frames that wait for room in the socket.
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// Whether frames wait for room in the socket.
    pub fn blocked(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Reads what has come on the protocol socket, once.
    pub fn fill(&mut self, scratch: &mut [u8]) -> Filled {
        match rustix::io::read(&self.socket, &mut *scratch) {
            Ok(0) => Filled::Closed,
            Ok(read) => {
                self.decoder.push(&scratch[..read]);
                Filled::Some
            }
            Err(Errno::AGAIN | Errno::INTR) => Filled::Nothing,
            Err(_) => Filled::Closed,
        }
    }

    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        self.decoder.next_frame()
    }

    /// Takes bytes that lie in a raw pipe now, at most `limit`; `None` when there are none.
    pub fn read_pipe(&mut self, stream: Stream, limit: usize) -> Option<Bytes> {
        let slot = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
            Stream::Result | Stream::Traceback => return None,
        };
        let pipe = slot.as_ref()?;
        let mut bytes = Vec::with_capacity(limit.min(PIPE_READ_BYTES));
        match rustix::io::read(pipe, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => {
                *slot = None;
                None
            }
            Ok(_) => Some(bytes.into()),
            Err(_) => None,
        }
    }

    /// Bytes that lie in a raw pipe now.
    pub fn pipe_pending(&self, stream: Stream) -> usize {
        let Some(pipe) = self.pipe(stream) else { return 0 };
        let pending = rustix::io::ioctl_fionread(pipe).map_or(0, |pending| pending as usize);
        if pending == PIPE_BYTES {
            // Refused where the user's pipes hold too much already; then it stays as it is.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, FLOOD_PIPE_BYTES);
        }
        pending
    }

    /// Sends a message with its body, in chunks. It goes out now as far as the socket has room.
    pub fn send(&mut self, mut message: ToWorker, body: &Bytes) -> Result<(), EncodeError> {
        let mut rest = body.clone();
        loop {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            set_more(&mut message, !rest.is_empty());
            self.push(&message, chunk)?;
            if rest.is_empty() {
                break;
            }
        }
        self.flush();
        Ok(())
    }

    /// Sends one frame with its body, if it fits.
    pub fn send_part(&mut self, message: &ToWorker, body: Bytes) -> Result<(), EncodeError> {
        self.push(message, body)?;
        self.flush();
        Ok(())
    }

    fn push(&mut self, message: &ToWorker, body: Bytes) -> Result<(), EncodeError> {
        let mut head = Vec::with_capacity(96);
        frame::encode_head(&mut head, message, body.len())?;
        self.queued += head.len() + body.len();
        self.outgoing.push_back(Piece { bytes: head.into(), ends_frame: body.is_empty() });
        if !body.is_empty() {
            self.outgoing.push_back(Piece { bytes: body, ends_frame: true });
        }
        Ok(())
    }

    /// Sends an interrupt ahead of every frame that has not begun, then the signal that goes with it.
    pub fn interrupt(&mut self, message: &ToWorker) -> Result<(), EncodeError> {
        let mut encoded = Vec::with_capacity(64);
        frame::encode(&mut encoded, message, &[])?;
        let begun = self.written > 0 || self.within_frame;
        let end = self.outgoing.iter().position(|piece| piece.ends_frame).map_or(0, |end| end + 1);
        let place = if begun { end } else { 0 };
        self.queued += encoded.len();
        self.outgoing.insert(place, Piece { bytes: encoded.into(), ends_frame: true });
        self.flush();
        // ESRCH means that it has just ended, which SIGCHLD tells.
        let _ = killpg(Pid::from_raw(self.pid.cast_signed()), Signal::SIGINT);
        Ok(())
    }

    /// Reminds the worker of an interrupt. SIGURG is ignored by programs that do not know it.
    pub fn nudge(&self) {
        let _ = kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGURG);
    }

    /// Writes as much as the socket takes. A closed socket shows when it is read.
    pub fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .outgoing
                .iter()
                .take(16)
                .enumerate()
                .map(|(place, piece)| {
                    let from = if place == 0 { self.written } else { 0 };
                    IoSlice::new(&piece.bytes[from..])
                })
                .collect();
            match rustix::io::writev(&self.socket, &slices) {
                Ok(written) => self.wrote(written),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.outgoing.clear();
                    self.written = 0;
                    self.queued = 0;
                    self.within_frame = false;
                    return;
                }
            }
        }
    }

    fn wrote(&mut self, written: usize) {
        self.written += written;
        self.queued -= written;
        while let Some(first) = self.outgoing.front() {
            if self.written < first.bytes.len() {
                return;
            }
            self.written -= first.bytes.len();
            self.within_frame = !first.ends_frame;
            self.outgoing.pop_front();
        }
    }
}

fn set_more(message: &mut ToWorker, value: bool) {
    match message {
        ToWorker::TurnStart { more, .. }
        | ToWorker::TurnInput { more, .. }
        | ToWorker::ToolResult { more, .. } => *more = value,
        ToWorker::Interrupt { .. } | ToWorker::Fork { .. } | ToWorker::Shutdown { .. } => {}
    }
}

//! The worker process: its protocol socket, its two raw pipes, its process id. Moves bytes; `turn` and
//! `keeper` interpret them.

mod send_queue;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use bytes::Bytes;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};
use windlass_confine::StartedProcess;
use windlass_protocol::Stream;
use windlass_protocol::event::StartedBy;
use windlass_protocol::frame::{Decoder, EncodeError, Frame, FrameError};
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::worker::{CAPABILITIES_MAX, CAPABILITY_BYTES_MAX, StartupFigures, ToWorker};

use self::send_queue::SendQueue;
use crate::usage::Meter;

/// Maximum number of raw output bytes in one event.
const PIPE_READ_BYTES: usize = 128 * 1024;

/// The default capacity of a pipe.
pub(crate) const PIPE_BYTES: usize = 64 * 1024;

/// The capacity of a pipe after the worker has filled it once: a flood then wakes the keeper less often.
const FLOOD_PIPE_BYTES: usize = 1024 * 1024;

/// The content of a worker's `worker_ready` message.
#[derive(Debug)]
pub(crate) struct ReadyMessage {
    pub worker: String,
    pub capabilities: Vec<String>,
    pub startup: Option<StartupFigures>,
}

impl ReadyMessage {
    /// Limits the number and length of capabilities: the worker is not trusted.
    pub fn new(
        worker: &str,
        mut capabilities: Vec<String>,
        startup: Option<StartupFigures>,
    ) -> Self {
        capabilities.retain(|capability| capability.len() <= CAPABILITY_BYTES_MAX);
        capabilities.truncate(CAPABILITIES_MAX);
        Self { worker: worker.to_owned(), capabilities, startup }
    }
}

/// How a worker was started, and when the keeper started or claimed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerOrigin {
    pub start: StartedBy,
    pub since: Instant,
}

/// A started worker.
#[derive(Debug)]
pub(crate) struct Worker {
    pub pid: u32,
    /// The init of its pid namespace, if it has one.
    pub init: Option<u32>,
    /// The processes that move it into its cgroups, until they have ended.
    pub joining: Vec<u32>,
    pub origin: WorkerOrigin,
    /// Its `worker_ready` message, while the worker is not in its cgroups yet.
    pub said_ready: Option<ReadyMessage>,
    pub meter: Meter,
    /// It supports `fork`.
    pub forks: bool,
    socket: OwnedFd,
    decoder: Decoder,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    queue: SendQueue,
}

/// The process id of the sender of the bytes in a socket, from the kernel. `None` if there are no bytes. The
/// bytes stay in the socket.
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

/// The result of a read from the protocol socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SocketRead {
    Data,
    Nothing,
    Closed,
}

/// The keeper's ends of a worker's socket and pipes.
#[derive(Debug)]
pub(crate) struct KeeperEnds {
    pub socket: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// The worker's ends of the same socket and pipes.
#[derive(Debug)]
pub(crate) struct WorkerEnds {
    pub socket: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

impl WorkerEnds {
    /// Gives the pipes to a session's own user id, so that the session can open them by name, for example as
    /// `/dev/stdout`. A failure is ignored: it affects only that.
    pub fn give_to(&self, uid: u32) {
        for pipe in [&self.stdout, &self.stderr] {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
            let _ = rustix::fs::fchown(pipe, Some(user), Some(group));
        }
    }
}

impl KeeperEnds {
    pub fn make() -> Result<(Self, WorkerEnds), Errno> {
        let (socket, their_socket) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        for end in [&socket, &stdout, &stderr] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let theirs =
            WorkerEnds { socket: their_socket, stdout: their_stdout, stderr: their_stderr };
        Ok((Self { socket, stdout, stderr }, theirs))
    }
}

impl Worker {
    /// A worker that the keeper has started.
    pub fn new(started: &StartedProcess, start: StartedBy, lines: KeeperEnds) -> Self {
        let StartedProcess { pid, init, joining, .. } = started;
        Self::running(*pid, *init, joining.clone(), start, lines)
    }

    /// A worker that another worker has forked.
    pub fn of_twin(pid: u32, init: Option<u32>, joining: Option<u32>, lines: KeeperEnds) -> Self {
        Self::running(pid, init, joining.into_iter().collect(), StartedBy::Fork, lines)
    }

    fn running(
        pid: u32,
        init: Option<u32>,
        joining: Vec<u32>,
        start: StartedBy,
        lines: KeeperEnds,
    ) -> Self {
        Self {
            pid,
            init,
            joining,
            origin: WorkerOrigin { start, since: Instant::now() },
            said_ready: None,
            meter: Meter::of(pid),
            forks: false,
            socket: lines.socket,
            decoder: Decoder::default(),
            stdout: Some(lines.stdout),
            stderr: Some(lines.stderr),
            queue: SendQueue::default(),
        }
    }

    /// Passes the descriptors of a twin, with one byte. The worker waits for them, and no other bytes are
    /// queued.
    pub fn hand_over(&self, ends: &WorkerEnds) -> Result<(), Errno> {
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

    /// Bytes of frames that are queued because the socket is full.
    pub fn queued_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Whether frames are queued because the socket is full.
    pub fn blocked(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Reads once from the protocol socket.
    pub fn fill(&mut self, scratch: &mut [u8]) -> SocketRead {
        match rustix::io::read(&self.socket, &mut *scratch) {
            Ok(0) => SocketRead::Closed,
            Ok(read) => {
                self.decoder.push(&scratch[..read]);
                SocketRead::Data
            }
            Err(Errno::AGAIN | Errno::INTR) => SocketRead::Nothing,
            Err(_) => SocketRead::Closed,
        }
    }

    /// Bytes of the protocol socket that are no whole frame.
    pub fn undecoded(&mut self) -> &[u8] {
        self.decoder.buffer()
    }

    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        self.decoder.next_frame()
    }

    /// Reads at most `limit` bytes from a raw pipe; `None` if it is empty.
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

    /// Number of bytes in a raw pipe.
    pub fn pipe_pending(&self, stream: Stream) -> usize {
        let Some(pipe) = self.pipe(stream) else { return 0 };
        let pending = rustix::io::ioctl_fionread(pipe).map_or(0, |pending| pending as usize);
        if pending == PIPE_BYTES {
            // The kernel refuses if the user's pipes hold too much already; then the capacity stays.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, FLOOD_PIPE_BYTES);
        }
        pending
    }

    /// Sends a message with its body, in chunks. Bytes that the socket does not accept now are queued.
    pub fn send(&mut self, mut message: ToWorker, body: &Bytes) -> Result<(), EncodeError> {
        let mut rest = body.clone();
        loop {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            set_more(&mut message, !rest.is_empty());
            self.queue.push(&message, chunk)?;
            leave_out_context(&mut message);
            if rest.is_empty() {
                break;
            }
        }
        self.flush();
        Ok(())
    }

    /// Sends one frame with its body, if it fits.
    pub fn send_part(&mut self, message: &ToWorker, body: Bytes) -> Result<(), EncodeError> {
        self.queue.push(message, body)?;
        self.flush();
        Ok(())
    }

    /// Sends an interrupt before every queued frame of which no byte is sent, and then SIGINT.
    pub fn interrupt(&mut self, message: &ToWorker) -> Result<(), EncodeError> {
        self.queue.push_first(message)?;
        self.flush();
        // ESRCH means that the worker has just ended, which SIGCHLD tells.
        let _ = killpg(Pid::from_raw(self.pid.cast_signed()), Signal::SIGINT);
        Ok(())
    }

    /// Reminds the worker of an interrupt. Programs without a handler ignore SIGURG.
    pub fn nudge(&self) {
        let _ = kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGURG);
    }

    /// Writes as much as the socket accepts.
    pub fn flush(&mut self) {
        self.queue.flush(&self.socket);
    }
}

/// Only the first frame of a turn has its context.
fn leave_out_context(message: &mut ToWorker) {
    if let ToWorker::TurnStart { context, .. } = message {
        *context = None;
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

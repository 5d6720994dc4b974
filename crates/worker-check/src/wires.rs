//! The keeper's ends of a worker's socket and pipes. Moves bytes and splits them into frames; the driver
//! interprets them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use windlass_protocol::Stream;
use windlass_protocol::frame::Decoder;

use crate::processes::TheirEnds;

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;

/// Maximum number of reads of one descriptor before the others have their turn.
const READS_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Wires {
    socket: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    pub decoder: Decoder,
    outgoing: VecDeque<u8>,
    /// Whether the worker's frames are left in the socket.
    pub paused: bool,
}

/// What one wait has brought.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// Bytes of the raw pipes, in the order in which they were read.
    pub raw: Vec<(Stream, Bytes)>,
    /// The worker has closed its end of the socket.
    pub closed: bool,
    /// The worker's process has ended.
    pub ended: bool,
}

impl Wires {
    pub fn make() -> io::Result<(Self, TheirEnds)> {
        let (socket, their_socket) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        for end in [&socket, &stdout, &stderr] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let ours = Self {
            socket: Some(socket),
            stdout: Some(stdout),
            stderr: Some(stderr),
            decoder: Decoder::default(),
            outgoing: VecDeque::new(),
            paused: false,
        };
        Ok((ours, TheirEnds { socket: their_socket, stdout: their_stdout, stderr: their_stderr }))
    }

    /// Queues bytes for the worker and writes what the socket accepts now.
    pub fn send(&mut self, bytes: &[u8]) {
        self.outgoing.extend(bytes);
        self.flush();
    }

    pub fn close_socket(&mut self) {
        self.socket = None;
    }

    /// Waits for bytes, for the worker's end or for the time. Every byte that was in the raw pipes when a
    /// frame arrived is in `raw`.
    pub fn wait(&mut self, pidfd: &OwnedFd, until: Instant) -> io::Result<Arrived> {
        let left = until.saturating_duration_since(Instant::now());
        let (readable, ended) = self.poll(pidfd, left)?;
        let mut arrived = Arrived { ended, ..Arrived::default() };
        self.flush();
        if readable {
            arrived.closed = self.read_socket();
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.read_pipe(stream, &mut arrived.raw);
        }
        Ok(arrived)
    }

    /// Whether the socket is readable, and whether the process has ended.
    fn poll(&self, pidfd: &OwnedFd, left: Duration) -> io::Result<(bool, bool)> {
        let mut events = if self.paused { PollFlags::empty() } else { PollFlags::IN };
        if !self.outgoing.is_empty() {
            events |= PollFlags::OUT;
        }
        let mut descriptors = vec![PollFd::new(pidfd, PollFlags::IN)];
        if let Some(socket) = &self.socket {
            descriptors.push(PollFd::new(socket, events));
        }
        for pipe in [&self.stdout, &self.stderr].into_iter().flatten() {
            descriptors.push(PollFd::new(pipe, PollFlags::IN));
        }
        let timeout = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ended = descriptors[0].revents().contains(PollFlags::IN);
        let is_ready = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let readable =
            self.socket.is_some() && !self.paused && descriptors[1].revents().intersects(is_ready);
        Ok((readable, ended))
    }

    /// Reads what is in the socket. Returns whether the worker has closed its end.
    fn read_socket(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut scratch = vec![0; READ_BYTES];
        for _ in 0..READS_MAX {
            match rustix::io::read(socket, &mut scratch[..]) {
                Ok(0) => {
                    self.socket = None;
                    return true;
                }
                Ok(count) => self.decoder.push(&scratch[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return false,
                Err(_) => {
                    self.socket = None;
                    return true;
                }
            }
        }
        false
    }

    fn read_pipe(&mut self, stream: Stream, into: &mut Vec<(Stream, Bytes)>) {
        let slot = if stream == Stream::Stdout { &mut self.stdout } else { &mut self.stderr };
        let mut scratch = vec![0; READ_BYTES];
        for _ in 0..READS_MAX {
            let Some(pipe) = slot.as_ref() else { return };
            match rustix::io::read(pipe, &mut scratch[..]) {
                Ok(0) => *slot = None,
                Ok(count) => into.push((stream, Bytes::copy_from_slice(&scratch[..count]))),
                Err(_) => return,
            }
        }
    }

    fn flush(&mut self) {
        while let Some(socket) = &self.socket {
            let (front, _) = self.outgoing.as_slices();
            if front.is_empty() {
                return;
            }
            match send(socket.as_fd(), front, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(Errno::INTR) => {}
                // A closed socket is noticed when it is read.
                Err(_) => return,
            }
        }
    }
}

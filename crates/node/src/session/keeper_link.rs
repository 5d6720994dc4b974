//! The socket to a keeper, around the pure half of the link: reads frames, writes commands, and
//! acknowledges without ever waiting for a timer.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWrite};
use windlass_client::stream::LeanStream;
use windlass_lifecycle::link::{LocalCommandSeq, NodeHalf};
use windlass_protocol::frame::{Decoder, EncodeError, Frame, FrameError};
use windlass_protocol::link::{AttachReply, FromKeeper, KeeperCommand, Launch};

use crate::passing;

/// Bytes read at once: small for the usual short message, more while a flood lasts.
const READ_BYTES_MIN: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 512 * 1024;

/// Event bytes after which the keeper is told at once what is journaled. Below it, the next
/// command tells.
const ACK_BYTES: usize = 256 * 1024;

/// Bytes that wait to be written, past which answers to tool calls wait elsewhere: an interrupt is
/// never behind more than this and one of their parts.
const OUTGOING_BYTES_MAX: usize = 1024 * 1024;

/// A connection to a keeper.
#[derive(Debug)]
pub(crate) struct KeeperLink {
    pub path: PathBuf,
    pub half: NodeHalf,
    stream: LeanStream,
    decoder: Decoder,
    read_bytes: usize,
    /// Bytes to write; those before `written` are out.
    outgoing: Vec<u8>,
    written: usize,
    /// Goes with the next bytes that are written.
    passing: Option<OwnedFd>,
    unacknowledged: usize,
    room_wanted: bool,
}

/// What one read gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    Some,
    /// Nothing came; but there is room to write, which was wanted.
    Room,
    Closed,
}

/// A message from the keeper with its body.
pub(crate) type Message = (FromKeeper, Bytes);

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("a keeper's frame is malformed: {0}")]
    Frame(#[from] FrameError),
    #[error("a keeper's header is malformed: {0}")]
    Header(#[from] serde_json::Error),
}

impl KeeperLink {
    /// Connects and says who we are.
    pub fn open(path: PathBuf, half: NodeHalf, launch: Option<Box<Launch>>) -> io::Result<Self> {
        Self::open_with(path, half, launch, None)
    }

    /// The same; a connection to a zygote goes with the launch.
    pub fn open_with(
        path: PathBuf,
        half: NodeHalf,
        launch: Option<Box<Launch>>,
        zygote: Option<OwnedFd>,
    ) -> io::Result<Self> {
        // A keeper's listener is there before the keeper is, so connecting never waits.
        let stream = LeanStream::connect(&path)?;
        let mut link = Self::new(stream, path, half);
        link.passing = zygote;
        link.half.attach(&mut link.outgoing, launch).map_err(io::Error::other)?;
        link.flush()?;
        Ok(link)
    }

    /// Says who we are on a connection that there is already to the keeper at `path`.
    pub fn over(
        stream: LeanStream,
        path: PathBuf,
        half: NodeHalf,
        launch: Option<Box<Launch>>,
    ) -> io::Result<Self> {
        let mut link = Self::new(stream, path, half);
        link.half.attach(&mut link.outgoing, launch).map_err(io::Error::other)?;
        link.flush()?;
        Ok(link)
    }

    fn new(stream: LeanStream, path: PathBuf, half: NodeHalf) -> Self {
        Self {
            path,
            half,
            stream,
            decoder: Decoder::default(),
            read_bytes: READ_BYTES_MIN,
            outgoing: Vec::new(),
            written: 0,
            passing: None,
            unacknowledged: 0,
            room_wanted: false,
        }
    }

    /// Connects again after a cut; whatever the keeper has not seen is sent again once it answers.
    pub fn reopen(&mut self) -> io::Result<()> {
        self.stream = LeanStream::connect(&self.path)?;
        self.decoder = Decoder::default();
        self.outgoing.clear();
        self.written = 0;
        self.passing = None;
        self.half.attach(&mut self.outgoing, None).map_err(io::Error::other)?;
        self.flush()
    }

    /// Passes a connection to a zygote along with the next command. One that finds no room is lost,
    /// and the keeper does without.
    pub fn pass(&mut self, zygote: Option<OwnedFd>) {
        self.passing = zygote;
    }

    /// The keeper's process.
    pub fn peer_pid(&self) -> Option<u32> {
        self.stream.peer_pid()
    }

    pub fn attached(&mut self, attached: &AttachReply) -> io::Result<()> {
        self.half.attached(attached, &mut self.outgoing).map_err(io::Error::other)?;
        self.flush()
    }

    /// Waits for bytes and takes them in; meanwhile writes what waits for room. Nothing is lost if
    /// it is dropped before it is done.
    pub async fn fill(&mut self) -> Filled {
        poll_fn(|cx| {
            if let Poll::Ready(Err(_)) = self.poll_flush(cx) {
                return Poll::Ready(Filled::Closed);
            }
            if self.room_wanted && !self.crowded() {
                self.room_wanted = false;
                return Poll::Ready(Filled::Room);
            }
            self.poll_fill(cx)
        })
        .await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Filled> {
        let buffer = self.decoder.buffer();
        buffer.reserve(self.read_bytes);
        let read = ready!(pin!(self.stream.read_buf(buffer)).poll(cx)).unwrap_or(0);
        self.unacknowledged += read;
        self.read_bytes = if read >= self.read_bytes {
            (self.read_bytes * 2).min(READ_BYTES_MAX)
        } else {
            (self.read_bytes / 2).max(READ_BYTES_MIN)
        };
        Poll::Ready(if read == 0 { Filled::Closed } else { Filled::Some })
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outgoing.len() {
            let rest = &self.outgoing[self.written..];
            self.written += ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
        }
        self.emptied();
        Poll::Ready(Ok(()))
    }

    /// Somebody has more to write: [`Self::fill`] says when there is room.
    pub fn want_room(&mut self) {
        self.room_wanted = true;
    }

    /// Whether so much is to be written that nothing should be added that can wait.
    pub fn crowded(&self) -> bool {
        self.outgoing.len() - self.written > OUTGOING_BYTES_MAX
    }

    pub fn next_message(&mut self) -> Result<Option<Message>, LinkError> {
        let Some(Frame { header, body }) = self.decoder.next_frame()? else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&header)?, body)))
    }

    pub fn command(
        &mut self,
        act: KeeperCommand,
        body: Bytes,
    ) -> Result<LocalCommandSeq, EncodeError> {
        self.unacknowledged = 0;
        self.half.command(act, body, &mut self.outgoing)
    }

    /// What was read is journaled: says so if enough has come since the last time.
    pub fn acknowledge_some(&mut self) {
        if self.unacknowledged >= ACK_BYTES {
            self.acknowledge_all();
        }
    }

    pub fn acknowledge_all(&mut self) {
        self.unacknowledged = 0;
        if let Err(error) = self.half.acknowledge(&mut self.outgoing) {
            // The keeper holds its events until a later word tells.
            tracing::error!(%error, "a keeper is not told what is in the journal");
        }
    }

    /// Waits until everything is written.
    pub async fn flushed(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    pub fn is_flushed(&self) -> bool {
        self.written == self.outgoing.len()
    }

    /// Writes as much as there is room for.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.written < self.outgoing.len() {
            let rest = &self.outgoing[self.written..];
            let tried = match self.passing.take() {
                Some(descriptor) => passing::send(&self.stream, rest, descriptor.as_fd()),
                None => self.stream.try_write(rest),
            };
            match tried {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.emptied();
        Ok(())
    }

    /// Everything is written. A large message is rare; its room is not kept for each of thousands
    /// of sessions.
    fn emptied(&mut self) {
        self.outgoing.clear();
        self.written = 0;
        self.outgoing.shrink_to(READ_BYTES_MIN);
    }
}

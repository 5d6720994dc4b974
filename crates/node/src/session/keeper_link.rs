//! The socket to a keeper, around the pure node half of the link. Reads frames, writes commands, and
//! acknowledges events without a timer.

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

/// Bytes per read: small for the usual short message, more during a flood.
const READ_BYTES_MIN: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 512 * 1024;

/// After this many bytes of events the node sends an acknowledgement at once. Before that, the next command
/// carries it.
const ACK_BYTES: usize = 256 * 1024;

/// Above this many unwritten bytes, answers to tool calls wait outside of this buffer. So an interrupt
/// never waits behind more than this and one part of an answer.
const OUTGOING_BYTES_MAX: usize = 1024 * 1024;

/// A connection to a keeper.
#[derive(Debug)]
pub(crate) struct KeeperLink {
    pub path: PathBuf,
    pub half: NodeHalf,
    stream: LeanStream,
    decoder: Decoder,
    read_bytes: usize,
    /// Bytes to write. Those before `written` are written.
    outgoing: Vec<u8>,
    written: usize,
    /// A connection to a zygote, which is passed with the next bytes that are written.
    passing: Option<OwnedFd>,
    unacknowledged: usize,
    /// Whether [`Self::fill`] must report that the buffer has space again.
    space_wanted: bool,
}

/// What happened on the link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkActivity {
    Received,
    /// Nothing came, but the write buffer has space again, as [`KeeperLink::want_space`] requested.
    Writable,
    Closed,
}

/// A message from the keeper with its body.
pub(crate) type Message = (FromKeeper, Bytes);

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the keeper sent a malformed frame: {0}")]
    Frame(#[from] FrameError),
    #[error("the keeper sent a malformed header: {0}")]
    Header(#[from] serde_json::Error),
}

impl KeeperLink {
    /// Connects and sends the attach.
    pub fn open(path: PathBuf, half: NodeHalf, launch: Option<Box<Launch>>) -> io::Result<Self> {
        Self::open_with(path, half, launch, None)
    }

    /// Like [`Self::open`], and passes a connection to a zygote with the launch.
    pub fn open_with(
        path: PathBuf,
        half: NodeHalf,
        launch: Option<Box<Launch>>,
        zygote: Option<OwnedFd>,
    ) -> io::Result<Self> {
        // The node makes the listening socket before it starts the keeper, so connecting never waits.
        let stream = LeanStream::connect(&path)?;
        let mut link = Self::new(stream, path, half);
        link.passing = zygote;
        link.half.attach(&mut link.outgoing, launch).map_err(io::Error::other)?;
        link.flush()?;
        Ok(link)
    }

    /// Sends the attach on an existing connection to the keeper at `path`.
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
            space_wanted: false,
        }
    }

    /// Reconnects after a cut. Commands that the keeper has not seen are sent again after it answers.
    pub fn reopen(&mut self) -> io::Result<()> {
        self.stream = LeanStream::connect(&self.path)?;
        self.decoder = Decoder::default();
        self.outgoing.clear();
        self.written = 0;
        self.passing = None;
        self.half.attach(&mut self.outgoing, None).map_err(io::Error::other)?;
        self.flush()
    }

    /// Passes a connection to a zygote with the next command. If the socket is full then, the connection is
    /// lost, and the keeper starts the worker without the zygote.
    pub fn pass(&mut self, zygote: Option<OwnedFd>) {
        self.passing = zygote;
    }

    /// The pid of the keeper.
    pub fn peer_pid(&self) -> Option<u32> {
        self.stream.peer_pid()
    }

    pub fn attached(&mut self, attached: &AttachReply) -> io::Result<()> {
        self.half.attached(attached, &mut self.outgoing).map_err(io::Error::other)?;
        self.flush()
    }

    /// Waits for bytes and reads them; meanwhile writes the pending bytes. Cancel safe: nothing is lost if
    /// the future is dropped.
    pub async fn fill(&mut self) -> LinkActivity {
        poll_fn(|cx| {
            if let Poll::Ready(Err(_)) = self.poll_flush(cx) {
                return Poll::Ready(LinkActivity::Closed);
            }
            if self.space_wanted && !self.is_crowded() {
                self.space_wanted = false;
                return Poll::Ready(LinkActivity::Writable);
            }
            self.poll_fill(cx)
        })
        .await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<LinkActivity> {
        let buffer = self.decoder.buffer();
        buffer.reserve(self.read_bytes);
        let read = ready!(pin!(self.stream.read_buf(buffer)).poll(cx)).unwrap_or(0);
        self.unacknowledged += read;
        self.read_bytes = if read >= self.read_bytes {
            (self.read_bytes * 2).min(READ_BYTES_MAX)
        } else {
            (self.read_bytes / 2).max(READ_BYTES_MIN)
        };
        Poll::Ready(if read == 0 { LinkActivity::Closed } else { LinkActivity::Received })
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outgoing.len() {
            let rest = &self.outgoing[self.written..];
            self.written += ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
        }
        self.emptied();
        Poll::Ready(Ok(()))
    }

    /// More is to be written: [`Self::fill`] then reports when the buffer has space.
    pub fn want_space(&mut self) {
        self.space_wanted = true;
    }

    /// Whether so much is unwritten that only urgent commands should be added.
    pub fn is_crowded(&self) -> bool {
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

    /// All events that were read are in the journal: acknowledges them if enough bytes came since the last
    /// time.
    pub fn acknowledge_some(&mut self) {
        if self.unacknowledged >= ACK_BYTES {
            self.acknowledge_all();
        }
    }

    pub fn acknowledge_all(&mut self) {
        self.unacknowledged = 0;
        if let Err(error) = self.half.acknowledge(&mut self.outgoing) {
            // The keeper holds its events until a later acknowledgement.
            tracing::error!(%error, "cannot acknowledge events to a keeper");
        }
    }

    /// Waits until everything is written.
    pub async fn flushed(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    pub fn is_flushed(&self) -> bool {
        self.written == self.outgoing.len()
    }

    /// Writes as much as the socket takes.
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

    /// Everything is written. Large messages are rare, so the buffer shrinks: thousands of sessions must
    /// not each keep a large one.
    fn emptied(&mut self) {
        self.outgoing.clear();
        self.written = 0;
        self.outgoing.shrink_to(READ_BYTES_MIN);
    }
}

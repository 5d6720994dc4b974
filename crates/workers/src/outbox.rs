//! Frames that wait until the keeper reads them. Never blocks, so a kernel can be interrupted while the keeper
//! is slow.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::net::UnixStream;
use windlass_protocol::frame::EncodeError;
use windlass_protocol::limits::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};
use windlass_protocol::worker::FromWorker;
use windlass_protocol::{Stream, TurnNo};
use windlass_worker_kit::{Link, StartupFigures, outgoing};

use crate::link_socket::second_descriptor;

/// Bytes of a buffer that is kept for later frames.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// The worker's frames, in order.
#[derive(Debug)]
pub struct Outbox {
    /// A second descriptor of the protocol socket. All frames of this worker go through it.
    socket: UnixStream,
    waiting: BytesMut,
    frames: Vec<u8>,
}

impl Outbox {
    pub fn new(link: &Link) -> io::Result<Self> {
        let socket = second_descriptor(link)?;
        Ok(Self { socket, waiting: BytesMut::new(), frames: Vec::new() })
    }

    pub fn waiting_bytes(&self) -> usize {
        self.waiting.len()
    }

    pub fn plain(&mut self, message: FromWorker) {
        // A plain message has a bounded header, so it can be encoded.
        let _ = self.add(|out| outgoing::plain(out, message));
    }

    pub fn ready(&mut self, worker: &str, capabilities: &[&str], startup: &StartupFigures) {
        let _ = self.add(|out| outgoing::ready(out, worker, capabilities, Some(startup)));
    }

    pub fn output(&mut self, turn: TurnNo, stream: Stream, background: bool, bytes: &[u8]) {
        for part in bytes.chunks(CHUNK_BYTES_MAX) {
            let header = |_| FromWorker::Output { turn, stream, background };
            let _ = self.add(|out| outgoing::in_frames(out, part, header));
        }
    }

    /// A message with a body of any length. A body over the limit is refused.
    pub fn with_body(
        &mut self,
        body: &[u8],
        header: impl Fn(bool) -> FromWorker,
    ) -> Result<(), EncodeError> {
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(EncodeError::MessageTooLong {
                bytes: body.len(),
                limit: MESSAGE_BYTES_MAX,
            });
        }
        self.add(|out| outgoing::in_frames(out, body, header))
    }

    /// Writes what the socket takes now. An error means that the keeper is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            match self.socket.try_write(&self.waiting) {
                Ok(count) => self.waiting.advance(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.waiting.capacity() > KEPT_BYTES_MAX {
            self.waiting = BytesMut::new();
        }
        Ok(())
    }

    /// Waits until the socket takes bytes, if there are any, and writes them. Cancelling loses nothing.
    pub async fn writable(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return std::future::pending().await;
        }
        self.socket.writable().await?;
        self.flush()
    }

    /// Waits until everything is written.
    pub async fn drain(&mut self) -> io::Result<()> {
        self.flush()?;
        while !self.waiting.is_empty() {
            self.writable().await?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let encoded = encode(&mut frames);
        if encoded.is_ok() {
            self.waiting.extend_from_slice(&frames);
        }
        if frames.capacity() <= KEPT_BYTES_MAX {
            self.frames = frames;
        }
        encoded
    }
}

//! Frames on their way to the worker's socket. Bytes that the socket does not accept now stay queued.

use std::array;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::io::Errno;
use windlass_protocol::frame::{self, EncodeError};
use windlass_protocol::worker::ToWorker;

/// Maximum number of pieces in one write.
const PIECES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// `written` bytes of the first piece are sent.
    pieces: VecDeque<OutgoingPiece>,
    written: usize,
    /// Total number of bytes in `pieces` that are not sent.
    bytes: usize,
    /// The last piece that was sent completely did not end its frame.
    within_frame: bool,
}

/// A frame, or its header or body.
#[derive(Debug)]
struct OutgoingPiece {
    bytes: Bytes,
    ends_frame: bool,
}

impl SendQueue {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends one frame.
    pub fn push(&mut self, message: &ToWorker, body: Bytes) -> Result<(), EncodeError> {
        let mut head = Vec::with_capacity(96);
        frame::encode_head(&mut head, message, body.len())?;
        self.bytes += head.len() + body.len();
        self.pieces.push_back(OutgoingPiece { bytes: head.into(), ends_frame: body.is_empty() });
        if !body.is_empty() {
            self.pieces.push_back(OutgoingPiece { bytes: body, ends_frame: true });
        }
        Ok(())
    }

    /// Puts one frame before every queued frame of which no byte is sent.
    pub fn push_first(&mut self, message: &ToWorker) -> Result<(), EncodeError> {
        let mut encoded = Vec::with_capacity(64);
        frame::encode(&mut encoded, message, &[])?;
        let begun = self.written > 0 || self.within_frame;
        let end = self.pieces.iter().position(|piece| piece.ends_frame).map_or(0, |end| end + 1);
        let place = if begun { end } else { 0 };
        self.bytes += encoded.len();
        self.pieces.insert(place, OutgoingPiece { bytes: encoded.into(), ends_frame: true });
        Ok(())
    }

    /// Writes as much as the socket accepts. After an error nothing is queued: the next read detects a closed
    /// socket.
    pub fn flush(&mut self, socket: &OwnedFd) {
        while !self.pieces.is_empty() {
            let count = self.pieces.len().min(PIECES_MAX);
            let slices: [IoSlice<'_>; PIECES_MAX] = array::from_fn(|place| {
                let from = if place == 0 { self.written } else { 0 };
                IoSlice::new(self.pieces.get(place).map_or(&[], |piece| &piece.bytes[from..]))
            });
            match rustix::io::writev(socket, &slices[..count]) {
                Ok(written) => self.wrote(written),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => *self = Self::default(),
            }
        }
    }

    fn wrote(&mut self, written: usize) {
        self.written += written;
        self.bytes -= written;
        while let Some(first) = self.pieces.front() {
            if self.written < first.bytes.len() {
                return;
            }
            self.written -= first.bytes.len();
            self.within_frame = !first.ends_frame;
            self.pieces.pop_front();
        }
    }
}

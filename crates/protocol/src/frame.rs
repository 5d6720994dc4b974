//! The frame: `u32 BE rest length | u32 BE header length | header (UTF-8 JSON) | body (raw bytes)`.
//! This module encodes to and decodes from memory. It never reads or writes a descriptor.
//!
//! The decoder does not trust its input. A length over the limit is an error before any memory is reserved.
//! An error is final, because the framing of the stream is lost.

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;

use crate::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};

const LENGTH_BYTES: usize = 4;

/// One frame as received: the header is unparsed JSON text, the body is raw bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub header: Bytes,
    pub body: Bytes,
}

/// Why bytes are not a frame. The connection that carried them cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is over the limit of {FRAME_BYTES_MAX}")]
    TooLong(usize),
    #[error("a header of {0} bytes is over the limit of {HEADER_BYTES_MAX}")]
    HeaderTooLong(usize),
    #[error("a frame of {rest} bytes cannot hold a header of {header}")]
    HeaderPastEnd { rest: usize, header: usize },
    #[error("{bytes} bytes are not one whole frame")]
    NotOne { bytes: usize },
}

/// Decodes bytes that are exactly one frame, for transports that keep messages apart. Copies nothing.
pub fn decode(mut bytes: Bytes) -> Result<Frame, FrameError> {
    let not_one = FrameError::NotOne { bytes: bytes.len() };
    let Some((rest, header)) = lengths(&bytes)? else { return Err(not_one) };
    if bytes.len() != LENGTH_BYTES + rest {
        return Err(not_one);
    }
    bytes.advance(2 * LENGTH_BYTES);
    Ok(Frame { header: bytes.split_to(header), body: bytes })
}

/// Takes bytes in portions of any size and returns whole frames, in order.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// The buffer to read new bytes into (append only).
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes of an incomplete frame.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// The next whole frame, or `None` until more bytes arrive.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((rest, header)) = lengths(&self.buffer)? else { return Ok(None) };
        if self.buffer.len() < LENGTH_BYTES + rest {
            return Ok(None);
        }
        let mut whole = self.buffer.split_to(LENGTH_BYTES + rest);
        whole.advance(2 * LENGTH_BYTES);
        let header = whole.split_to(header).freeze();
        Ok(Some(Frame { header, body: whole.freeze() }))
    }
}

/// Both lengths of the frame that begins here, checked against their limits. `None` if bytes are missing.
fn lengths(bytes: &[u8]) -> Result<Option<(usize, usize)>, FrameError> {
    let Some(rest) = word_at(bytes, 0) else { return Ok(None) };
    if rest > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong(rest));
    }
    if rest < LENGTH_BYTES {
        return Err(FrameError::HeaderPastEnd { rest, header: 0 });
    }
    let Some(header) = word_at(bytes, LENGTH_BYTES) else { return Ok(None) };
    if header > HEADER_BYTES_MAX {
        return Err(FrameError::HeaderTooLong(header));
    }
    if header > rest - LENGTH_BYTES {
        return Err(FrameError::HeaderPastEnd { rest, header });
    }
    Ok(Some((rest, header)))
}

fn word_at(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + LENGTH_BYTES)?;
    Some(u32::from_be_bytes(word.try_into().expect("the slice has four bytes")) as usize)
}

/// Why a frame cannot be encoded. The buffer is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("a header of {0} bytes is over the limit of {HEADER_BYTES_MAX}")]
    HeaderTooLong(usize),
    #[error("a frame of {0} bytes is over the limit of {FRAME_BYTES_MAX}")]
    TooLong(usize),
    /// The limit applies to all parts of a message together ([`crate::parts`]).
    #[error("a message of {bytes} bytes is over the limit of {limit}")]
    MessageTooLong { bytes: usize, limit: usize },
    /// For example, a path that is not UTF-8.
    #[error("the header cannot be encoded as JSON: {0}")]
    NoJson(#[from] serde_json::Error),
}

/// Appends the prefix and header of a frame. The caller writes the body of `body_len` bytes next. Callers
/// split bodies into chunks of [`crate::limits::CHUNK_BYTES_MAX`].
pub fn encode_head(
    out: &mut Vec<u8>,
    header: &impl Serialize,
    body_len: usize,
) -> Result<(), EncodeError> {
    let start = out.len();
    let head = append_head(out, header, body_len);
    if head.is_err() {
        out.truncate(start);
    }
    head
}

fn append_head(
    out: &mut Vec<u8>,
    header: &impl Serialize,
    body_len: usize,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(&[0; 2 * LENGTH_BYTES]);
    serde_json::to_writer(&mut *out, header)?;
    let header_len = out.len() - start - 2 * LENGTH_BYTES;
    if header_len > HEADER_BYTES_MAX {
        return Err(EncodeError::HeaderTooLong(header_len));
    }
    let rest = (LENGTH_BYTES + header_len).saturating_add(body_len);
    if rest > FRAME_BYTES_MAX {
        return Err(EncodeError::TooLong(rest));
    }
    // Both are under limits that fit into 32 bits.
    out[start..start + LENGTH_BYTES].copy_from_slice(&(rest as u32).to_be_bytes());
    out[start + LENGTH_BYTES..start + 2 * LENGTH_BYTES]
        .copy_from_slice(&(header_len as u32).to_be_bytes());
    Ok(())
}

/// Appends a whole frame, or nothing.
pub fn encode(out: &mut Vec<u8>, header: &impl Serialize, body: &[u8]) -> Result<(), EncodeError> {
    encode_head(out, header, body.len())?;
    out.extend_from_slice(body);
    Ok(())
}

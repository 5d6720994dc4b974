//! One record of a segment file: encodes it into a buffer and reads it from a file. Owns the framing
//! (`docs/journal.md`) and the checksum. It does not interpret records.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use serde::Serialize;

/// Length and checksum before each frame.
pub(crate) const PREFIX_BYTES: usize = 8;

/// The header's length word at the start of a frame.
const WORD_BYTES: usize = 4;

/// Maximum bytes of a frame with an event. Bodies come in much smaller chunks; a longer frame is refused.
pub const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// Maximum bytes of a frame with a segment's head, which includes the session's facts.
pub const HEAD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of a scanner's first read. Each further read is larger, up to [`WINDOW_BYTES_MAX`].
const WINDOW_BYTES_MIN: usize = 16 * 1024;
const WINDOW_BYTES_MAX: usize = 256 * 1024;

/// Whether the body is copied behind the header, or the caller writes it separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyPlacement {
    Inline,
    Separate,
}

/// Header and body together exceed the limit. The buffer is unchanged.
#[derive(Debug)]
pub(crate) struct RecordTooLong {
    pub(crate) bytes: usize,
}

/// Appends a record to `out` and returns its whole length. The length includes a separate body.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    header: &impl Serialize,
    body: &[u8],
    placing: BodyPlacement,
    frame_bytes_max: usize,
) -> Result<u64, RecordTooLong> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES + WORD_BYTES]);
    serde_json::to_writer(&mut *out, header).expect("journal headers always serialise");
    let header_len = out.len() - start - PREFIX_BYTES - WORD_BYTES;
    let frame_len = WORD_BYTES + header_len + body.len();
    if frame_len > frame_bytes_max {
        out.truncate(start);
        return Err(RecordTooLong { bytes: frame_len });
    }
    let frame = start + PREFIX_BYTES;
    out[frame..frame + WORD_BYTES].copy_from_slice(&(header_len as u32).to_be_bytes());
    let mut sum = crc32fast::Hasher::new();
    sum.update(&out[frame..]);
    sum.update(body);
    out[start..start + 4].copy_from_slice(&(frame_len as u32).to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&sum.finalize().to_be_bytes());
    if placing == BodyPlacement::Inline {
        out.extend_from_slice(body);
    }
    Ok((PREFIX_BYTES + frame_len) as u64)
}

/// A whole record, as stored in its file.
#[derive(Debug, Clone)]
pub(crate) struct JournalRecord {
    /// The offset of the record in the file.
    pub(crate) at: u64,
    pub(crate) header: Bytes,
    pub(crate) body: Bytes,
}

/// Reads the whole records of one file in order, up to a given end. It reads in windows of bounded size.
#[derive(Debug)]
pub(crate) struct Scanner {
    file: File,
    at: u64,
    end: u64,
    window: Bytes,
    window_at: u64,
    window_bytes: usize,
}

impl Scanner {
    pub(crate) fn new(file: File, at: u64, end: u64) -> Self {
        Self { file, at, end, window: Bytes::new(), window_at: at, window_bytes: WINDOW_BYTES_MIN }
    }

    /// Where the next record starts, or where the torn bytes start.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The next whole record. `None` at the end and, permanently, at bytes that are not a whole record.
    pub(crate) fn next(&mut self) -> io::Result<Option<JournalRecord>> {
        let Some(prefix) = self.peek(PREFIX_BYTES)? else { return Ok(None) };
        let frame_len = word(&prefix, 0);
        let limit = if self.at == 0 { HEAD_BYTES_MAX } else { EVENT_BYTES_MAX };
        if frame_len < WORD_BYTES || frame_len > limit {
            return Ok(None);
        }
        let Some(whole) = self.peek(PREFIX_BYTES + frame_len)? else { return Ok(None) };
        let frame = whole.slice(PREFIX_BYTES..);
        let header_len = word(&frame, 0);
        if header_len > frame_len - WORD_BYTES || crc32fast::hash(&frame) != word(&prefix, 4) as u32
        {
            return Ok(None);
        }
        let at = self.at;
        self.at += whole.len() as u64;
        let header = frame.slice(WORD_BYTES..WORD_BYTES + header_len);
        let body = frame.slice(WORD_BYTES + header_len..);
        Ok(Some(JournalRecord { at, header, body }))
    }

    /// The next `count` bytes, without consuming them. `None` if the file ends earlier.
    fn peek(&mut self, count: usize) -> io::Result<Option<Bytes>> {
        let left = self.end.saturating_sub(self.at);
        if (count as u64) > left {
            return Ok(None);
        }
        let mut from = (self.at - self.window_at) as usize;
        if from + count > self.window.len() {
            let take = (count.max(self.window_bytes) as u64).min(left) as usize;
            let mut fresh = vec![0; take];
            match self.file.read_exact_at(&mut fresh, self.at) {
                Ok(()) => {}
                // The file was truncated meanwhile, so the record is no longer whole.
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(cause) => return Err(cause),
            }
            self.window = Bytes::from(fresh);
            self.window_at = self.at;
            self.window_bytes = (self.window_bytes * 4).min(WINDOW_BYTES_MAX);
            from = 0;
        }
        Ok(Some(self.window.slice(from..from + count)))
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    let word = bytes[at..at + WORD_BYTES].try_into().expect("the slice has four bytes");
    u32::from_be_bytes(word) as usize
}

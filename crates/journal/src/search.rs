//! Finds text in a session's output. The search streams the output through a window of bounded size. It finds
//! matches across record boundaries, and its memory does not depend on the size of the output.

use crate::reader::{OutputPiece, OutputRange, ReadError, SessionReader};

/// The longest text that can be searched for. The rest of a longer text is ignored.
pub const NEEDLE_BYTES_MAX: usize = 4 * 1024;

/// Maximum bytes of a line that a match shows.
pub const LINE_BYTES_MAX: usize = 512;

/// Bytes shown before the match if its line is too long to show whole.
const LEAD_BYTES: usize = 128;

/// A line that contains the text. A line with several matches is returned once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputMatch {
    /// The offset of the text in the session's output.
    pub offset: u64,
    /// The line around it, cut to [`LINE_BYTES_MAX`]. Bytes that are not UTF-8 show as U+FFFD.
    pub line: String,
}

/// What a search found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputMatches {
    pub matches: Vec<OutputMatch>,
    /// More matches follow the last one.
    pub more: bool,
}

impl SessionReader {
    /// The first `matches_max` lines in a range that contain the text.
    pub fn search(
        &self,
        needle: &[u8],
        range: OutputRange,
        matches_max: usize,
    ) -> Result<OutputMatches, ReadError> {
        let mut pieces = self.pieces(range);
        search_in(|| pieces.next(), needle, range, matches_max)
    }
}

/// The first `matches_max` lines in a range that contain the text. `next` gives the pieces of the range.
pub(crate) fn search_in(
    mut next: impl FnMut() -> Result<Option<OutputPiece>, ReadError>,
    needle: &[u8],
    range: OutputRange,
    matches_max: usize,
) -> Result<OutputMatches, ReadError> {
    let needle = &needle[..needle.len().min(NEEDLE_BYTES_MAX)];
    if needle.is_empty() {
        return Ok(OutputMatches::default());
    }
    let mut window = SearchWindow { needle, wanted: matches_max, ..SearchWindow::default() };
    let mut expected = range.from;
    while !window.found.more {
        let Some(piece) = next()? else {
            window.look(Rest::None);
            break;
        };
        // Text before and after a gap was never contiguous.
        if piece.offset != expected || !piece.shown {
            window.look(Rest::None);
            window.restart(piece.offset);
        }
        expected = piece.offset + piece.bytes.len() as u64;
        if piece.shown {
            window.push(piece.offset, &piece.bytes);
            window.look(Rest::MayFollow);
        }
    }
    Ok(window.found)
}

/// Whether more bytes can follow the bytes in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    MayFollow,
    None,
}

/// The bytes around the current position of the search.
#[derive(Debug, Default)]
struct SearchWindow<'a> {
    needle: &'a [u8],
    wanted: usize,
    bytes: Vec<u8>,
    /// The offset of the window in the output.
    base: u64,
    /// No match starts before this index in the window.
    searched: usize,
    found: OutputMatches,
}

impl SearchWindow<'_> {
    fn restart(&mut self, base: u64) {
        self.bytes.clear();
        (self.base, self.searched) = (base, 0);
    }

    fn push(&mut self, offset: u64, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.base = offset;
        }
        // Bytes further back than a shown line can reach are not needed again.
        let unneeded = self.searched.saturating_sub(LINE_BYTES_MAX);
        self.bytes.drain(..unneeded);
        self.base += unneeded as u64;
        self.searched -= unneeded;
        self.bytes.extend_from_slice(bytes);
    }

    fn look(&mut self, rest: Rest) {
        while let Some(index) = find(&self.bytes[self.searched..], self.needle) {
            let at = self.searched + index;
            // The matching line may continue in bytes that are not in the window yet.
            let seen = self.bytes.len() - at;
            if rest == Rest::MayFollow && seen < self.needle.len() + LINE_BYTES_MAX {
                self.searched = at;
                return;
            }
            if self.found.matches.len() == self.wanted {
                self.found.more = true;
                return;
            }
            let (start, end) = line_around(&self.bytes, at, self.needle.len());
            let line = text(&self.bytes[start..end]);
            self.found.matches.push(OutputMatch { offset: self.base + at as u64, line });
            self.searched = end.max(at + self.needle.len());
        }
        let undecided = self.bytes.len().saturating_sub(self.needle.len() - 1);
        self.searched = self.searched.max(undecided);
    }
}

/// The line that contains a match, or the part of it that may be shown.
fn line_around(bytes: &[u8], at: usize, length: usize) -> (usize, usize) {
    let far = at.saturating_sub(LINE_BYTES_MAX);
    let line_start = bytes[far..at].iter().rposition(|byte| *byte == b'\n');
    let line_start = line_start.map_or(far, |index| far + index + 1);
    let from = at + length;
    let line_end = bytes[from..].iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n');
    let line_end = line_end.map_or(bytes.len().min(from + LINE_BYTES_MAX), |index| from + index);
    if line_end - line_start <= LINE_BYTES_MAX {
        return (line_start, line_end);
    }
    let start = line_start.max(at.saturating_sub(LEAD_BYTES));
    (start, line_end.min(start + LINE_BYTES_MAX))
}

/// The bytes as text, without partial code points at the ends.
fn text(bytes: &[u8]) -> String {
    let inner = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let skipped = bytes.iter().take(3).take_while(inner).count();
    let mut bytes = &bytes[skipped..];
    if let Err(error) = std::str::from_utf8(bytes)
        && error.error_len().is_none()
    {
        bytes = &bytes[..error.valid_up_to()];
    }
    String::from_utf8_lossy(bytes).into_owned()
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let (first, others) = needle.split_first()?;
    let mut from = 0;
    while let Some(index) = hay[from..].iter().position(|byte| byte == first) {
        let at = from + index;
        if hay[at + 1..].starts_with(others) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

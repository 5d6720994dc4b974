//! Reads the lines of a file of the log one by one, in bounded memory: a file that somebody has replaced may have lines of
//! any length. Follows no symlink, and opens nothing but regular files.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::line::LINE_BYTES_MAX;

/// How often the end of a file is read whose last line is incomplete: the node may be writing that line.
const READS_MAX: u32 = 3;

/// One line of a file, without its newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileLine<'l> {
    Whole(&'l [u8]),
    /// Longer than a record can be.
    TooLong,
    /// So many bytes at the end of the file that no newline follows.
    Incomplete(u64),
}

#[derive(Debug)]
pub(crate) struct LineReader {
    input: BufReader<File>,
    line: Vec<u8>,
    /// Bytes of the lines that were read and that end in a newline, with their newlines.
    pub whole_bytes: u64,
}

impl LineReader {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(OpenOptions::new().read(true), path)?;
        Ok(Self { input: BufReader::new(file), line: Vec::new(), whole_bytes: 0 })
    }

    /// The next line; `None` at the end of the file.
    pub fn next_line(&mut self) -> io::Result<Option<FileLine<'_>>> {
        self.line.clear();
        let (mut bytes, mut reads_at_end) = (0_u64, 0);
        loop {
            let part = match self.input.fill_buf() {
                Ok(part) => part,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if part.is_empty() {
                reads_at_end += 1;
                if bytes == 0 || reads_at_end >= READS_MAX {
                    return Ok((bytes > 0).then_some(FileLine::Incomplete(bytes)));
                }
                continue;
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let text = &part[..end.unwrap_or(part.len())];
            let kept = text.len().min(LINE_BYTES_MAX.saturating_sub(self.line.len()));
            self.line.extend_from_slice(&text[..kept]);
            bytes = bytes.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
            let read = end.map_or(part.len(), |end| end + 1);
            self.input.consume(read);
            if end.is_some() {
                self.whole_bytes = self.whole_bytes.saturating_add(bytes).saturating_add(1);
                let line_bytes = u64::try_from(self.line.len()).unwrap_or(u64::MAX);
                return Ok(Some(match line_bytes == bytes {
                    true => FileLine::Whole(&self.line),
                    false => FileLine::TooLong,
                }));
            }
        }
    }
}

/// Opens a file that must be a regular one. Neither follows a symlink nor waits for the other end of a FIFO.
pub(crate) fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_any_length_is_read_in_bounded_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let (long, most) = ("x".repeat(LINE_BYTES_MAX * 3), "y".repeat(LINE_BYTES_MAX));
        std::fs::write(&path, format!("a\n\n{long}\n{most}\nrest")).unwrap();
        let mut lines = LineReader::open(&path).unwrap();
        for expected in [
            Some(FileLine::Whole(b"a")),
            Some(FileLine::Whole(b"")),
            Some(FileLine::TooLong),
            Some(FileLine::Whole(most.as_bytes())),
            Some(FileLine::Incomplete(4)),
            None,
        ] {
            assert_eq!(lines.next_line().unwrap(), expected);
            assert!(lines.line.capacity() <= 2 * LINE_BYTES_MAX);
        }
        let whole = long.len() + most.len() + 5;
        assert_eq!(lines.whole_bytes, u64::try_from(whole).unwrap());
    }
}

//! Writes the node's log lines. A line that cannot be written is dropped and counted, because a full disk
//! or a closed pipe must not end the node. Owns the count of dropped lines; never decides what is logged.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_subscriber::fmt::MakeWriter;

/// Lines that could not be written since this node started.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Dropped lines that the log does not mention yet.
static UNREPORTED: AtomicU64 = AtomicU64::new(0);

/// Writes log lines to standard error.
#[derive(Debug, Clone, Copy, Default)]
pub struct StandardError;

/// One line of the log, written with one system call.
#[derive(Debug)]
pub struct LogLine<W>(W);

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = LogLine<RawStandardError>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine(RawStandardError)
    }
}

/// How many lines this node could not write.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Standard error without the standard library's lock and buffer.
#[derive(Debug)]
pub struct RawStandardError;

impl Write for RawStandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(rustix::stdio::stderr(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write> Write for LogLine<W> {
    /// Never fails: the subscriber would report the failure on standard error, and panic there.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let unreported = UNREPORTED.swap(0, Ordering::Relaxed);
        let gap = match unreported {
            0 => Ok(()),
            count => writeln!(self.0, "{count} log lines were dropped: they could not be written"),
        };
        if gap.and_then(|()| self.0.write_all(line)).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            UNREPORTED.fetch_add(unreported + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file on a disk that may be full.
    struct FakeFile<'a> {
        has_room: bool,
        text: &'a mut Vec<u8>,
    }

    impl Write for FakeFile<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.has_room {
                true => self.text.write(bytes),
                false => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_when_there_is_space_again() {
        let mut text = Vec::new();
        let before = dropped_lines();
        for (has_room, line) in [(true, "one\n"), (false, "two\n"), (false, "three\n")] {
            let written = LogLine(FakeFile { has_room, text: &mut text }).write(line.as_bytes());
            assert_eq!(written.unwrap(), line.len(), "{line:?}");
        }
        assert_eq!(dropped_lines() - before, 2);
        LogLine(FakeFile { has_room: true, text: &mut text }).write_all(b"four\n").unwrap();
        let expected = "one\n2 log lines were dropped: they could not be written\nfour\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}

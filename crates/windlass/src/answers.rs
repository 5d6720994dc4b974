//! Reads the user's answers line by line, from standard input or the controlling terminal. A read can be
//! cancelled at any time without losing bytes: a turn may end while its prompt is open.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use base64::Engine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::oneshot;
use windlass_protocol::api::TurnInput;

/// Bytes per read. A terminal returns at most one line.
const READ_BYTES: usize = 4096;

/// Maximum length of an answer of several lines.
const BLOCK_BYTES_MAX: usize = 64 * 1024;

/// Maximum length of a line. A longer line is returned in pieces.
const LINE_BYTES_MAX: usize = 1024 * 1024;

pub struct AnswerReader {
    file: File,
    pending: Vec<u8>,
    blocks: Blocks,
}

/// Whether one answer may be several lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocks {
    Allowed,
    Never,
}

/// Whether the terminal shows the typed characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    Shown,
    Hidden,
}

impl AnswerReader {
    pub fn from_stdin() -> io::Result<Self> {
        Ok(Self::new(File::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    /// For commands that read the code from standard input.
    pub fn from_controlling_terminal() -> io::Result<Self> {
        Ok(Self::new(OpenOptions::new().read(true).write(true).open("/dev/tty")?))
    }

    fn new(file: File) -> Self {
        Self { file, pending: Vec::new(), blocks: Blocks::Never }
    }

    /// The same reader for a worker that keeps what it does not need yet of an answer, until its turn ends: a question
    /// for each line of a large file takes minutes. On a terminal an answer stays a line.
    pub fn in_blocks(self) -> Self {
        let blocks = if self.file.is_terminal() { Blocks::Never } else { Blocks::Allowed };
        Self { blocks, ..self }
    }

    /// Forgets what the user has typed so far. Returns whether a user types at all: the input of a pipe stays.
    pub fn discard_typed(&mut self) -> bool {
        if !self.file.is_terminal() {
            return false;
        }
        self.pending.clear();
        // An error means that the terminal is gone, which the next read tells.
        let _ = rustix::termios::tcflush(&self.file, rustix::termios::QueueSelector::IFlush);
        true
    }

    /// The next line with its newline. Empty at the end of input.
    pub async fn line(&mut self, echo: Echo) -> io::Result<Vec<u8>> {
        let hidden = match echo {
            Echo::Hidden if self.file.is_terminal() => Some(HiddenEcho::start(&self.file)?),
            _ => None,
        };
        let line = self.next_line().await;
        if hidden.is_some() {
            // The newline of the user was hidden too.
            eprintln!();
        }
        line
    }

    /// The next line, and with [`Self::in_blocks`] the whole lines after it that are there already. Empty at the end of
    /// input.
    pub async fn block(&mut self) -> io::Result<Vec<u8>> {
        let mut block = self.next_line().await?;
        if self.blocks == Blocks::Allowed && block.ends_with(b"\n") {
            while self.pending.len() < BLOCK_BYTES_MAX && self.is_readable()? && self.read()? > 0 {}
            let end = self.pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            block.extend(self.pending.drain(..end));
        }
        Ok(block)
    }

    async fn next_line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.pending.iter().position(|byte| *byte == b'\n') {
                return Ok(self.pending.drain(..=at).collect());
            }
            if self.pending.len() >= LINE_BYTES_MAX {
                return Ok(std::mem::take(&mut self.pending));
            }
            self.readable().await?;
            match self.read() {
                Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) => return Ok(std::mem::take(&mut self.pending)),
                read => drop(read?),
            }
        }
    }

    /// Adds bytes to the pending ones. Returns how many; 0 at the end of input.
    fn read(&mut self) -> io::Result<usize> {
        let mut buffer = [0; READ_BYTES];
        let count = self.file.read(&mut buffer)?;
        self.pending.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    /// Whether a read would not block.
    fn is_readable(&self) -> io::Result<bool> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&now))? > 0)
    }

    /// Returns when a read would not block. A thread waits but never reads. When the caller cancels this
    /// wait, the pipe closes and the thread ends. The descriptor stays in blocking mode, because it is shared
    /// with the parent process.
    async fn readable(&self) -> io::Result<()> {
        if self.is_readable()? {
            return Ok(());
        }
        let file = self.file.try_clone()?;
        let (cancelled, waiting) = io::pipe()?;
        let (sender, readable) = oneshot::channel();
        thread::Builder::new().name("answers".to_owned()).spawn(move || {
            let mut watched =
                [PollFd::new(&file, PollFlags::IN), PollFd::new(&cancelled, PollFlags::IN)];
            while poll(&mut watched, None) == Err(Errno::INTR) {}
            // Sending fails if the wait was cancelled.
            let _ = sender.send(());
        })?;
        let readable = readable.await;
        drop(waiting);
        readable.map_err(|_| io::Error::other("the thread that waits for input has ended"))
    }
}

/// Switches the echo of the terminal off until it is dropped.
struct HiddenEcho {
    terminal: OwnedFd,
    before: Termios,
}

impl HiddenEcho {
    fn start(terminal: &File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes -= LocalModes::ECHO;
        tcsetattr(terminal, OptionalActions::Now, &hidden)?;
        Ok(Self { terminal: terminal.as_fd().try_clone_to_owned()?, before })
    }
}

impl Drop for HiddenEcho {
    fn drop(&mut self) {
        // An error means that the terminal is gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Converts a line to input for a turn. An empty line means end of input.
pub fn as_input(line: Vec<u8>) -> TurnInput {
    if line.is_empty() {
        return TurnInput { eof: true, ..TurnInput::default() };
    }
    match String::from_utf8(line) {
        Ok(text) => TurnInput { text: Some(text), ..TurnInput::default() },
        Err(raw) => {
            let base64 = base64::engine::general_purpose::STANDARD.encode(raw.as_bytes());
            TurnInput { base64: Some(base64), ..TurnInput::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn lines_come_from_a_plain_file_and_then_end_of_input() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one\ntwo").unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let mut answers = AnswerReader::new(file);
        for expected in [&b"one\n"[..], b"two", b""] {
            assert_eq!(answers.line(Echo::Hidden).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_block_has_the_whole_lines_that_are_there() {
        let pipe = |text: &[u8]| {
            let (reader, writer) = io::pipe().unwrap();
            let mut writer = File::from(OwnedFd::from(writer));
            writer.write_all(text).unwrap();
            (AnswerReader::new(File::from(OwnedFd::from(reader))), writer)
        };
        let (answers, mut writer) = pipe(b"one\ntwo\nha");
        let mut answers = answers.in_blocks();
        assert_eq!(answers.block().await.unwrap(), b"one\ntwo\n");
        writer.write_all(b"lf\nlast").unwrap();
        assert_eq!(answers.line(Echo::Shown).await.unwrap(), b"half\n");
        drop(writer);
        assert_eq!(answers.block().await.unwrap(), b"last");
        assert_eq!(answers.block().await.unwrap(), b"");
        let (mut one_by_one, _writer) = pipe(b"one\ntwo\n");
        assert_eq!(one_by_one.block().await.unwrap(), b"one\n");
    }

    #[tokio::test]
    async fn a_cancelled_wait_loses_no_bytes() {
        let (reader, writer) = io::pipe().unwrap();
        let mut writer = File::from(OwnedFd::from(writer));
        let mut answers = AnswerReader::new(File::from(OwnedFd::from(reader)));
        writer.write_all(b"ha").unwrap();
        let wait = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, answers.line(Echo::Shown)).await.is_err());
        writer.write_all(b"lf\nmore\n").unwrap();
        assert_eq!(answers.line(Echo::Shown).await.unwrap(), b"half\n");
        assert_eq!(answers.line(Echo::Shown).await.unwrap(), b"more\n");
    }

    #[test]
    fn a_line_becomes_text_bytes_or_the_end() {
        assert_eq!(as_input(b"a\n".to_vec()).text.as_deref(), Some("a\n"));
        assert_eq!(as_input(vec![0xff]).base64.as_deref(), Some("/w=="));
        assert!(as_input(Vec::new()).eof);
    }
}

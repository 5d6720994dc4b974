//! What the session's code reads: a pipe, or the terminal. Input never stays for another turn.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::{Errno, ioctl_fionread};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{LocalModes, QueueSelector, tcflush, tcgetattr};

/// How the bytes of an answer are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputForm {
    /// A line, whose end may be missing.
    Line,
    /// What was typed at a terminal.
    Keys,
}

/// The character that ends the input of a terminal.
const END_OF_INPUT: u8 = 4;

/// What a descriptor leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputIdentity {
    device: u64,
    inode: u64,
    special: u64,
}

impl InputIdentity {
    /// `/dev/tty`, device 5:0, which is the session's terminal in every process of the session.
    pub const CONTROLLING_TERMINAL: Self = Self { device: 0, inode: 0, special: 5 << 8 };

    pub fn of(fd: impl AsFd) -> Option<Self> {
        Some(Self::from_stat(&fstat(fd).ok()?))
    }

    /// What descriptor `fd` of another process leads to.
    pub fn in_process(process: u32, fd: u64) -> Option<Self> {
        rustix::fs::stat(format!("/proc/{process}/fd/{fd}")).ok().as_ref().map(Self::from_stat)
    }

    fn from_stat(facts: &rustix::fs::Stat) -> Self {
        if FileType::from_raw_mode(facts.st_mode) == FileType::CharacterDevice {
            // The same terminal can be reached by several paths.
            return Self { device: 0, inode: 0, special: facts.st_rdev };
        }
        Self { device: facts.st_dev, inode: facts.st_ino, special: 0 }
    }
}

/// Input that waits until a pipe or a terminal takes it.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    at: usize,
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    fn write_to(&mut self, fd: impl AsFd) {
        while !self.is_empty() {
            match rustix::io::write(&fd, &self.bytes[self.at..]) {
                Ok(count) => self.at += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.clear(),
            }
        }
        self.clear();
    }
}

/// The pipe that is the standard input of a session without a terminal.
#[derive(Debug)]
pub struct InputPipe {
    pub read_end: OwnedFd,
    /// Absent after the end of input.
    writer: Option<OwnedFd>,
    unsent: Unsent,
    ends: bool,
}

impl InputPipe {
    pub fn new() -> io::Result<Self> {
        let (read_end, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        Ok(Self { read_end, writer: Some(writer), unsent: Unsent::default(), ends: false })
    }

    /// Whether a reader has to wait until somebody gives input.
    pub fn is_dry(&self) -> bool {
        !self.ends && self.unsent.is_empty() && ioctl_fionread(&self.read_end) == Ok(0)
    }

    pub fn give(&mut self, bytes: &[u8], eof: bool) {
        self.unsent.bytes.extend_from_slice(bytes);
        self.ends = eof;
        self.flush();
    }

    /// The descriptor that takes input, while some waits.
    pub fn wants_to_write(&self) -> Option<BorrowedFd<'_>> {
        self.writer.as_ref().filter(|_| !self.unsent.is_empty()).map(AsFd::as_fd)
    }

    pub fn flush(&mut self) {
        if let Some(writer) = &self.writer {
            self.unsent.write_to(writer);
        }
        if self.ends && self.unsent.is_empty() {
            self.writer = None;
        }
    }

    /// The turn is over: drops unread input and opens a closed pipe again.
    pub fn reset(&mut self) {
        self.unsent.clear();
        if ioctl_fionread(&self.read_end) != Ok(0) {
            self.drain();
        }
        if self.ends {
            self.ends = false;
            self.writer = self.reopen(OFlags::WRONLY).ok();
        }
    }

    fn drain(&self) {
        let Ok(reader) = self.reopen(OFlags::RDONLY) else { return };
        let mut dropped = [0; 4096];
        while let Ok(1..) = rustix::io::read(&reader, &mut dropped) {}
    }

    /// The pipe, opened a second time without blocking. The flags of bash's own descriptor stay as they are.
    fn reopen(&self, mode: OFlags) -> io::Result<OwnedFd> {
        let mut options = OpenOptions::new();
        options.read(mode == OFlags::RDONLY).write(mode == OFlags::WRONLY);
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        Ok(options.open(format!("/proc/self/fd/{}", self.read_end.as_raw_fd()))?.into())
    }
}

/// Input of the session's terminal.
#[derive(Debug, Default)]
pub struct TerminalInput {
    unsent: Unsent,
}

impl TerminalInput {
    pub fn is_dry(&self, slave: &OwnedFd) -> bool {
        self.unsent.is_empty() && ioctl_fionread(slave) == Ok(0)
    }

    pub fn give(&mut self, master: &OwnedFd, bytes: &[u8], eof: bool) {
        self.unsent.bytes.extend_from_slice(bytes);
        if eof {
            self.unsent.bytes.push(END_OF_INPUT);
        }
        self.flush(master);
    }

    pub fn wants_to_write(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub fn flush(&mut self, master: &OwnedFd) {
        self.unsent.write_to(master);
    }

    pub fn reset(&mut self, slave: &OwnedFd) {
        self.unsent.clear();
        let _ = tcflush(slave, QueueSelector::IFlush);
    }
}

/// Whether the terminal does not show what is typed, as for a password. Full-screen programs read single
/// characters and show them on their own.
pub fn hides_input(slave: &OwnedFd) -> bool {
    tcgetattr(slave).is_ok_and(|modes| {
        modes.local_modes.contains(LocalModes::ICANON)
            && !modes.local_modes.contains(LocalModes::ECHO)
    })
}

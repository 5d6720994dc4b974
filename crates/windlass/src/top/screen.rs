//! The terminal of `windlass top`: raw mode, the alternate screen, keys in and frames out. Whatever ends the command,
//! the terminal is as it was. Never blocks: a terminal that takes no output keeps no signal from being heard.

use std::io;
use std::os::fd::OwnedFd;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::net::unix::pipe;

/// The controlling terminal. It is opened anew, so that it can be non-blocking here and not in other processes.
const DEVICE: &str = "/dev/tty";

/// Saves the screen and shows another one without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";

/// Empties the screen.
const CLEAR: &[u8] = b"\x1b[0m\x1b[2J\x1b[H";

/// Shows the cursor and the saved screen.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// The size of a terminal that does not tell its size.
const COLUMNS_DEFAULT: u16 = 80;
const ROWS_DEFAULT: u16 = 24;

/// The largest size that is drawn: a terminal can claim any.
const COLUMNS_MAX: u16 = 1000;
const ROWS_MAX: u16 = 500;

/// How often a terminal that takes no output is asked again before it is left as it is, and how long each time.
const RESTORE_TRIES: u32 = 4;
const RESTORE_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// The terminal while it shows the screen. Dropping it restores the terminal.
#[derive(Debug)]
pub struct TopScreen {
    // The runtime's pipe ends only read, write and wait, which works on terminals too.
    input: pipe::Receiver,
    output: pipe::Sender,
    restore: Arc<TerminalRestore>,
    /// What the terminal shows once `pending` is written.
    shown: Buffer,
    pending: Vec<u8>,
}

impl TopScreen {
    /// Takes over the controlling terminal. It must be called within the runtime.
    pub fn open() -> io::Result<Self> {
        let device = || {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            open(DEVICE, flags, Mode::empty())
        };
        let restore = Arc::new(TerminalRestore::new(device()?)?);
        let mut screen = Self {
            input: pipe::Receiver::from_owned_fd_unchecked(device()?)?,
            output: pipe::Sender::from_owned_fd_unchecked(device()?)?,
            restore,
            shown: Buffer::empty(Rect::default()),
            pending: Vec::new(),
        };
        restore_on_panic(&screen.restore);
        screen.enter()?;
        Ok(screen)
    }

    /// Takes the terminal. The next frame is drawn as a whole.
    pub fn enter(&mut self) -> io::Result<()> {
        self.renew()?;
        self.pending = [ENTER, CLEAR].concat();
        Ok(())
    }

    /// Empties the screen, and takes its size and its modes anew. The next frame is drawn as a whole.
    pub fn renew(&mut self) -> io::Result<()> {
        self.restore.make_raw()?;
        // An escape sequence that was written in part ends with the next ESC.
        self.pending = CLEAR.to_vec();
        self.shown = Buffer::empty(self.restore.area());
        Ok(())
    }

    /// Gives the terminal back as it was.
    pub fn leave(&mut self) {
        // What is left of a frame is not needed.
        self.pending.clear();
        self.restore.now();
    }

    pub fn height(&self) -> u16 {
        self.shown.area.height
    }

    /// Whether the terminal has taken the last frame.
    pub fn is_ready(&self) -> bool {
        self.pending.is_empty()
    }

    /// Draws a frame: only cells that differ from the last one are written.
    pub fn draw(&mut self, render: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        let mut frame = Buffer::empty(self.shown.area);
        render(&mut frame);
        let changes = self.shown.diff(&frame);
        CrosstermBackend::new(&mut self.pending).draw(changes.into_iter())?;
        self.shown = frame;
        Ok(())
    }

    /// The next bytes that the user typed; 0 if the terminal is gone.
    pub async fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            self.input.readable().await?;
            match self.input.try_read(bytes) {
                Err(fault) if is_transient(&fault) => {}
                read => return read,
            }
        }
    }

    /// Writes some of what is pending, and returns how much. [`TopScreen::wrote`] takes the number.
    pub async fn write(&self) -> io::Result<usize> {
        loop {
            self.output.writable().await?;
            match self.output.try_write(&self.pending) {
                Err(fault) if is_transient(&fault) => {}
                wrote => return wrote,
            }
        }
    }

    pub fn wrote(&mut self, bytes: usize) {
        self.pending.drain(..bytes.min(self.pending.len()));
    }
}

impl Drop for TopScreen {
    fn drop(&mut self) {
        self.restore.now();
    }
}

fn is_transient(fault: &io::Error) -> bool {
    matches!(fault.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Restores the terminal, once for each time that it was changed.
struct TerminalRestore {
    device: OwnedFd,
    before: Termios,
    is_changed: AtomicBool,
}

impl TerminalRestore {
    fn new(device: OwnedFd) -> io::Result<Self> {
        let before = tcgetattr(&device)?;
        Ok(Self { device, before, is_changed: AtomicBool::new(false) })
    }

    fn make_raw(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        self.is_changed.store(true, Ordering::Relaxed);
        Ok(tcsetattr(&self.device, OptionalActions::Now, &raw)?)
    }

    fn area(&self) -> Rect {
        let told = tcgetwinsize(&self.device).ok();
        let told = told.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (width, height) =
            told.map_or((COLUMNS_DEFAULT, ROWS_DEFAULT), |size| (size.ws_col, size.ws_row));
        Rect::new(0, 0, width.min(COLUMNS_MAX), height.min(ROWS_MAX))
    }

    /// Also called by the hook of a panic: waits only a short time for a terminal that takes no output.
    fn now(&self) {
        if !self.is_changed.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut rest = LEAVE;
        for _ in 0..RESTORE_TRIES {
            let mut watched = [PollFd::new(&self.device, PollFlags::OUT)];
            // A failed wait shows in the write.
            let _ = poll(&mut watched, Some(&RESTORE_WAIT));
            match rustix::io::write(&self.device, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => break,
            }
            if rest.is_empty() {
                break;
            }
        }
        // A terminal that is gone needs no modes.
        let _ = tcsetattr(&self.device, OptionalActions::Now, &self.before);
    }
}

impl std::fmt::Debug for TerminalRestore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TerminalRestore").finish_non_exhaustive()
    }
}

/// Restores the terminal before a panic is told, and before it aborts the program.
fn restore_on_panic(restore: &Arc<TerminalRestore>) {
    let (restore, tell) = (Arc::clone(restore), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        restore.now();
        tell(panic);
    }));
}

//! Starts bash with its private descriptors, and talks to it: command lines in, reports out.
//!
//! Bash reads commands from a private pipe on descriptor 0. The other private descriptors have high numbers,
//! because scripts use low ones. A pseudoterminal is the controlling terminal in every session: it gives bash
//! job control, so that each job has a process group of its own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, ioctl_fionread};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, ioctl_tiocsctty, kill_process, kill_process_group, pidfd_open, setsid,
};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetpgrp, tcsetwinsize};
use windlass_procs::inherited::take_inherited;
use windlass_procs::signal::default_interrupt;
use windlass_worker_kit::{FD_VARIABLE, TERMINAL_VARIABLE};

use super::look::others_in_group;
use super::script::{self, BashDescriptors};
use super::stopping::StopStep;
use super::terminal::mark_format;

/// The first argument that makes this program set up a process and become bash.
pub const START_BASH: &str = "start-bash";

/// The lowest number of a private descriptor in bash. Bash itself uses 10 and up, and 255.
const PRIVATE_FROM: RawFd = 220;

/// Maximum bytes of reports that are read at once.
const REPORT_BYTES_MAX: usize = 4096;

/// What bash reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BashReport {
    Ready {
        version: String,
    },
    /// The turn with this mark has ended.
    Ended {
        mark: String,
        status: u8,
        again: bool,
    },
    /// Bash has run the last line of this number of the turn with this mark.
    LinesDone {
        mark: String,
        number: u32,
    },
    /// Bash ends with this status and has saved its state.
    Saved {
        status: u8,
    },
}

/// The pseudoterminal of a session.
#[derive(Debug)]
pub struct SessionTerminal {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// A running bash.
#[derive(Debug)]
pub struct Bash {
    child: Child,
    pub pid: Pid,
    pub ended: OwnedFd,
    commands: File,
    /// The end of the command pipe that bash reads, to recognise it.
    pub commands_read: OwnedFd,
    pub report: File,
    unread_report: Vec<u8>,
    code: File,
    pub terminal: Option<SessionTerminal>,
    fds: BashDescriptors,
}

/// What a new bash is made from.
#[derive(Debug)]
pub struct BashParts<'a> {
    /// The session's standard input. In a session with a terminal, the terminal is used instead.
    pub input: &'a OwnedFd,
    /// The file in memory for bash's state.
    pub state: &'a File,
    /// Bash's end of the channel of `windlass-tool`.
    pub tools: Option<&'a OwnedFd>,
    /// The size of the terminal, if the standard streams are a terminal.
    pub size: Option<Winsize>,
    pub terminal_secret: &'a str,
}

impl Bash {
    pub fn start(parts: &BashParts<'_>) -> io::Result<Self> {
        let terminal = SessionTerminal::open(parts.size);
        if let (Some(_), Err(cause)) = (parts.size, &terminal) {
            return Err(io::Error::new(cause.kind(), format!("no pseudoterminal: {cause}")));
        }
        let terminal = terminal.ok();
        let streams = terminal.as_ref().filter(|_| parts.size.is_some());
        let (commands_read, commands) = pipe_with(PipeFlags::CLOEXEC)?;
        let (report, report_write) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&report, OFlags::NONBLOCK)?;
        fcntl_setfl(&commands, OFlags::NONBLOCK)?;
        let code = File::from(memfd_create("windlass-code", MemfdFlags::CLOEXEC)?);
        let start = File::from(memfd_create("windlass-start", MemfdFlags::CLOEXEC)?);
        let (input, stderr) = match streams {
            Some(terminal) => (inherited(&terminal.slave)?, inherited(&terminal.slave)?),
            None => (inherited(parts.input)?, inherited(rustix::stdio::stderr())?),
        };
        let tools = parts.tools.map(inherited).transpose()?;
        let slave = terminal.as_ref().map(|t| inherited(&t.slave)).transpose()?;
        let (code_in, state_in, report_in, start_in) = (
            inherited(&code)?,
            inherited(parts.state)?,
            inherited(&report_write)?,
            inherited(&start)?,
        );
        let fds = BashDescriptors {
            code: code_in.as_raw_fd(),
            input: input.as_raw_fd(),
            report: report_in.as_raw_fd(),
            state: state_in.as_raw_fd(),
            tools: tools.as_ref().map(AsRawFd::as_raw_fd),
            stderr: stderr.as_raw_fd(),
            start: start_in.as_raw_fd(),
        };
        let program = std::env::current_exe()?;
        let mark = parts.size.map(|_| mark_format(parts.terminal_secret)).unwrap_or_default();
        let text = script::start_file(fds, &program.to_string_lossy(), &mark);
        start.write_all_at(text.as_bytes(), 0)?;
        let mut command = Command::new(&program);
        command
            .arg(START_BASH)
            .arg(slave.as_ref().map_or(-1, AsRawFd::as_raw_fd).to_string())
            .arg(start_in.as_raw_fd().to_string())
            .env_remove(FD_VARIABLE)
            .env_remove(TERMINAL_VARIABLE)
            .stdin(Stdio::from(commands_read.try_clone()?))
            .stderr(Stdio::null());
        if let Some(terminal) = streams {
            command.stdout(Stdio::from(terminal.slave.try_clone()?));
            if std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
                command.env("TERM", "xterm-256color");
            }
        }
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self {
            child,
            pid,
            ended,
            commands: commands.into(),
            commands_read,
            report: report.into(),
            unread_report: Vec::new(),
            code,
            terminal,
            fds,
        })
    }

    /// Gives bash the code of a turn.
    pub fn run(
        &mut self,
        mark: &str,
        last_status: u8,
        before: &str,
        code: &[u8],
    ) -> io::Result<()> {
        self.code.set_len(0)?;
        self.code.write_all_at(before.as_bytes(), 0)?;
        self.code.write_all_at(code, before.len() as u64)?;
        self.commands.write_all(script::turn_lines(self.fds, mark, last_status).as_bytes())
    }

    /// Gives bash a line that ends the turn unless it has ended. Too many such lines are dropped.
    pub fn end_again(&mut self, mark: &str, number: u32) {
        let _ = self.commands.write_all(script::last_line(mark, number).as_bytes());
    }

    /// Whether bash has read all lines that it was given.
    pub fn has_read_commands(&self) -> bool {
        ioctl_fionread(&self.commands_read) == Ok(0)
    }

    /// Asks bash to end.
    pub fn leave(&mut self) {
        let _ = self.commands.write_all(b"exec 2>/dev/null; builtin exit 0\n");
        let _ = kill_process(self.pid, Signal::HUP);
    }

    /// The path and the size of the last code, for another process.
    pub fn code_path(&self) -> (String, u64) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.code.as_raw_fd());
        (path, self.code.metadata().map_or(0, |facts| facts.len()))
    }

    /// The reports that are there.
    pub fn reports(&mut self) -> Vec<BashReport> {
        let mut buffer = [0; REPORT_BYTES_MAX];
        while let Ok(count @ 1..) = self.report.read(&mut buffer) {
            self.unread_report.extend_from_slice(&buffer[..count]);
            if self.unread_report.len() > 16 * REPORT_BYTES_MAX {
                // Only the session's code writes this much. Its bytes are no reports.
                self.unread_report.clear();
            }
        }
        let mut reports = Vec::new();
        while let Some(end) = self.unread_report.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread_report.drain(..=end).collect();
            reports.extend(parse_report(&String::from_utf8_lossy(&line)));
        }
        reports
    }

    /// The process group that has the terminal. Bash's own group if bash itself runs. `None` without a
    /// terminal.
    pub fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.terminal.as_ref()?.master).ok()
    }

    /// Sends the signals of one step. Bash itself gets one SIGINT at a time.
    pub fn stop(&self, step: StopStep) {
        let foreground = self.foreground().filter(|group| *group != self.pid);
        let signal = match step {
            StopStep::HangUp => return self.signal(Signal::HUP),
            StopStep::KillBash => return self.signal(Signal::KILL),
            StopStep::Interrupt => Signal::INT,
            StopStep::Terminate => Signal::TERM,
            StopStep::KillForeground => Signal::KILL,
        };
        match foreground {
            Some(group) => signal_group(group, signal),
            // Background jobs have groups of their own. Without job control, they ignore SIGINT.
            None if signal == Signal::INT => return signal_group(self.pid, signal),
            None => self.signal_own_children(signal),
        }
        self.signal(Signal::INT);
    }

    /// Signals the children in bash's own group, for example those of `$(...)`.
    fn signal_own_children(&self, signal: Signal) {
        if self.terminal.is_none() {
            return;
        }
        let bash = self.pid.as_raw_nonzero().get().cast_unsigned();
        let pids = others_in_group(bash, bash).collect::<Vec<_>>();
        for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, signal);
        }
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// How bash ended, if it has.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

/// A group that is gone needs no signal.
fn signal_group(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}

impl SessionTerminal {
    fn open(size: Option<Winsize>) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        fcntl_setfl(&master, OFlags::NONBLOCK)?;
        if let Some(size) = size {
            tcsetwinsize(&master, size)?;
        }
        Ok(Self { master, slave })
    }
}

/// Sets up this process and becomes bash: a session of its own with its terminal.
pub fn start_bash(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut number = || arguments.next()?.to_str()?.parse::<RawFd>().ok();
    let (Some(slave), Some(start)) = (number(), number()) else {
        return ExitCode::FAILURE;
    };
    let _ = setsid();
    if let Ok(slave) = take_inherited(slave) {
        let _ = ioctl_tiocsctty(&slave);
    }
    let _ = default_interrupt();
    let file = format!("/dev/fd/{start}");
    let failed =
        Command::new("bash").args(["--noprofile", "--rcfile", &file, "--noediting", "-i"]).exec();
    eprintln!("windlass-worker: bash: {failed}");
    ExitCode::FAILURE
}

/// A report that bash wrote. Lines that are no report come from the session's code.
fn parse_report(line: &str) -> Option<BashReport> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["R", version, ..] => Some(BashReport::Ready { version: version.to_owned() }),
        ["E", mark, status, ref again @ ..] => Some(BashReport::Ended {
            mark: mark.to_owned(),
            status: status.parse().ok()?,
            again: !again.is_empty(),
        }),
        ["F", mark, number] => {
            Some(BashReport::LinesDone { mark: mark.to_owned(), number: number.parse().ok()? })
        }
        ["X", status] => Some(BashReport::Saved { status: status.parse().ok()? }),
        _ => None,
    }
}

/// A copy of the descriptor that a child process inherits, with a high number.
fn inherited(fd: impl AsFd) -> io::Result<OwnedFd> {
    let copy = fcntl_dupfd_cloexec(fd, PRIVATE_FROM)?;
    fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy)
}

/// Sends a descriptor with one byte.
pub fn send_descriptor(channel: &OwnedFd, fd: impl AsFd) -> bool {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(channel, &[io::IoSlice::new(b"1")], &mut control, SendFlags::NOSIGNAL).is_ok()
}

/// The descriptor that comes with the next byte. `None` at the end of the channel.
pub fn receive_descriptor(channel: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [io::IoSliceMut::new(&mut byte)];
    loop {
        match recvmsg(channel, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

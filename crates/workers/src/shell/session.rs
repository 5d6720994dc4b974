//! The worker's loop: one poll over the keeper, bash, the terminal, readers of the input and tools.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use rustix::termios::Winsize;
use windlass_procs::signal::ignore_interrupt;
use windlass_worker_kit::{
    Link, LinkError, Message, StartupFigures, Stream, TERMINAL_VARIABLE, TurnNo, capability,
};

use super::bash::{Bash, BashParts, BashReport, described_end};
use super::input::{FileIdentity, InputPipe, TerminalInput, hides_input};
use super::look::{self, KnownFiles, WaitsFor};
use super::outcome::{TurnEnd, syntax_error};
use super::script;
use super::stopping::{StopStep, Stopping};
use super::terminal::{TerminalOutput, TerminalReader};
use super::tools::ToolDesk;

const CAPABILITIES: [&str; 3] = [capability::STDIN, capability::INTERRUPT, capability::TOOLS];

/// How long a turn runs, or is quiet in its terminal, before the worker looks what its processes wait for. The
/// pause doubles up to the maximum. A system call filter that reports each read of descriptor 0 would be exact
/// at once, but makes `while read` over a pipe 27 times slower.
const LOOK_AFTER: Duration = Duration::from_millis(4);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long the end of a turn waits for its last output in the terminal.
const TERMINAL_MARK_WAIT: Duration = Duration::from_millis(300);

/// How often bash may be idle without a report of the turn's end, before it is started anew.
const UNREPORTED_MAX: u32 = 4;

/// How long input may be on its way through a terminal, where it cannot be seen.
const TYPING_TIME: Duration = Duration::from_millis(50);

/// How often in a row bash may end before it is ready.
const FAILED_STARTS_MAX: u32 = 3;

/// How long bash may take to end at a shutdown.
const LEAVE_TIME_MAX: Duration = Duration::from_millis(500);

/// The status of bash for a syntax error, among others.
const SYNTAX_STATUS: u8 = 2;

/// Files that a session may name to be run before its first turn.
const STARTUP_VARIABLES: [&str; 2] = ["WINDLASS_STARTUP", "BASH_ENV"];

/// Serves the session until the keeper ends it.
pub fn serve(mut link: Link) -> io::Result<()> {
    let began = Instant::now();
    ignore_interrupt()?;
    let mut shell = ShellSession::start()?;
    let version = shell.wait_until_ready(&mut link)?;
    let figures = StartupFigures {
        runtime_load_ms: Some(began.elapsed().as_secs_f64() * 1000.0),
        ..Default::default()
    };
    let ready = link.ready(&format!("bash {version}"), &CAPABILITIES, Some(&figures));
    let served = ready.and_then(|()| shell.serve(&mut link));
    shell.leave();
    match served {
        Ok(()) | Err(LinkError::Closed) => Ok(()),
        Err(other) => Err(io::Error::other(other)),
    }
}

/// Whether the loop continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    Leave,
}

/// Bash and everything around it.
#[derive(Debug)]
struct ShellSession {
    bash: Bash,
    state: File,
    pipe: InputPipe,
    typed: TerminalInput,
    tools: ToolDesk,
    terminal: TerminalReader,
    /// Present if the standard streams are a terminal.
    size: Option<Winsize>,
    secret: String,
    turn: Option<RunningTurn>,
    last_turn: TurnNo,
    startup: Option<String>,
    between: BetweenTurns,
}

/// What the next turn has to know.
#[derive(Debug, Default)]
struct BetweenTurns {
    /// The exit status of the last turn.
    status: u8,
    /// Whether the next code begins with switching tracing and prompts on again.
    again: bool,
    /// Why the state is lost since the last turn.
    lost: Option<String>,
    /// Starts of bash in a row that did not get ready.
    failed_starts: u32,
}

#[derive(Debug)]
struct RunningTurn {
    turn: TurnNo,
    /// The number of the turn and random characters, which the session's code does not know.
    mark: String,
    /// The code that runs after the startup file. Absent if the code itself runs.
    after_startup: Option<Vec<u8>>,
    asked: bool,
    stopping: Option<Stopping>,
    /// The exit status, and when it was known.
    ended: Option<(u8, Instant)>,
    lines_done: bool,
    terminal_done: bool,
    /// The status that bash itself ended with, after it has saved its state.
    saved: Option<u8>,
    /// How often bash was idle without a report of the turn's end.
    unreported: u32,
    /// When the last input was given.
    input_at: Option<Instant>,
    look_at: Instant,
    look_pause: Duration,
}

impl RunningTurn {
    fn new(turn: TurnNo, after_startup: Option<Vec<u8>>) -> io::Result<Self> {
        Ok(Self {
            turn,
            mark: format!("{turn}-{}", random_text()?),
            after_startup,
            asked: false,
            stopping: None,
            ended: None,
            lines_done: false,
            terminal_done: false,
            saved: None,
            unreported: 0,
            input_at: None,
            look_at: Instant::now() + LOOK_AFTER,
            look_pause: LOOK_AFTER,
        })
    }

    fn was_active(&mut self) {
        self.look_pause = LOOK_AFTER;
        self.look_at = Instant::now() + LOOK_AFTER;
    }
}

impl ShellSession {
    fn start() -> io::Result<Self> {
        let size = match std::env::var(TERMINAL_VARIABLE) {
            Ok(text) => Some(terminal_size(&text).ok_or_else(|| {
                io::Error::other(format!("{TERMINAL_VARIABLE}={text:?} is not COLUMNSxROWS"))
            })?),
            Err(_) => None,
        };
        let state = File::from(memfd_create("windlass-state", MemfdFlags::CLOEXEC)?);
        let pipe = InputPipe::new()?;
        let tools = ToolDesk::open()?;
        let secret = random_text()?;
        let bash = Bash::start(&BashParts {
            input: &pipe.read_end,
            state: &state,
            tools: Some(&tools.bash_end),
            size,
            terminal_secret: &secret,
        })?;
        let startup = STARTUP_VARIABLES
            .iter()
            .filter_map(|name| std::env::var(name).ok())
            .find(|path| !path.is_empty())
            .map(|path| script::startup_code(&path));
        Ok(Self {
            bash,
            state,
            pipe,
            typed: TerminalInput::default(),
            tools,
            terminal: TerminalReader::new(&secret),
            size,
            secret,
            turn: None,
            last_turn: TurnNo(0),
            startup,
            between: BetweenTurns::default(),
        })
    }

    /// Waits for bash's first report. Returns bash's version.
    fn wait_until_ready(&mut self, link: &mut Link) -> io::Result<String> {
        loop {
            for report in self.bash.reports() {
                if let BashReport::Ready { version } = report {
                    return Ok(version.split('(').next().unwrap_or_default().to_owned());
                }
            }
            if let Some(status) = self.bash.try_wait() {
                return Err(io::Error::other(format!("bash does not start: {}", described_end(status))));
            }
            if link.is_closed() {
                return Err(io::Error::other("the keeper is gone"));
            }
            self.wait(link)?;
            link.look();
        }
    }

    fn serve(&mut self, link: &mut Link) -> Result<(), LinkError> {
        loop {
            link.look();
            while let Some(message) = link.next() {
                if self.obey(link, message)? == Next::Leave {
                    return Ok(());
                }
            }
            self.take_reports(link)?;
            self.pass_on_terminal(link)?;
            self.pipe.flush();
            if let Some(terminal) = &self.bash.terminal {
                self.typed.flush(&terminal.master);
            }
            self.tools.serve(link, self.turn.as_ref().map(|running| running.turn))?;
            self.take_end_of_bash(link)?;
            self.stop_further();
            self.look_when_quiet(link)?;
            self.finish_if_ended(link)?;
            self.wait(link)?;
        }
    }

    /// Waits until something happens.
    fn wait(&mut self, link: &Link) -> io::Result<()> {
        let timeout = self.due().map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            // Rounded up, so that the time has come when the wait ends.
            let left = left + Duration::from_micros(50);
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        let mut watched = vec![
            PollFd::new(link, PollFlags::IN),
            PollFd::new(&self.bash.report, PollFlags::IN),
            PollFd::new(&self.bash.ended, PollFlags::IN),
        ];
        if let Some(terminal) = &self.bash.terminal {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, self.typed.wants_to_write());
            watched.push(PollFd::new(&terminal.master, wanted));
        }
        if let Some(writer) = self.pipe.wants_to_write() {
            watched.push(PollFd::from_borrowed_fd(writer, PollFlags::OUT));
        }
        watched.extend(self.tools.watched());
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }

    /// When the worker has to act even if nothing happens.
    fn due(&self) -> Option<Instant> {
        let running = self.turn.as_ref()?;
        let stop = running.stopping.and_then(|stopping| stopping.due());
        let mark = running.ended.map(|(_, at)| at + TERMINAL_MARK_WAIT);
        [stop, mark, Some(running.look_at)].into_iter().flatten().min()
    }

    fn obey(&mut self, link: &mut Link, message: Message) -> Result<Next, LinkError> {
        let running = self.turn.as_ref().map(|running| running.turn);
        match message {
            Message::TurnStart { turn, code } => {
                if running.is_none() {
                    self.begin(link, turn, code.to_vec())?;
                }
            }
            Message::Interrupt { turn } if running == Some(turn) => self.stop(),
            Message::Input { turn, bytes, eof } if running == Some(turn) => {
                self.give_input(&bytes, eof);
            }
            Message::ToolResult { turn, call, ok, body } if running == Some(turn) => {
                self.tools.answer(call, ok, &body);
            }
            Message::Shutdown { .. } => {
                link.session_end("shutdown")?;
                return Ok(Next::Leave);
            }
            Message::Closed => return Ok(Next::Leave),
            // Late messages, and those of other workers' capabilities.
            Message::Interrupt { .. }
            | Message::Input { .. }
            | Message::ToolResult { .. }
            | Message::Fork { .. } => {}
        }
        Ok(Next::Continue)
    }

    fn begin(&mut self, link: &mut Link, turn: TurnNo, code: Vec<u8>) -> Result<(), LinkError> {
        self.last_turn = turn;
        if link.interrupted(turn) {
            return finish(link, turn, &TurnEnd::INTERRUPTED);
        }
        if let Some(cause) = self.between.lost.take() {
            let text = format!("bash ended between turns ({cause}): its state is lost\n");
            link.output(turn, Stream::Stderr, text.as_bytes())?;
        }
        match self.startup.take() {
            Some(startup) => self.run(turn, startup.into_bytes(), Some(code)),
            None => self.run(turn, code, None),
        }
        .map_err(LinkError::from)
    }

    fn run(&mut self, turn: TurnNo, code: Vec<u8>, after: Option<Vec<u8>>) -> io::Result<()> {
        let mut running = RunningTurn::new(turn, after)?;
        running.terminal_done = self.size.is_none();
        self.terminal.begin_line();
        let before = if std::mem::take(&mut self.between.again) { script::AGAIN } else { "" };
        let given = self.bash.run(&running.mark, self.between.status, before, &code);
        self.turn = Some(running);
        match given {
            // Bash is gone. The loop sees its end next.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    fn give_input(&mut self, bytes: &[u8], eof: bool) {
        let Some(running) = &mut self.turn else { return };
        if !std::mem::take(&mut running.asked) {
            return;
        }
        running.was_active();
        running.input_at = Some(Instant::now());
        let mut bytes = bytes.to_vec();
        if !eof && bytes.last() != Some(&b'\n') {
            // An answer is a line, as in the other workers. `read` waits for its end.
            bytes.push(b'\n');
        }
        let to_terminal = self.typed_for_terminal();
        match &self.bash.terminal {
            Some(terminal) if to_terminal => self.typed.give(&terminal.master, &bytes, eof),
            _ => self.pipe.give(&bytes, eof),
        }
    }

    /// Whether the answer goes to the terminal: always if it is the standard input, else if a program reads
    /// the terminal itself, for example to ask for a password.
    fn typed_for_terminal(&self) -> bool {
        self.size.is_some() || self.waiting() == Some(WaitsFor::Terminal)
    }

    fn stop(&mut self) {
        if let Some(running) = &mut self.turn {
            running.stopping.get_or_insert_with(|| Stopping::begin(Instant::now()));
        }
        self.pipe.reset();
        self.stop_further();
    }

    fn stop_further(&mut self) {
        let Some(running) = &mut self.turn else { return };
        let Some(stopping) = &mut running.stopping else { return };
        while let Some(step) = stopping.step(Instant::now()) {
            match step {
                StopStep::Interrupt => self.bash.signal_foreground(Signal::INT),
                StopStep::Terminate => self.bash.signal_foreground(Signal::TERM),
                StopStep::KillForeground => self.bash.signal_foreground(Signal::KILL),
                StopStep::HangUp => self.bash.signal(Signal::HUP),
                StopStep::KillBash => self.bash.signal(Signal::KILL),
            }
            self.bash.signal(Signal::INT);
            self.bash.end_again(&running.mark);
        }
    }

    fn take_reports(&mut self, link: &mut Link) -> Result<(), LinkError> {
        for report in self.bash.reports() {
            if let BashReport::Ready { .. } = report {
                self.between.failed_starts = 0;
                // The state is in the new bash.
                self.state.set_len(0)?;
                continue;
            }
            let Some(running) = &mut self.turn else { continue };
            match report {
                BashReport::Ended { mark, status, again } if mark == running.mark => {
                    running.ended.get_or_insert((status, Instant::now()));
                    self.between.again = again;
                    self.between.status = status;
                }
                BashReport::LinesDone { mark } if mark == running.mark => running.lines_done = true,
                BashReport::Saved { status } => running.saved = Some(status),
                _ => {}
            }
        }
        self.finish_if_ended(link)
    }

    fn input_file(&self) -> Option<FileIdentity> {
        match (&self.bash.terminal, self.size) {
            (Some(terminal), Some(_)) => FileIdentity::of(&terminal.slave),
            _ => FileIdentity::of(&self.pipe.read_end),
        }
    }

    fn input_is_dry(&self) -> bool {
        match (&self.bash.terminal, self.size) {
            (Some(terminal), Some(_)) => self.typed.is_dry(&terminal.slave),
            _ => self.pipe.is_dry(),
        }
    }

    fn ask(&mut self, link: &mut Link) -> Result<(), LinkError> {
        self.pass_on_terminal(link)?;
        let Some(running) = &mut self.turn else { return Ok(()) };
        if running.asked || running.stopping.is_some() || running.ended.is_some() {
            return Ok(());
        }
        running.asked = true;
        let secret = self.bash.terminal.as_ref().is_some_and(|terminal| hides_input(&terminal.slave));
        link.stdin_wait(running.turn, &self.terminal.prompt(), secret)
    }

    fn look_when_quiet(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let Some(running) = &mut self.turn else { return Ok(()) };
        let now = Instant::now();
        if now < running.look_at {
            return Ok(());
        }
        running.look_pause = (running.look_pause * 2).min(LOOK_PAUSE_MAX);
        running.look_at = now + running.look_pause;
        if running.asked {
            return Ok(());
        }
        let typing = running.input_at.is_some_and(|at| now < at + TYPING_TIME);
        let is_terminal = self.size.is_some();
        match self.waiting() {
            Some(WaitsFor::Terminal) if typing => Ok(()),
            Some(WaitsFor::Input) if typing && is_terminal => Ok(()),
            Some(WaitsFor::Input) if self.input_is_dry() => self.ask(link),
            Some(WaitsFor::Terminal) => self.ask(link),
            Some(WaitsFor::Commands) => self.end_without_report(link),
            _ => Ok(()),
        }
    }

    fn waiting(&self) -> Option<WaitsFor> {
        let files = KnownFiles {
            input: self.input_file(),
            terminal: self.bash.terminal.as_ref().and_then(|t| FileIdentity::of(&t.slave)),
            commands: FileIdentity::of(&self.bash.commands_read),
        };
        look::waiting(number_of(self.bash.pid), self.bash.foreground().map(number_of), files)
    }

    /// Bash waits for commands although no end was reported. SIGINT makes bash drop lines that it has not run,
    /// so bash gets the last line once more. If that does not help, the code has broken the mechanism, for
    /// example by closing its descriptors, and bash is started anew.
    fn end_without_report(&mut self, link: &mut Link) -> Result<(), LinkError> {
        self.take_reports(link)?;
        let Some(running) = &mut self.turn else { return Ok(()) };
        if !self.bash.has_read_commands() || running.lines_done {
            return Ok(());
        }
        running.unreported += 1;
        if running.unreported > UNREPORTED_MAX {
            self.bash.signal(Signal::KILL);
        } else {
            self.bash.end_again(&running.mark);
        }
        Ok(())
    }

    fn pass_on_terminal(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let Some(terminal) = &self.bash.terminal else { return Ok(()) };
            let Ok(count @ 1..) = rustix::io::read(&terminal.master, &mut buffer) else {
                return Ok(());
            };
            for part in self.terminal.push(&buffer[..count]) {
                match (part, &mut self.turn) {
                    (TerminalOutput::Bytes(bytes), Some(running)) => {
                        running.was_active();
                        let stream =
                            if self.size.is_some() { Stream::Stdout } else { Stream::Stderr };
                        link.output(running.turn, stream, &bytes)?;
                    }
                    (TerminalOutput::Bytes(bytes), None) if self.last_turn > TurnNo(0) => {
                        link.background_output(self.last_turn, Stream::Stdout, &bytes)?;
                    }
                    (TerminalOutput::Mark(mark), Some(running)) if mark == running.mark => {
                        running.terminal_done = true;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Bash has ended: by `set -e`, `exec`, a signal, or because it was told to.
    fn take_end_of_bash(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let Some(status) = self.bash.try_wait() else { return Ok(()) };
        self.take_reports(link)?;
        self.pass_on_terminal(link)?;
        let saved = self.turn.as_ref().and_then(|running| running.saved);
        let kept = saved.is_some() || self.state.metadata()?.len() > 0;
        self.between.failed_starts += 1;
        if self.between.failed_starts > FAILED_STARTS_MAX {
            let cause = format!("bash cannot be started: {}", described_end(status));
            link.session_end(&cause)?;
            return Err(LinkError::Closed);
        }
        self.restart()?;
        let Some(running) = &mut self.turn else {
            self.between.lost = (!kept).then(|| described_end(status));
            return Ok(());
        };
        running.terminal_done = true;
        running.lines_done = true;
        if running.ended.is_some() {
            self.between.lost = (!kept).then(|| described_end(status));
            return self.finish_if_ended(link);
        }
        let end = match saved {
            _ if running.stopping.is_some() && kept => TurnEnd::INTERRUPTED,
            Some(status) => TurnEnd::of_status(status, false),
            None => TurnEnd::error(
                "ShellLost",
                format!(
                    "bash ended ({}) and its state is lost: it was killed or replaced by exec",
                    described_end(status)
                ),
            ),
        };
        self.finish(link, &end)
    }

    fn restart(&mut self) -> io::Result<()> {
        self.pipe = InputPipe::new()?;
        self.typed = TerminalInput::default();
        self.terminal = TerminalReader::new(&self.secret);
        self.between.again = false;
        self.between.status = 0;
        self.bash = Bash::start(&BashParts {
            input: &self.pipe.read_end,
            state: &self.state,
            tools: Some(&self.tools.bash_end),
            size: self.size,
            terminal_secret: &self.secret,
        })?;
        Ok(())
    }

    /// Ends the turn if its status and all its output are there. After an interrupt, bash must also have
    /// handled all lines, so that no signal reaches the next turn.
    fn finish_if_ended(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let Some(running) = &self.turn else { return Ok(()) };
        let Some((status, at)) = running.ended else { return Ok(()) };
        if running.stopping.is_some() && !running.lines_done {
            return Ok(());
        }
        if !running.terminal_done {
            self.pass_on_terminal(link)?;
        }
        let Some(running) = &self.turn else { return Ok(()) };
        if !running.terminal_done && at.elapsed() < TERMINAL_MARK_WAIT {
            return Ok(());
        }
        let mut end = TurnEnd::of_status(status, running.stopping.is_some());
        if status == SYNTAX_STATUS && running.stopping.is_none() {
            let (path, bytes) = self.bash.code_path();
            if let Some(message) = syntax_error(&path, bytes) {
                end = TurnEnd::error("SyntaxError", message);
            }
        }
        self.finish(link, &end)
    }

    fn finish(&mut self, link: &mut Link, end: &TurnEnd) -> Result<(), LinkError> {
        let Some(running) = self.turn.take() else { return Ok(()) };
        self.pipe.reset();
        if let Some(terminal) = &self.bash.terminal {
            self.typed.reset(&terminal.slave);
        }
        match running.after_startup {
            Some(code) if running.stopping.is_none() => {
                self.run(running.turn, code, None).map_err(LinkError::from)
            }
            _ => {
                self.tools.end_turn(running.turn);
                finish(link, running.turn, end)
            }
        }
    }

    fn leave(&mut self) {
        self.bash.leave();
        let time = Timespec { tv_sec: 0, tv_nsec: LEAVE_TIME_MAX.subsec_nanos().into() };
        let ended: &OwnedFd = &self.bash.ended;
        let _ = poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&time));
        self.bash.signal(Signal::KILL);
    }
}

fn finish(link: &mut Link, turn: TurnNo, end: &TurnEnd) -> Result<(), LinkError> {
    let error = end.error.as_ref().map(|(name, message)| (*name, message.as_str()));
    link.idle(turn, end.outcome, error)
}

fn number_of(pid: rustix::process::Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

/// The size in `COLUMNSxROWS`.
fn terminal_size(text: &str) -> Option<Winsize> {
    let (columns, rows) = text.split_once('x')?;
    Some(Winsize { ws_col: columns.parse().ok()?, ws_row: rows.parse().ok()?, ws_xpixel: 0, ws_ypixel: 0 })
}

fn random_text() -> io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

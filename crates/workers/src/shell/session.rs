//! The worker's loop: one poll over the keeper, bash, the terminal, readers of the input and tools.

mod asking;
mod turn;

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
    KeeperMessage, Link, StartupFigures, Stream, TERMINAL_VARIABLE, TurnContext, TurnNo,
    WorkerLinkError, capability,
};

use self::turn::{RunningTurn, ShellTurnStage};
use super::bash::{Bash, BashParts, BashReport};
use super::input::{InputForm, InputPipe, TerminalInput};
use super::look::WaitsFor;
use super::outcome::{ShellTurnEnd, described_end, signal_status, syntax_error};
use super::script;
use super::stopping::Stopping;
use super::surroundings::TurnCode;
use super::terminal::{TerminalOutput, TerminalReader};
use super::tools::ToolDesk;

const CAPABILITIES: [&str; 4] =
    [capability::STDIN, capability::INTERRUPT, capability::TOOLS, capability::CONTEXT];

/// How long the end of a turn waits for its last output in the terminal.
const TERMINAL_MARK_WAIT: Duration = Duration::from_millis(300);

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
        runtime_load_ms: u32::try_from(began.elapsed().as_millis()).ok(),
        ..Default::default()
    };
    let ready = link.ready(&format!("bash {version}"), &CAPABILITIES, Some(&figures));
    let served = ready.and_then(|()| shell.serve(&mut link));
    shell.leave();
    match served {
        Ok(()) | Err(WorkerLinkError::Closed) => Ok(()),
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
                return Err(io::Error::other(format!(
                    "bash does not start: {}",
                    described_end(status)
                )));
            }
            if link.is_closed() {
                return Err(io::Error::other("the keeper is gone"));
            }
            self.wait(link)?;
            link.look();
        }
    }

    fn serve(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
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
        [stop, mark, Some(running.look.due)].into_iter().flatten().min()
    }

    fn obey(&mut self, link: &mut Link, message: KeeperMessage) -> Result<Next, WorkerLinkError> {
        let running = self.turn.as_ref().map(|running| running.turn);
        match message {
            KeeperMessage::TurnStart { turn, code, context } => {
                if running.is_none() {
                    self.begin(link, turn, code.to_vec(), context.as_deref())?;
                }
            }
            KeeperMessage::Interrupt { turn } if running == Some(turn) => self.stop(),
            KeeperMessage::Input { turn, bytes, eof, keys } if running == Some(turn) => {
                let form = if keys { InputForm::Keys } else { InputForm::Line };
                self.give_input(&bytes, eof, form);
            }
            KeeperMessage::ToolResult { turn, call, ok, body } if running == Some(turn) => {
                self.tools.answer(call, ok, &body);
            }
            KeeperMessage::Shutdown { .. } => {
                link.session_end("shutdown")?;
                return Ok(Next::Leave);
            }
            KeeperMessage::Closed => return Ok(Next::Leave),
            // Late messages, and those of other workers' capabilities.
            KeeperMessage::Interrupt { .. }
            | KeeperMessage::Input { .. }
            | KeeperMessage::ToolResult { .. }
            | KeeperMessage::Fork { .. } => {}
        }
        Ok(Next::Continue)
    }

    fn begin(
        &mut self,
        link: &mut Link,
        turn: TurnNo,
        code: Vec<u8>,
        context: Option<&TurnContext>,
    ) -> Result<(), WorkerLinkError> {
        self.last_turn = turn;
        if link.interrupted(turn) {
            return finish(link, turn, &ShellTurnEnd::INTERRUPTED);
        }
        let code = match context.map(|context| TurnCode::new(context, code.clone())) {
            None => TurnCode::of_cell(code),
            Some(Ok(code)) => code,
            Some(Err(refused)) => {
                let text = format!("{refused}\n");
                link.output(turn, Stream::Stderr, text.as_bytes())?;
                let end = ShellTurnEnd::error("ContextRefused", refused.to_string());
                return finish(link, turn, &end);
            }
        };
        if let Some(cause) = self.between.lost.take() {
            let text = format!("bash ended between turns ({cause}): its state is lost\n");
            link.output(turn, Stream::Stderr, text.as_bytes())?;
        }
        match self.startup.take() {
            Some(startup) => self.run(turn, TurnCode::of_cell(startup.into_bytes()), Some(code)),
            None => self.run(turn, code, None),
        }
        .map_err(WorkerLinkError::from)
    }

    fn run(&mut self, turn: TurnNo, code: TurnCode, after: Option<TurnCode>) -> io::Result<()> {
        let stage = match after {
            Some(after) => ShellTurnStage::Startup(after),
            None if code.program => ShellTurnStage::Program,
            None => ShellTurnStage::Cell,
        };
        let mut running = RunningTurn::new(turn, stage)?;
        running.terminal_done = self.size.is_none();
        self.terminal.begin_line();
        let again = if std::mem::take(&mut self.between.again) { script::AGAIN } else { "" };
        let before = format!("{}{again}", code.before);
        let given = self.bash.run(&running.mark, self.between.status, &before, &code.code);
        self.turn = Some(running);
        match given {
            // Bash is gone. The loop sees its end next.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    fn stop(&mut self) {
        if let Some(running) = &mut self.turn {
            running.stopping.get_or_insert_with(|| Stopping::begin(Instant::now()));
        }
        self.pipe.reset();
        self.stop_further();
    }

    fn stop_further(&mut self) {
        loop {
            let Some(running) = &mut self.turn else { return };
            let Some(step) = running.stopping.as_mut().and_then(|s| s.step(Instant::now())) else {
                return;
            };
            if self.waiting() != Some(WaitsFor::Commands) {
                self.bash.stop(step);
            }
            self.end_again();
        }
    }

    /// Gives bash one more last line. The turn is over when bash has run the latest one: bash has then handled
    /// all signals that were sent before.
    fn end_again(&mut self) {
        if let Some(running) = &mut self.turn {
            running.last_line += 1;
            running.lines_done = false;
            self.bash.end_again(&running.mark, running.last_line);
        }
    }

    fn take_reports(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
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
                BashReport::LinesDone { mark, number } if mark == running.mark => {
                    running.lines_done = number == running.last_line;
                }
                BashReport::Saved { status } => running.saved = Some(status),
                _ => {}
            }
        }
        self.finish_if_ended(link)
    }

    fn pass_on_terminal(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
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
    fn take_end_of_bash(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
        let Some(status) = self.bash.try_wait() else { return Ok(()) };
        self.take_reports(link)?;
        self.pass_on_terminal(link)?;
        let saved = self.turn.as_ref().and_then(|running| running.saved);
        let kept = saved.is_some() || self.state.metadata()?.len() > 0;
        self.between.failed_starts += 1;
        if self.between.failed_starts > FAILED_STARTS_MAX {
            let cause = format!("bash cannot be started: {}", described_end(status));
            link.session_end(&cause)?;
            return Err(WorkerLinkError::Closed);
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
            _ if running.stopping.is_some() && kept => ShellTurnEnd::INTERRUPTED,
            // A signal such as SIGSEGV runs the EXIT trap with the status of the last command, which may be 0.
            Some(saved) => ShellTurnEnd::of_status(signal_status(status).unwrap_or(saved), false),
            // A program may end its bash, by `exec` or by `set -e` with a trap.
            None if running.is_program() && status.code().is_some() => {
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                self.between.lost = Some(described_end(status));
                ShellTurnEnd::of_status(code.unwrap_or(u8::MAX), false)
            }
            None => {
                let lost = ShellTurnEnd::lost(status);
                if let Some((name, message)) = &lost.error {
                    let text = format!("{name}: {message}\n");
                    link.output(running.turn, Stream::Stderr, text.as_bytes())?;
                }
                lost
            }
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
    fn finish_if_ended(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
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
        let mut end = ShellTurnEnd::of_status(status, running.stopping.is_some());
        if status == SYNTAX_STATUS && running.stopping.is_none() && !running.is_program() {
            let (path, bytes) = self.bash.code_path();
            if let Some(message) = syntax_error(&path, bytes) {
                end = ShellTurnEnd::error("SyntaxError", message);
            }
        }
        self.finish(link, &end)
    }

    fn finish(&mut self, link: &mut Link, end: &ShellTurnEnd) -> Result<(), WorkerLinkError> {
        let Some(running) = self.turn.take() else { return Ok(()) };
        self.pipe.reset();
        if let Some(terminal) = &self.bash.terminal {
            self.typed.reset(&terminal.slave);
        }
        match running.stage {
            ShellTurnStage::Startup(code) if running.stopping.is_none() => {
                self.run(running.turn, code, None).map_err(WorkerLinkError::from)
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

fn finish(link: &mut Link, turn: TurnNo, end: &ShellTurnEnd) -> Result<(), WorkerLinkError> {
    let error = end.error.as_ref().map(|(name, message)| (*name, message.as_str()));
    link.idle_with_status(turn, end.outcome, error, end.exit_code.map(i32::from))
}

fn number_of(pid: rustix::process::Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

/// The size in `COLUMNSxROWS`.
fn terminal_size(text: &str) -> Option<Winsize> {
    let (columns, rows) = text.split_once('x')?;
    Some(Winsize {
        ws_col: columns.parse().ok()?,
        ws_row: rows.parse().ok()?,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

fn random_text() -> io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

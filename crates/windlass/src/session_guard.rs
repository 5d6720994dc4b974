//! Ends the session of `run` and `repl` when the command ends, whatever ends the command, unless the
//! session is kept. Owns the signals that end a command, and notices when the reader of standard output
//! goes away. Prints nothing.
//!
//! This runs in a thread with its own runtime. The command itself may block on a key press, or on a write
//! to a pipe that is not read, and must still end on a signal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use windlass_client::{Client, ClientError};
use windlass_protocol::api::{CloseQuery, Session};
use windlass_protocol::{Seq, SessionId};

use crate::{exit, node_access};

/// How long an exiting command waits for the end of its session. After that the command exits anyway,
/// and the short idle timeout (`commands::run::IDLE`) ends the session.
const EXIT_WAIT: Duration = Duration::from_secs(5);

/// Grace period for the code of a session whose command exits.
const EXIT_GRACE_MS: u64 = 500;

/// Pause between attempts to reach a missing node. Far below the idle timeout of the session.
const ATTEND_PAUSE: Duration = Duration::from_secs(2);

/// What ends a command before its work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExitCause {
    Interrupt,
    Terminate,
    HangUp,
    /// The reader of standard output is gone.
    PipeClosed,
}

impl ExitCause {
    /// The shell convention: 128 plus the signal number.
    fn exit_code(self) -> u8 {
        match self {
            Self::HangUp => exit::HUNG_UP,
            Self::Interrupt => exit::INTERRUPTED,
            Self::PipeClosed => exit::PIPE_CLOSED,
            Self::Terminate => exit::TERMINATED,
        }
    }
}

/// What happens to a new session when its command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterCommand {
    EndSession,
    KeepSession,
}

/// The session that the command created and has to end.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CreatedSession {
    /// The command created no session, or keeps it.
    None,
    /// The command sent the request; the node has not replied yet.
    Creating,
    Created(SessionId),
}

/// What Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CtrlCTarget {
    ExitCommand,
    /// `SessionFollower` handles Ctrl-C.
    GoesToTurn,
}

#[derive(Debug, Clone)]
struct CommandState {
    session: CreatedSession,
    ctrl_c: CtrlCTarget,
    /// The session that a person uses interactively. It counts as attended between turns too.
    attended: Option<SessionId>,
}

/// Ends the created session when the command ends; see the module documentation.
#[derive(Debug)]
pub struct SessionGuard {
    command: watch::Sender<CommandState>,
    exit: watch::Receiver<ExitState>,
}

/// Whether a signal or a closed pipe is ending the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExitState {
    Running,
    Exiting,
}

impl SessionGuard {
    /// Starts the guard thread. From now on a signal or a closed pipe also ends the created session.
    pub fn start() -> anyhow::Result<Self> {
        let first = CommandState {
            session: CreatedSession::None,
            ctrl_c: CtrlCTarget::ExitCommand,
            attended: None,
        };
        let (sender, command) = watch::channel(first);
        let (exit_sender, exit) = watch::channel(ExitState::Running);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Install the handlers here and not in the thread, so that no signal can arrive before them.
        let signals = {
            let _within = runtime.enter();
            ExitSignals::new()?
        };
        let terminal = TerminalMode::now();
        thread::Builder::new().name("session-guard".to_owned()).spawn(move || {
            runtime.block_on(exit_on_signal(signals, command, exit_sender, terminal));
        })?;
        Ok(Self { command: sender, exit })
    }

    /// Runs `work` and returns its result. Once the command is exiting, `work` makes no more progress, so
    /// that the end of the session prints nothing.
    pub async fn unless_exiting<T>(&self, work: impl Future<Output = T>) -> T {
        let mut exit = self.exit.clone();
        tokio::select! {
            biased;
            Ok(_) = exit.wait_for(|exit| *exit == ExitState::Exiting) => std::future::pending().await,
            done = work => done,
        }
    }

    /// Creates a session. From then on, whatever ends the command also ends the session, unless it is kept.
    pub async fn create(
        &self,
        afterwards: AfterCommand,
        created: impl Future<Output = anyhow::Result<Session>>,
    ) -> anyhow::Result<Session> {
        if afterwards == AfterCommand::KeepSession {
            return created.await;
        }
        self.update(|command| command.session = CreatedSession::Creating);
        let created = created.await;
        let session = match &created {
            Ok(session) => CreatedSession::Created(session.id.clone()),
            Err(_) => CreatedSession::None,
        };
        self.update(|command| command.session = session);
        created
    }

    /// From now on Ctrl-C interrupts the turn instead of ending the command.
    pub fn leave_ctrl_c_to_turn(&self) {
        self.update(|command| command.ctrl_c = CtrlCTarget::GoesToTurn);
    }

    /// Keeps a client connected to the session until the command ends, so that the session is not idle
    /// while a person sits at the prompt.
    pub fn attend(&self, session: &SessionId) {
        self.update(|command| command.attended = Some(session.clone()));
    }

    /// Keeps the session when the command ends.
    pub fn keep_session(&self) {
        self.update(|command| command.session = CreatedSession::None);
    }

    /// Ends the session that the command created, unless the session is kept.
    pub async fn close(&self, client: &Client) -> Result<(), ClientError> {
        let CreatedSession::Created(session) = self.command.borrow().session.clone() else {
            return Ok(());
        };
        node_access::close(client, &session).await?;
        self.keep_session();
        Ok(())
    }

    /// Ends the session if it is still there, and returns the result of the command's work.
    pub async fn end(self, worked: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
        let session = self.command.borrow().session.clone();
        if let CreatedSession::Created(session) = session {
            close_in_time(&session).await;
        }
        match worked {
            Err(error) if is_closed_pipe(&error) => Ok(ExitCode::from(exit::PIPE_CLOSED)),
            other => other,
        }
    }

    fn update(&self, change: impl FnOnce(&mut CommandState)) {
        self.command.send_modify(change);
    }
}

/// Whether the reader of our output is gone. A broken connection to the node does not count.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let by_client = error.chain().any(|cause| cause.is::<ClientError>());
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    !by_client && cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

async fn exit_on_signal(
    mut signals: ExitSignals,
    mut command: watch::Receiver<CommandState>,
    exit: watch::Sender<ExitState>,
    terminal: Option<TerminalMode>,
) {
    let mut attending = command.clone();
    let cause = tokio::select! {
        cause = signals.next(&command) => cause,
        () = attend(&mut attending) => return,
    };
    let ended = async {
        let settled = command.wait_for(|command| command.session != CreatedSession::Creating);
        let session = settled.await.ok().map(|command| command.session.clone());
        exit.send_replace(ExitState::Exiting);
        if let Some(CreatedSession::Created(session)) = session {
            close_in_time(&session).await;
        }
    };
    // A second signal does not shorten this wait. One event often sends two: a closed terminal hangs up
    // standard output and sends SIGHUP, and `timeout` signals the command and its process group.
    let _ = timeout(EXIT_WAIT, ended).await;
    if let Some(terminal) = terminal {
        terminal.restore();
    }
    std::process::exit(i32::from(cause.exit_code()));
}

/// Ends a session, and waits at most `EXIT_WAIT`. If the node cannot be reached, the idle timeout ends the
/// session.
async fn close_in_time(session: &SessionId) {
    let close = async {
        let client = node_access::connect_if_running().await.ok()??;
        let query = CloseQuery { grace_ms: Some(EXIT_GRACE_MS) };
        client.with_retry_for(Duration::ZERO).close_session(session, query).await.ok()
    };
    let _ = timeout(EXIT_WAIT, close).await;
}

/// Follows the attended session and prints nothing: a session with a follower is not idle. Returns when
/// the command is over.
async fn attend(command: &mut watch::Receiver<CommandState>) {
    let attended = command.wait_for(|command| command.attended.is_some()).await;
    let Some(session) = attended.ok().and_then(|command| command.attended.clone()) else {
        return;
    };
    let presence = async {
        // A position after every possible event: this stream delivers none.
        let end = Seq(u64::MAX);
        loop {
            if let Ok(Some(client)) = node_access::connect_if_running().await {
                match client.events(&session, end).next().await {
                    Err(ClientError::Cut { .. }) => {}
                    Err(error) if error.is_unreachable() => {}
                    // The session has ended or cannot be followed.
                    _ => break,
                }
            }
            sleep(ATTEND_PAUSE).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = presence => {}
        _ = command.wait_for(|_| false) => {}
    }
}

/// The signals and the closed output that end the command.
struct ExitSignals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
    reader: Option<OutputReader>,
}

impl ExitSignals {
    fn new() -> io::Result<Self> {
        let ignored = ignored_signals();
        let listen = |kind: SignalKind| -> io::Result<Option<Signal>> {
            let bit = 1u64 << (kind.as_raw_value() - 1);
            // If the parent (for example `nohup`) set the signal to be ignored, it stays ignored.
            if ignored & bit != 0 { Ok(None) } else { signal(kind).map(Some) }
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            reader: OutputReader::new()?,
        })
    }

    async fn next(&mut self, command: &watch::Receiver<CommandState>) -> ExitCause {
        loop {
            tokio::select! {
                () = received(&mut self.interrupt) => {
                    if command.borrow().ctrl_c == CtrlCTarget::ExitCommand {
                        return ExitCause::Interrupt;
                    }
                }
                () = received(&mut self.terminate) => return ExitCause::Terminate,
                () = received(&mut self.hang_up) => return ExitCause::HangUp,
                cause = reader_gone(&mut self.reader) => return cause,
            }
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

async fn reader_gone(reader: &mut Option<OutputReader>) -> ExitCause {
    match reader {
        Some(reader) => reader.gone().await,
        None => std::future::pending().await,
    }
}

/// Bit mask of the signals that this process ignored from its start. 0 if /proc does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Watches the reader of standard output: the other end of a pipe or socket, or a terminal.
struct OutputReader {
    gone: oneshot::Receiver<()>,
    /// The cause to report when the reader goes away.
    cause: ExitCause,
}

impl OutputReader {
    /// `None` if standard output is a file, which has no reader that can go away. A thread does the waiting,
    /// because the descriptor is shared with the parent process and must stay in blocking mode. The thread
    /// ends with the command.
    fn new() -> io::Result<Option<Self>> {
        let Ok(output) = io::stdout().as_fd().try_clone_to_owned() else { return Ok(None) };
        let cause = match FileType::from_raw_mode(fstat(&output)?.st_mode) {
            FileType::Fifo | FileType::Socket => ExitCause::PipeClosed,
            _ if isatty(&output) => ExitCause::HangUp,
            _ => return Ok(None),
        };
        let (sender, gone) = oneshot::channel();
        thread::Builder::new().name("output-reader".to_owned()).spawn(move || {
            // poll reports errors and hang-ups even when no flag requests them.
            let mut watched = [PollFd::new(&output, PollFlags::empty())];
            while poll(&mut watched, None) == Err(Errno::INTR) {}
            // Sending fails if the command is already over.
            let _ = sender.send(());
        })?;
        Ok(Some(Self { gone, cause }))
    }

    async fn gone(&mut self) -> ExitCause {
        match (&mut self.gone).await {
            Ok(()) => self.cause,
            Err(_) => std::future::pending().await,
        }
    }
}

/// The terminal settings from before the line editor changed them.
struct TerminalMode {
    terminal: OwnedFd,
    mode: Termios,
}

impl TerminalMode {
    fn now() -> Option<Self> {
        let terminal = io::stdin().as_fd().try_clone_to_owned().ok()?;
        let mode = tcgetattr(&terminal).ok()?;
        Some(Self { terminal, mode })
    }

    /// Restores the settings if this is the foreground process group. The kernel stops a background process
    /// that changes terminal settings.
    fn restore(&self) {
        if tcgetpgrp(&self.terminal).is_ok_and(|owner| owner == rustix::process::getpgrp()) {
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.mode);
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_exit_code_is_128_plus_the_signal_number() {
        for (cause, expected) in [
            (ExitCause::HangUp, 128 + 1),
            (ExitCause::Interrupt, 128 + 2),
            (ExitCause::PipeClosed, 128 + 13),
            (ExitCause::Terminate, 128 + 15),
        ] {
            assert_eq!(cause.exit_code(), expected, "{cause:?}");
        }
    }

    #[test]
    fn only_our_output_counts_as_a_closed_pipe() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&broken().into()));
        assert!(is_closed_pipe(&Err::<(), _>(broken()).context("cannot show it").unwrap_err()));
        assert!(!is_closed_pipe(&io::Error::from(io::ErrorKind::NotFound).into()));
        let cut = ClientError::Cut { cause: broken().to_string() };
        assert!(!is_closed_pipe(&cut.into()));
    }
}

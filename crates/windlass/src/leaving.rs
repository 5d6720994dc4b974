//! How `run` and `repl` end: whatever ends them, the session that they made ends with them, unless it is
//! to stay. Owns the signals that end a command and the watch over the reader of its output; shows nothing.
//!
//! A thread with a runtime of its own does this. The command itself may be waiting for a key, or in a
//! write to a pipe that nobody reads, and must still end when it is told to.

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

/// How long a command that is left may take to end its session; it goes without that then. The idle
/// timeout of such a session is short (`commands::run::IDLE`).
const LEAVE_WAIT: Duration = Duration::from_secs(5);

/// How long the code of a session that is left may take to finish.
const LEAVE_GRACE_MS: u64 = 500;

/// Between attempts to reach a node that is away. It is far below the idle timeout of such a session.
const ATTEND_PAUSE: Duration = Duration::from_secs(2);

/// What ends a command before its work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaveCause {
    Interrupt,
    Terminate,
    HangUp,
    /// Nobody reads standard output any more.
    PipeClosed,
}

impl LeaveCause {
    /// As shells tell it: 128 and the signal's number.
    fn exit_code(self) -> u8 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
            Self::PipeClosed => exit::PIPE_CLOSED,
            Self::Terminate => 143,
        }
    }
}

/// What becomes of a new session when its command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    Ends,
    Stays,
}

/// What the command has made, as far as its end matters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnSession {
    /// None, or none that is to end.
    None,
    /// It is asked for, and not answered yet.
    Making,
    Made(SessionId),
}

/// What Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CtrlCMeans {
    /// The command ends.
    Leaving,
    /// Something else, which whoever follows the turn decides.
    Otherwise,
}

#[derive(Debug, Clone)]
struct Progress {
    session: OwnSession,
    ctrl_c: CtrlCMeans,
    /// The session that a person is at, between turns too.
    attended: Option<SessionId>,
}

/// See the module's first lines.
#[derive(Debug)]
pub struct Leaving {
    progress: watch::Sender<Progress>,
    told: watch::Receiver<Told>,
}

/// Whether the command is being left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    NotYet,
    ToLeave,
}

impl Leaving {
    /// From now on the command is ended in good order by what ends it.
    pub fn start() -> anyhow::Result<Self> {
        let first =
            Progress { session: OwnSession::None, ctrl_c: CtrlCMeans::Leaving, attended: None };
        let (sender, progress) = watch::channel(first);
        let (tell, told) = watch::channel(Told::NotYet);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Here, not in the thread: a signal that comes next is one of these already.
        let causes = {
            let _within = runtime.enter();
            Causes::new()?
        };
        let terminal = TerminalMode::now();
        thread::Builder::new()
            .name("leaving".to_owned())
            .spawn(move || runtime.block_on(leave_when_told(causes, progress, tell, terminal)))?;
        Ok(Self { progress: sender, told })
    }

    /// What `work` gives. Nothing more of it is done once the command is left: what its session's end
    /// would show concerns nobody.
    pub async fn unless_left<T>(&self, work: impl Future<Output = T>) -> T {
        let mut told = self.told.clone();
        tokio::select! {
            biased;
            Ok(_) = told.wait_for(|told| *told == Told::ToLeave) => std::future::pending().await,
            done = work => done,
        }
    }

    /// Makes a session; whatever ends the command from then on ends it too, unless it stays.
    pub async fn make(
        &self,
        afterwards: Afterwards,
        made: impl Future<Output = anyhow::Result<Session>>,
    ) -> anyhow::Result<Session> {
        if afterwards == Afterwards::Stays {
            return made.await;
        }
        self.note(|progress| progress.session = OwnSession::Making);
        let made = made.await;
        let session = match &made {
            Ok(session) => OwnSession::Made(session.id.clone()),
            Err(_) => OwnSession::None,
        };
        self.note(|progress| progress.session = session);
        made
    }

    /// A turn is followed: Ctrl-C is for it from now on.
    pub fn follows(&self) {
        self.note(|progress| progress.ctrl_c = CtrlCMeans::Otherwise);
    }

    /// A person is at this session until the command ends: it has a client, also between turns.
    pub fn attends(&self, session: &SessionId) {
        self.note(|progress| progress.attended = Some(session.clone()));
    }

    /// The session stays after all.
    pub fn stays(&self) {
        self.note(|progress| progress.session = OwnSession::None);
    }

    /// Ends the session that the command made, if it made one that is to end.
    pub async fn close(&self, client: &Client) -> Result<(), ClientError> {
        let OwnSession::Made(session) = self.progress.borrow().session.clone() else {
            return Ok(());
        };
        node_access::close(client, &session).await?;
        self.stays();
        Ok(())
    }

    /// The command's work is over: its session ends, if it still has one, and the outcome is told.
    pub async fn end(self, worked: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
        let session = self.progress.borrow().session.clone();
        if let OwnSession::Made(session) = session {
            close_in_time(&session).await;
        }
        match worked {
            Err(error) if is_closed_pipe(&error) => Ok(ExitCode::from(exit::PIPE_CLOSED)),
            other => other,
        }
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        self.progress.send_modify(change);
    }
}

/// Whether our own output has no reader any more. A connection to the node that broke is another matter.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let by_client = error.chain().any(|cause| cause.is::<ClientError>());
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    !by_client && cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

async fn leave_when_told(
    mut causes: Causes,
    mut progress: watch::Receiver<Progress>,
    tell: watch::Sender<Told>,
    terminal: Option<TerminalMode>,
) {
    let mut attending = progress.clone();
    let cause = tokio::select! {
        cause = causes.next(&progress) => cause,
        () = attend(&mut attending) => return,
    };
    let ended = async {
        let settled = progress.wait_for(|progress| progress.session != OwnSession::Making);
        let session = settled.await.ok().map(|progress| progress.session.clone());
        tell.send_replace(Told::ToLeave);
        if let Some(OwnSession::Made(session)) = session {
            close_in_time(&session).await;
        }
    };
    // Further signals cut nothing short: a closed terminal hangs up and sends SIGHUP, and `timeout` sends
    // its signal to the command and to its group.
    let _ = timeout(LEAVE_WAIT, ended).await;
    if let Some(terminal) = terminal {
        terminal.restore();
    }
    std::process::exit(i32::from(cause.exit_code()));
}

/// Ends a session, for so long at most. One that the node cannot be told of ends by its idle timeout.
async fn close_in_time(session: &SessionId) {
    let close = async {
        let client = node_access::present().await.ok()??;
        let query = CloseQuery { grace_ms: Some(LEAVE_GRACE_MS) };
        client.with_retry_for(Duration::ZERO).close_session(session, query).await.ok()
    };
    let _ = timeout(LEAVE_WAIT, close).await;
}

/// Follows the session that a person is at, and shows nothing of it: what matters is that the node has a
/// follower. Returns when the command is over.
async fn attend(progress: &mut watch::Receiver<Progress>) {
    let attended = progress.wait_for(|progress| progress.attended.is_some()).await;
    let Some(session) = attended.ok().and_then(|progress| progress.attended.clone()) else {
        return;
    };
    let presence = async {
        // Past every event that there will be.
        let end = Seq(u64::MAX);
        loop {
            if let Ok(Some(client)) = node_access::present().await {
                match client.events(&session, end).next().await {
                    Err(ClientError::Unreachable { .. } | ClientError::Cut { .. }) => {}
                    // It has ended, or cannot be followed.
                    _ => break,
                }
            }
            sleep(ATTEND_PAUSE).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = presence => {}
        _ = progress.wait_for(|_| false) => {}
    }
}

/// What can end the command.
struct Causes {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
    reader: Option<OutputReader>,
}

impl Causes {
    fn new() -> io::Result<Self> {
        let ignored = ignored_signals();
        let heard = |kind: SignalKind| -> io::Result<Option<Signal>> {
            let bit = 1u64 << (kind.as_raw_value() - 1);
            // Who was started with it ignored (by `nohup`, say) is to outlive it.
            if ignored & bit != 0 { Ok(None) } else { signal(kind).map(Some) }
        };
        Ok(Self {
            interrupt: heard(SignalKind::interrupt())?,
            terminate: heard(SignalKind::terminate())?,
            hang_up: heard(SignalKind::hangup())?,
            reader: OutputReader::new()?,
        })
    }

    async fn next(&mut self, progress: &watch::Receiver<Progress>) -> LeaveCause {
        loop {
            tokio::select! {
                () = heard(&mut self.interrupt) => {
                    if progress.borrow().ctrl_c == CtrlCMeans::Leaving {
                        return LeaveCause::Interrupt;
                    }
                }
                () = heard(&mut self.terminate) => return LeaveCause::Terminate,
                () = heard(&mut self.hang_up) => return LeaveCause::HangUp,
                cause = reader_gone(&mut self.reader) => return cause,
            }
        }
    }
}

async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

async fn reader_gone(reader: &mut Option<OutputReader>) -> LeaveCause {
    match reader {
        Some(reader) => reader.gone().await,
        None => std::future::pending().await,
    }
}

/// Signals that this process was started with as ignored, a bit for each; none where nobody says.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Hears when nobody reads standard output any more: the other end of a pipe or a socket, or a terminal.
struct OutputReader {
    gone: oneshot::Receiver<()>,
    means: LeaveCause,
}

impl OutputReader {
    /// None where the output goes to a file, which nobody can close. A thread waits, since the descriptor
    /// is shared with whoever gave it to us and stays in blocking mode; it ends with the command.
    fn new() -> io::Result<Option<Self>> {
        let Ok(output) = io::stdout().as_fd().try_clone_to_owned() else { return Ok(None) };
        let means = match FileType::from_raw_mode(fstat(&output)?.st_mode) {
            FileType::Fifo | FileType::Socket => LeaveCause::PipeClosed,
            _ if isatty(&output) => LeaveCause::HangUp,
            _ => return Ok(None),
        };
        let (tell, gone) = oneshot::channel();
        thread::Builder::new().name("reader".to_owned()).spawn(move || {
            // Errors and hang-ups are told whether or not they are asked for.
            let mut watched = [PollFd::new(&output, PollFlags::empty())];
            while poll(&mut watched, None) == Err(Errno::INTR) {}
            // Nobody listens when the command is over.
            let _ = tell.send(());
        })?;
        Ok(Some(Self { gone, means }))
    }

    async fn gone(&mut self) -> LeaveCause {
        match (&mut self.gone).await {
            Ok(()) => self.means,
            Err(_) => std::future::pending().await,
        }
    }
}

/// How the terminal was before a line was read from it key by key.
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

    /// Only whoever has the terminal may: another would be stopped for it.
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
    fn a_command_that_is_left_ends_as_shells_tell_it() {
        for (cause, expected) in [
            (LeaveCause::HangUp, 128 + 1),
            (LeaveCause::Interrupt, 128 + 2),
            (LeaveCause::PipeClosed, 128 + 13),
            (LeaveCause::Terminate, 128 + 15),
        ] {
            assert_eq!(cause.exit_code(), expected, "{cause:?}");
        }
    }

    #[test]
    fn only_our_own_output_without_a_reader_is_a_closed_pipe() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&broken().into()));
        assert!(is_closed_pipe(&Err::<(), _>(broken()).context("cannot show it").unwrap_err()));
        assert!(!is_closed_pipe(&io::Error::from(io::ErrorKind::NotFound).into()));
        let cut = ClientError::Cut { cause: broken().to_string() };
        assert!(!is_closed_pipe(&cut.into()));
    }
}

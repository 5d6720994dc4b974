//! Holds one MCP server that the node runs: the server, and everything that it starts, end with the
//! server itself, with the node, or when the node closes the server's standard input.
//!
//! The server's standard input is the lifeline: the node has the only other end, so the pipe hangs
//! up when the node closes it and also when the node is killed. The holder never reads from it. The
//! server is the user's own program, so it is held as it is, without a namespace around it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use windlass_procs::{Held, Wanted, hold, reap_all};
use windlass_protocol::server_holder::{END_LINE, PID_LINE};

use crate::signals::Signals;

/// How long a server may take to end after its standard input was closed, and again after SIGTERM.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
const TERM_GRACE: Duration = Duration::from_secs(2);

/// How long what was killed may take to be gone before it is looked for again.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// Why a server cannot be held.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("no program is named")]
    NoProgram,
    #[error("its processes cannot be held: {0}")]
    Hold(#[from] windlass_procs::HoldError),
    #[error("cannot take signals: {0}")]
    Signals(io::Error),
    #[error("cannot run {program}: {cause}")]
    Spawn { program: String, cause: io::Error },
}

/// How far its end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Its input is closed; SIGTERM follows then.
    Closed(Instant),
    /// It was asked to end; SIGKILL follows then.
    Asked(Instant),
}

/// Runs `command` with this process's standard streams, environment and directory, and returns when
/// nothing of it is left.
pub fn run_server(command: Vec<OsString>) -> ExitCode {
    let (code, end) = match hold_server(command) {
        Ok(end) => (ExitCode::SUCCESS, end),
        Err(error) => (ExitCode::FAILURE, error.to_string()),
    };
    say(END_LINE, &end);
    code
}

fn hold_server(command: Vec<OsString>) -> Result<String, ServerError> {
    let mut command = command.into_iter();
    let program = command.next().ok_or(ServerError::NoProgram)?;
    close_inherited();
    // A terminal's Ctrl-C is not for it. It fails where we lead a session already, which is as good.
    let _ = rustix::process::setsid();
    let held = hold::enter(Wanted::Subreaper)?;
    let signals = Signals::take(held.hold()).map_err(|errno| ServerError::Signals(errno.into()))?;
    let started = held.around(|| Command::new(&program).args(command).process_group(0).spawn());
    let server = started.map_err(|cause| ServerError::Spawn {
        program: program.to_string_lossy().into_owned(),
        cause,
    })?;
    say(PID_LINE, &server.id().to_string());
    let end = wait(server.id(), &signals);
    end_all(&held, &signals);
    held.let_go();
    Ok(end.unwrap_or_else(|| "it was ended".to_owned()))
}

/// Closes what the node itself was started with and did not ask for: it would be the server's, too.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // The one that listed them is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

/// Waits until the server has ended, and sees to it once its input is closed; how it ended, unless
/// it has to be killed.
fn wait(server: u32, signals: &Signals) -> Option<String> {
    let mut phase = Phase::Running;
    loop {
        let hung_up = listen(phase, signals);
        let heard = signals.hear();
        if heard.child
            && let Some((_, how)) = reap_all().ended.into_iter().find(|(pid, _)| *pid == server)
        {
            return Some(how);
        }
        let now = Instant::now();
        phase = match phase {
            // Our guard is gone: there is no time to lose.
            _ if heard.stop => return None,
            Phase::Running if hung_up => Phase::Closed(now + CLOSE_GRACE),
            Phase::Closed(until) if now >= until => {
                if let Some(group) = Pid::from_raw(server.cast_signed()) {
                    // It fails where nothing is left of the group, and then the server has ended.
                    let _ = kill_process_group(group, Signal::TERM);
                }
                Phase::Asked(now + TERM_GRACE)
            }
            Phase::Asked(until) if now >= until => return None,
            same => same,
        };
    }
}

/// Waits for whatever changes the phase; whether the lifeline hangs up.
fn listen(phase: Phase, signals: &Signals) -> bool {
    let until = match phase {
        Phase::Running => return hangs_up(signals),
        Phase::Closed(until) | Phase::Asked(until) => until,
    };
    hear(signals, until.saturating_duration_since(Instant::now()));
    false
}

/// Waits for a signal or for the end of the lifeline; whether that was it.
fn hangs_up(signals: &Signals) -> bool {
    // Nothing is asked of it: a pipe that hangs up says so without being asked.
    let mut asked = [
        PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty()),
        PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
    ];
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut asked, None).is_ok() && asked[0].revents().intersects(ended)
}

fn hear(signals: &Signals, patience: Duration) {
    let patience = Timespec::try_from(patience).unwrap_or_default();
    let mut asked = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    // A call that is interrupted has heard something, too.
    let _ = poll(&mut asked, Some(&patience));
}

/// Ends whatever the server has left.
fn end_all(held: &Held, signals: &Signals) {
    loop {
        held.kill_all();
        if reap_all().none_left {
            return;
        }
        hear(signals, KILL_AGAIN);
        signals.hear();
    }
}

/// One write, so that it stays one line among the server's own.
fn say(mark: &str, what: &str) {
    let line = format!("{mark}{}\n", what.replace('\n', " "));
    let _ = io::stderr().write_all(line.as_bytes());
}

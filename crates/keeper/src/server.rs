//! Holds one MCP server that the node runs. The processes that the server has started end when the server
//! ends. The server and its processes end when the node ends or closes the server's standard input.
//!
//! The server's standard input is the lifeline. Only the node has the other end, so the pipe hangs up when
//! the node closes it and also when the node is killed. The holder never reads from it. The server is the
//! user's own program, so the holder puts no namespace around it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use windlass_procs::{HeldTree, HoldMode, hold, reap_all};
use windlass_protocol::server_holder::{END_LINE, PID_LINE};

use crate::signals::Signals;

/// How long a server may take to end after its standard input was closed, and again after SIGTERM.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
const TERM_GRACE: Duration = Duration::from_secs(2);

/// Time between two rounds of killing the server's processes.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// Why a server cannot be held.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("no program is named")]
    NoProgram,
    #[error("the server's processes cannot be held: {0}")]
    Hold(#[from] windlass_procs::HoldError),
    #[error("cannot take signals: {0}")]
    Signals(io::Error),
    #[error("cannot run {program}: {cause}")]
    Spawn { program: String, cause: io::Error },
}

/// The steps of ending the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldServerPhase {
    Running,
    /// The server's input is closed. At this time it gets SIGTERM.
    Closed(Instant),
    /// The server got SIGTERM. At this time it gets SIGKILL.
    Terminating(Instant),
}

/// Runs `command` with this process's standard streams, environment and directory. Returns when none of its
/// processes is left.
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
    // The server gets no Ctrl-C of a terminal. The call fails if this process already leads a process
    // session, which is fine.
    let _ = rustix::process::setsid();
    let held = hold::enter(HoldMode::Subreaper)?;
    let signals = Signals::take(held.hold()).map_err(|errno| ServerError::Signals(errno.into()))?;
    let started = held.start_held(|| Command::new(&program).args(command).process_group(0).spawn());
    let server = started.map_err(|cause| ServerError::Spawn {
        program: program.to_string_lossy().into_owned(),
        cause,
    })?;
    say(PID_LINE, &server.id().to_string());
    let end = wait(server.id(), &signals);
    end_all(&held, &signals);
    held.release();
    Ok(end.unwrap_or_else(|| "it was killed".to_owned()))
}

/// Closes descriptors that the node has inherited from its own parent: the server must not inherit them.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // The list contains the descriptor of the listing itself, which is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

/// Waits until the server has ended, and makes it end once its input is closed. Returns how the server ended;
/// `None` if it must be killed.
fn wait(server: u32, signals: &Signals) -> Option<String> {
    let mut phase = HeldServerPhase::Running;
    loop {
        let hung_up = listen(phase, signals);
        let received = signals.read();
        if received.child
            && let Some((_, how)) = reap_all().ended.into_iter().find(|(pid, _)| *pid == server)
        {
            return Some(how);
        }
        let now = Instant::now();
        phase = match phase {
            // A stop signal, or the guard has died: kill at once.
            _ if received.stop => return None,
            HeldServerPhase::Running if hung_up => HeldServerPhase::Closed(now + CLOSE_GRACE),
            HeldServerPhase::Closed(until) if now >= until => {
                if let Some(group) = Pid::from_raw(server.cast_signed()) {
                    // The call fails if no process of the group is left; then the server has ended.
                    let _ = kill_process_group(group, Signal::TERM);
                }
                HeldServerPhase::Terminating(now + TERM_GRACE)
            }
            HeldServerPhase::Terminating(until) if now >= until => return None,
            same => same,
        };
    }
}

/// Waits for a signal, the phase's deadline or, in [`HeldServerPhase::Running`], the lifeline. Returns
/// whether the lifeline has hung up.
fn listen(phase: HeldServerPhase, signals: &Signals) -> bool {
    let until = match phase {
        HeldServerPhase::Running => return hangs_up(signals),
        HeldServerPhase::Closed(until) | HeldServerPhase::Terminating(until) => until,
    };
    wait_for_signal(signals, until.saturating_duration_since(Instant::now()));
    false
}

/// Waits for a signal or for the lifeline to hang up. Returns whether the lifeline has hung up.
fn hangs_up(signals: &Signals) -> bool {
    // No flags are requested for the lifeline: `poll` always reports a hang-up.
    let mut asked = [
        PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty()),
        PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
    ];
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut asked, None).is_ok() && asked[0].revents().intersects(ended)
}

fn wait_for_signal(signals: &Signals, patience: Duration) {
    let patience = Timespec::try_from(patience).unwrap_or_default();
    let mut asked = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    // An interrupted call is as good as one that got a signal.
    let _ = poll(&mut asked, Some(&patience));
}

/// Kills the processes that the server has left.
fn end_all(held: &HeldTree, signals: &Signals) {
    loop {
        held.kill_all();
        if reap_all().none_left {
            return;
        }
        wait_for_signal(signals, KILL_AGAIN);
        signals.read();
    }
}

/// Writes a line to standard error in one write, so that the server's own output does not split it.
fn say(mark: &str, what: &str) {
    let line = format!("{mark}{}\n", what.replace('\n', " "));
    let _ = io::stderr().write_all(line.as_bytes());
}

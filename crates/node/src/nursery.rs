//! The node's side of its nursery, the process that forks keepers and zygotes. Starts the nursery when it is
//! first needed and again after it died. After two deaths in short order, the node works without a nursery
//! for a while.

mod messages;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use windlass_procs::HoldMode;
use windlass_protocol::nursery::{COMMAND, FromNursery, ToNursery};

use crate::keepers::KeeperProcesses;

/// Maximum time for the nursery to answer a request; it makes one fork per request.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Two deaths within this time count as a permanent failure.
const DEATHS_TOGETHER: Duration = Duration::from_secs(1);

/// How long the node works without a nursery after a permanent failure.
const BACKOFF: Duration = Duration::from_secs(10);

/// Maximum number of attempts to send a request, if the nursery has died before it got the request.
const ATTEMPTS_MAX: usize = 2;

/// Why the nursery did not start a process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NurseryClientError {
    /// The nursery did not get the request, so nothing was started.
    #[error("the nursery does not run: {0}")]
    Absent(io::Error),
    /// Nothing was started.
    #[error("the nursery refused the request: {0}")]
    Refused(String),
    /// The nursery got the request and did not answer, so the process may or may not run.
    #[error("the nursery did not answer: {0}")]
    Lost(io::Error),
}

impl From<NurseryClientError> for io::Error {
    fn from(error: NurseryClientError) -> Self {
        Self::other(error)
    }
}

/// A process that the nursery has forked.
#[derive(Debug)]
pub(crate) struct NurseryChild {
    pub pid: Pid,
    pub handle: OwnedFd,
}

/// The client of the nursery. Its methods block.
#[derive(Debug)]
pub(crate) struct NurseryClient {
    program: PathBuf,
    log: PathBuf,
    /// Reaps the nursery.
    processes: Arc<KeeperProcesses>,
    /// Locked during a request: the nursery handles one request at a time.
    state: Mutex<NurseryState>,
}

#[derive(Debug, Default)]
struct NurseryState {
    running: Option<RunningNursery>,
    last_id: u64,
    health: NurseryHealth,
}

#[derive(Debug)]
struct RunningNursery {
    socket: OwnedFd,
    handle: OwnedFd,
}

/// Decides whether to start another nursery.
#[derive(Debug, Default)]
struct NurseryHealth {
    last_death: Option<Instant>,
    backoff_until: Option<Instant>,
}

impl NurseryClient {
    pub fn new(program: PathBuf, log: PathBuf, processes: Arc<KeeperProcesses>) -> Self {
        Self { program, log, processes, state: Mutex::default() }
    }

    /// Forks a keeper that serves `listener`. Returns its first process.
    pub fn keeper(
        &self,
        listener: BorrowedFd<'_>,
        log: BorrowedFd<'_>,
        hold: HoldMode,
    ) -> Result<NurseryChild, NurseryClientError> {
        let hold = hold.as_str().to_owned();
        self.ask(|id| ToNursery::Keeper { id, hold: hold.clone() }, &[listener, log])
    }

    /// Starts a zygote. Also returns the node's end of the socket to it, which closes when the zygote ends.
    pub fn zygote(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        cwd: &Path,
        log: BorrowedFd<'_>,
    ) -> io::Result<(NurseryChild, OwnedFd)> {
        let cwd = cwd.to_str().ok_or_else(|| {
            io::Error::other(format!("the directory {} is not UTF-8", cwd.display()))
        })?;
        let env: Vec<_> = env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let (ours, theirs) = pair()?;
        let request = |id| ToNursery::Zygote {
            id,
            argv: argv.to_vec(),
            env: env.clone(),
            cwd: cwd.to_owned(),
        };
        Ok((self.ask(request, &[theirs.as_fd(), log])?, ours))
    }

    fn ask(
        &self,
        request: impl Fn(u64) -> ToNursery,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<NurseryChild, NurseryClientError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.last_id += 1;
        let request = request(state.last_id);
        let encoded = messages::EncodedRequest::new(&request)
            .map_err(|error| NurseryClientError::Refused(error.to_string()))?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            self.start_if_absent(&mut state).map_err(NurseryClientError::Absent)?;
            let Some(running) = &state.running else { continue };
            match messages::send(&running.socket, &encoded, descriptors) {
                Ok(()) => {
                    let answer = await_answer(&running.socket, request.id());
                    if let Err(NurseryClientError::Lost(_)) = answer {
                        state.discard(Instant::now());
                    }
                    return answer;
                }
                // The nursery died since the last request and has not received this one.
                Err(error) => {
                    state.discard(Instant::now());
                    if attempts >= ATTEMPTS_MAX {
                        return Err(NurseryClientError::Absent(error));
                    }
                }
            }
        }
    }

    fn start_if_absent(&self, state: &mut NurseryState) -> io::Result<()> {
        if state.running.is_some() {
            return Ok(());
        }
        if state.health.is_given_up(Instant::now()) {
            return Err(io::Error::other("it died twice, and is not restarted for a while"));
        }
        match self.start() {
            Ok(running) => {
                state.running = Some(running);
                Ok(())
            }
            Err(error) => {
                state.health.died(Instant::now());
                Err(error)
            }
        }
    }

    fn start(&self) -> io::Result<RunningNursery> {
        let (ours, theirs) = pair()?;
        let mut command = Command::new(&self.program);
        command
            .arg(COMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(theirs)
            .stdout(null()?)
            .stderr(open_log(&self.log).map_or_else(|_| Stdio::null(), Stdio::from));
        // Without reaping, so that the pid is still that of the child.
        let handle = self.processes.without_reaping(|| {
            let child = command.spawn()?;
            Ok::<_, io::Error>(pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?)
        })?;
        Ok(RunningNursery { socket: ours, handle })
    }
}

/// Opens the log file of keepers, zygotes and the nursery.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Opens `/dev/null`. Zygotes inherit it for reading and writing.
fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

fn await_answer(socket: &OwnedFd, wanted: u64) -> Result<NurseryChild, NurseryClientError> {
    let until = Instant::now() + ANSWER_WAIT;
    loop {
        let (request, handle) =
            messages::receive(socket, until).map_err(NurseryClientError::Lost)?;
        match request {
            FromNursery::Started { id, pid } if id == wanted => {
                let pid = Pid::from_raw(pid.cast_signed());
                return match (pid, handle) {
                    (Some(pid), Some(handle)) => Ok(NurseryChild { pid, handle }),
                    _ => Err(NurseryClientError::Lost(io::Error::other("it sent no pidfd"))),
                };
            }
            FromNursery::Failed { id, why } if id == wanted => {
                return Err(NurseryClientError::Refused(why));
            }
            FromNursery::Ended { id, how } => {
                tracing::debug!(id, how, "a child of the nursery has ended");
            }
            other => tracing::debug!(?other, "the nursery replied with an unknown request id"),
        }
    }
}

impl NurseryState {
    /// Kills a nursery that is dead or does not answer, so that it does not start a process that nobody
    /// waits for any more.
    fn discard(&mut self, now: Instant) {
        if let Some(running) = self.running.take() {
            let _ = pidfd_send_signal(&running.handle, Signal::KILL);
            tracing::warn!(
                "the nursery died or did not answer; it is restarted with the next request"
            );
        }
        self.health.died(now);
    }
}

impl NurseryHealth {
    fn died(&mut self, now: Instant) {
        let before = self.last_death.replace(now);
        if before.is_some_and(|before| now.duration_since(before) <= DEATHS_TOGETHER) {
            self.backoff_until = Some(now + BACKOFF);
        }
    }

    fn is_given_up(&self, now: Instant) -> bool {
        self.backoff_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests;

//! The node's side of its nursery: starts it when it is first needed and again when it died, and
//! asks it for keepers and zygotes. Does without it for a while when it does not live.

mod mail;

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
use windlass_procs::Wanted;
use windlass_protocol::nursery::{COMMAND, FromNursery, ToNursery};

use crate::keepers::Starting;

/// How long the nursery may take to answer; it has one fork to make.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Two deaths within this time are no accident.
const DEATHS_TOGETHER: Duration = Duration::from_secs(1);

/// How long the node does without a nursery then.
const WITHOUT: Duration = Duration::from_secs(10);

/// How often a request is made anew when the nursery has died before it was asked.
const ATTEMPTS_MAX: usize = 2;

/// Why the nursery did not start a process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NurseryError {
    /// Nobody was asked, so nothing was started.
    #[error("there is no nursery: {0}")]
    Absent(io::Error),
    /// Nothing was started.
    #[error("the nursery cannot: {0}")]
    Refused(String),
    /// It was asked, and did not answer: whether the process runs is not known.
    #[error("the nursery is lost: {0}")]
    Lost(io::Error),
}

impl From<NurseryError> for io::Error {
    fn from(error: NurseryError) -> Self {
        Self::other(error)
    }
}

/// A process that the nursery has forked.
#[derive(Debug)]
pub(crate) struct Born {
    pub pid: Pid,
    pub handle: OwnedFd,
}

/// See the module's first lines. To be used where blocking is no harm.
#[derive(Debug)]
pub(crate) struct Nursery {
    program: PathBuf,
    log: PathBuf,
    /// Who reaps it.
    starting: Arc<Starting>,
    /// Locked while it is asked: it does one thing at a time.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    last_id: u64,
    health: Health,
}

#[derive(Debug)]
struct Running {
    socket: OwnedFd,
    handle: OwnedFd,
}

/// Whether it is worth starting another.
#[derive(Debug, Default)]
struct Health {
    last_death: Option<Instant>,
    without_until: Option<Instant>,
}

impl Nursery {
    pub fn new(program: PathBuf, log: PathBuf, starting: Arc<Starting>) -> Self {
        Self { program, log, starting, state: Mutex::default() }
    }

    /// Forks a keeper that serves `listener`; its first process.
    pub fn keeper(
        &self,
        listener: BorrowedFd<'_>,
        log: BorrowedFd<'_>,
        hold: Wanted,
    ) -> Result<Born, NurseryError> {
        let hold = hold.as_str().to_owned();
        self.ask(|id| ToNursery::Keeper { id, hold: hold.clone() }, &[listener, log])
    }

    /// Starts a zygote; with it the node's end of the socket to it, which closes when the zygote ends.
    pub fn zygote(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        cwd: &Path,
        log: BorrowedFd<'_>,
    ) -> io::Result<(Born, OwnedFd)> {
        let cwd = cwd.to_str().ok_or_else(|| io::Error::other("its directory is not text"))?;
        let env: Vec<_> = env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let (ours, theirs) = pair()?;
        let word = |id| ToNursery::Zygote {
            id,
            argv: argv.to_vec(),
            env: env.clone(),
            cwd: cwd.to_owned(),
        };
        Ok((self.ask(word, &[theirs.as_fd(), log])?, ours))
    }

    fn ask(
        &self,
        word: impl Fn(u64) -> ToNursery,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Born, NurseryError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.last_id += 1;
        let word = word(state.last_id);
        let letter =
            mail::Letter::new(&word).map_err(|error| NurseryError::Refused(error.to_string()))?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            self.start_if_absent(&mut state).map_err(NurseryError::Absent)?;
            let Some(running) = &state.running else { continue };
            match mail::send(&running.socket, &letter, descriptors) {
                Ok(()) => {
                    let answer = await_answer(&running.socket, word.id());
                    if let Err(NurseryError::Lost(_)) = answer {
                        state.bury(Instant::now());
                    }
                    return answer;
                }
                // It died since it was last asked, and has not heard of this.
                Err(error) => {
                    state.bury(Instant::now());
                    if attempts >= ATTEMPTS_MAX {
                        return Err(NurseryError::Absent(error));
                    }
                }
            }
        }
    }

    fn start_if_absent(&self, state: &mut State) -> io::Result<()> {
        if state.running.is_some() {
            return Ok(());
        }
        if state.health.is_given_up(Instant::now()) {
            return Err(io::Error::other("it died twice, and is not started for a while"));
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

    fn start(&self) -> io::Result<Running> {
        let (ours, theirs) = pair()?;
        let mut command = Command::new(&self.program);
        command
            .arg(COMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(theirs)
            .stdout(null()?)
            .stderr(open_log(&self.log).map_or_else(|_| Stdio::null(), Stdio::from));
        // Not reaped meanwhile, so that the number is its own.
        let handle = self.starting.without_reaping(|| {
            let child = command.spawn()?;
            Ok::<_, io::Error>(pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?)
        })?;
        Ok(Running { socket: ours, handle })
    }
}

/// Where keepers, zygotes and the nursery say what they cannot say elsewhere.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// What a zygote reads and writes, too.
fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

fn await_answer(socket: &OwnedFd, wanted: u64) -> Result<Born, NurseryError> {
    let until = Instant::now() + ANSWER_WAIT;
    loop {
        let (word, handle) = mail::receive(socket, until).map_err(NurseryError::Lost)?;
        match word {
            FromNursery::Started { id, pid } if id == wanted => {
                let pid = Pid::from_raw(pid.cast_signed());
                return match (pid, handle) {
                    (Some(pid), Some(handle)) => Ok(Born { pid, handle }),
                    _ => Err(NurseryError::Lost(io::Error::other("it gave no handle"))),
                };
            }
            FromNursery::Failed { id, why } if id == wanted => {
                return Err(NurseryError::Refused(why));
            }
            FromNursery::Ended { id, how } => {
                tracing::debug!(id, how, "a process of the nursery has ended");
            }
            other => tracing::debug!(?other, "the nursery answers nobody"),
        }
    }
}

impl State {
    /// It is dead, or as good as: it must not start anything that is waited for no more.
    fn bury(&mut self, now: Instant) {
        if let Some(running) = self.running.take() {
            let _ = pidfd_send_signal(&running.handle, Signal::KILL);
            tracing::warn!("the nursery is gone");
        }
        self.health.died(now);
    }
}

impl Health {
    fn died(&mut self, now: Instant) {
        let before = self.last_death.replace(now);
        if before.is_some_and(|before| now.duration_since(before) <= DEATHS_TOGETHER) {
            self.without_until = Some(now + WITHOUT);
        }
    }

    fn is_given_up(&self, now: Instant) -> bool {
        self.without_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests;

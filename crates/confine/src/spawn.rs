//! Starting a confined process: fork, confine, test, run. The caller learns what was enforced, or
//! which step failed, before this returns.
//!
//! At level `full` three processes are made. The first only makes the namespaces and ends; its two
//! children are the namespace's init, which reaps and does nothing else, and the worker. Both come
//! to the caller, who holds everything (`hold`), as their parent ends.

pub(crate) mod channel;
mod heard;
mod init;
pub(crate) mod places;
pub(crate) mod zygote;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, sigaction,
};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use rustix::io::FdFlags;
use windlass_protocol::confinement::{Confinement, Control};

use self::channel::{Channel, Word};
use self::heard::Heard;
use self::places::Places;
use crate::enter::{Failed, FailedAt, PrepareError, Prepared, Step, c_path};
use crate::plan::Plan;
use windlass_procs::cgroup::joining;

/// How long a process may take from its first fork to its program; a hung mount must not hang us.
const CONFINE_WAIT: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Debug)]
pub struct Command<'a> {
    /// The program, by absolute path, and its arguments.
    pub argv: &'a [String],
    /// The whole environment.
    pub env: &'a [(String, String)],
    pub cwd: &'a Path,
    pub stdin: BorrowedFd<'a>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    /// A descriptor that the program gets under its number.
    pub kept: BorrowedFd<'a>,
    /// The control groups that it is moved into.
    pub cgroups: &'a [PathBuf],
    pub plan: &'a Plan,
}

/// A started process.
#[derive(Debug)]
pub struct Started {
    pub pid: u32,
    /// The first process of its pid namespace, where it has one.
    pub init: Option<u32>,
    /// Processes that move it into its control groups, and exit with 0 when that is done. The kernel
    /// takes its time for that, some 5 to 10 ms, in which the program can start; but it must not be
    /// given work before.
    pub joining: Vec<u32>,
    /// The proxy's listener in its network namespace, where the plan has one.
    pub listener: Option<OwnedFd>,
    pub confinement: Confinement,
}

impl Started {
    /// Ends it: it will be nobody's.
    pub fn end(self) {
        Heard::of(self.init.map(u32::cast_signed), Some(self.pid.cast_signed())).end();
    }
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot {act}: {cause}")]
    Setup { act: &'static str, cause: io::Error },
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Confine(FailedAt),
    #[error("the sandbox does not hold: {control} is required, and a canary got through")]
    CanaryThrough { control: Control },
    #[error("it took longer than {CONFINE_WAIT:?}")]
    TooSlow,
}

/// Starts `command`. The caller has one thread, and reaps its children.
pub fn spawn(command: &Command<'_>) -> Result<Started, SpawnError> {
    let prepared = Prepared::new(command.plan)?;
    let ready = Ready::new(command)?;
    let (ours, theirs) = Channel::pair().map_err(setup("make a socket pair"))?;
    // SAFETY: the caller has one thread, and the child makes system calls only.
    let child = match unsafe { fork() }.map_err(|errno| setup("fork")(errno.into()))? {
        ForkResult::Child => {
            drop(ours);
            match prepared.needs_namespaces() {
                true => between(&prepared, &ready, &theirs),
                false => become_worker(&prepared, &ready, &theirs),
            }
        }
        ForkResult::Parent { child } => child,
    };
    drop(theirs);
    let between = prepared.needs_namespaces();
    let worker = (!between).then_some(child.as_raw());
    let heard = Heard::of(None, worker).listen(&ours, command.plan).inspect_err(|_| {
        let _ = kill(child, Signal::SIGKILL);
    });
    let joining = match (between, command.cgroups.is_empty()) {
        (true, true) => {
            // It ends as soon as it has made its two children.
            let _ = waitpid(child, None);
            None
        }
        (true, false) => Some(child),
        (false, true) => None,
        (false, false) => Some(joining::start(&ready.cgroups, child).map_err(setup("fork"))?),
    };
    let mut started = heard?.into_started(command.plan)?;
    started.joining = joining.map(|pid| pid.as_raw().unsigned_abs()).into_iter().collect();
    Ok(started)
}

fn setup(act: &'static str) -> impl Fn(io::Error) -> SpawnError {
    move |cause| SpawnError::Setup { act, cause }
}

/// Everything that the child needs, laid out before the fork.
struct Ready<'a> {
    /// Owns what the pointers below point to.
    _strings: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    cwd: CString,
    cgroups: Vec<File>,
    command: &'a Command<'a>,
}

impl<'a> Ready<'a> {
    fn new(command: &'a Command<'a>) -> Result<Self, SpawnError> {
        let nul = |error: std::ffi::NulError| SpawnError::Prepare(error.into());
        let argv: Vec<CString> = command
            .argv
            .iter()
            .map(|argument| CString::new(argument.as_str()))
            .collect::<Result<_, _>>()
            .map_err(nul)?;
        let env: Vec<CString> = command
            .env
            .iter()
            .map(|(name, value)| CString::new(format!("{name}={value}")))
            .collect::<Result<_, _>>()
            .map_err(nul)?;
        if argv.is_empty() {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, "no program was named");
            return Err(setup("start it")(cause));
        }
        let cgroups = open_groups(command.cgroups)?;
        let pointers = |strings: &[CString]| {
            strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        Ok(Self {
            argv: pointers(&argv),
            env: pointers(&env),
            _strings: argv.into_iter().chain(env).collect(),
            cwd: c_path(command.cwd).map_err(nul)?,
            cgroups,
            command,
        })
    }
}

/// Opens the member list of each control group.
fn open_groups(cgroups: &[PathBuf]) -> Result<Vec<File>, SpawnError> {
    joining::open(cgroups).map_err(setup("open the session's cgroup"))
}

/// The process between: makes the namespaces, starts their first two processes, moves them into
/// their control groups, and ends.
fn between(prepared: &Prepared, ready: &Ready<'_>, channel: &Channel) -> ! {
    if let Err(failed) = prepared.make_namespaces() {
        give_up(channel, failed);
    }
    // SAFETY: one thread, and the child makes system calls only.
    let init = match unsafe { fork() } {
        Ok(ForkResult::Child) => init::run(),
        Ok(ForkResult::Parent { child }) => child,
        Err(errno) => give_up(channel, fork_failed(errno)),
    };
    // SAFETY: as above.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => become_worker(prepared, ready, channel),
        Ok(ForkResult::Parent { child }) => {
            channel.say(&Word::Pids { init: init.as_raw(), worker: child.as_raw() });
            channel.close();
            joining::join(&ready.cgroups, &[child, init])
        }
        Err(errno) => give_up(channel, fork_failed(errno)),
    }
}

fn fork_failed(errno: nix::errno::Errno) -> Failed {
    Failed { step: Step::Fork, errno: errno as i32, place: 0 }
}

fn give_up(channel: &Channel, failed: Failed) -> ! {
    channel.say(&Word::Failed(failed));
    // SAFETY: ends the process without running anything of the caller's.
    unsafe { libc::_exit(127) }
}

/// Confines this process, tests the sandbox, and runs the program.
fn become_worker(prepared: &Prepared, ready: &Ready<'_>, channel: &Channel) -> ! {
    let confined = (|| {
        let command = ready.command;
        let places = Places {
            stdin: Some(command.stdin),
            stdout: command.stdout,
            stderr: command.stderr,
            kept: command.kept,
        };
        restore_signals();
        places::take(&places, channel)?;
        rustix::io::fcntl_setfd(command.kept, FdFlags::empty())
            .map_err(Failed::at(Step::Descriptors))?;
        let listener = prepared.confine()?;
        if let Some(listener) = listener {
            channel.hand_over(b'L', listener.as_fd());
        }
        let results = prepared.canaries.run();
        channel.say(&Word::Canaries(results));
        if results.required_failed {
            // SAFETY: ends the process without running anything of the caller's.
            unsafe { libc::_exit(126) }
        }
        rustix::process::chdir(ready.cwd.as_c_str()).map_err(Failed::at(Step::Directory))?;
        // SAFETY: the arrays end with null and point into strings that live in `ready`.
        unsafe { libc::execve(ready.argv[0], ready.argv.as_ptr(), ready.env.as_ptr()) };
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Err(Failed { step: Step::Execute, errno, place: 0 })
    })();
    match confined {
        Ok(()) => unreachable_exit(),
        Err(failed) => give_up(channel, failed),
    }
}

/// The caller takes signals as a descriptor and ignores a broken pipe; the program does not.
fn restore_signals() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default handler runs no code of ours.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &default) };
    let _ = SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK);
}

fn unreachable_exit() -> ! {
    // SAFETY: ends the process without running anything of the caller's.
    unsafe { libc::_exit(127) }
}

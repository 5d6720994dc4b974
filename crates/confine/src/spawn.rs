//! Starts a confined process: fork, confine, test, run. Before [`spawn`] returns, the caller knows what is
//! enforced, or which step failed.
//!
//! At level `full` this makes three processes. The first one, the intermediate process, makes the namespaces
//! and exits. Its two children are the init of the pid namespace, which only reaps, and the worker. When the
//! intermediate process exits, both become children of the caller, because orphans go to the caller
//! (`procs::hold`).

pub(crate) mod channel;
pub(crate) mod descriptors;
mod init;
mod startup;
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

use self::channel::{Channel, StartupMessage};
use self::descriptors::WorkerDescriptors;
use self::startup::StartupReport;
use crate::enter::{ConfineStep, PrepareError, PreparedPlan, StepError, StepErrorAt, c_path};
use crate::plan::Plan;
use windlass_procs::cgroup::joining;

/// How long confining a process may take, from the first fork until its program runs. A mount that hangs must
/// not block the keeper forever.
const CONFINE_WAIT: Duration = Duration::from_secs(20);

/// A program to start confined.
#[derive(Debug)]
pub struct SpawnCommand<'a> {
    /// The program, by absolute path, and its arguments.
    pub argv: &'a [String],
    /// The whole environment.
    pub env: &'a [(String, String)],
    pub cwd: &'a Path,
    pub stdin: BorrowedFd<'a>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    /// A descriptor that the program inherits under the same number.
    pub kept: BorrowedFd<'a>,
    /// The cgroups that the process joins.
    pub cgroups: &'a [PathBuf],
    pub plan: &'a Plan,
}

/// A confined process that runs its program.
#[derive(Debug)]
pub struct StartedProcess {
    pub pid: u32,
    /// The init of its pid namespace, if it has one.
    pub init: Option<u32>,
    /// Helper processes that move it into its cgroups, and exit with 0 when that is done. It takes the kernel
    /// 5 to 10 ms. The program can start meanwhile, but must not get work before.
    pub joining: Vec<u32>,
    /// The proxy's listener in its network namespace, if the plan has one.
    pub listener: Option<OwnedFd>,
    pub confinement: Confinement,
}

impl StartedProcess {
    /// Kills the process and its init.
    pub fn end(self) {
        StartupReport::of(self.init.map(u32::cast_signed), Some(self.pid.cast_signed())).kill();
    }
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot {act}: {cause}")]
    Setup { act: &'static str, cause: io::Error },
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Confine(StepErrorAt),
    #[error("the sandbox does not hold: {control} is required, and a canary got through")]
    CanaryThrough { control: Control },
    #[error("confining the process took longer than {CONFINE_WAIT:?}")]
    TooSlow,
}

/// Starts `command`. The caller has one thread, and reaps its children.
pub fn spawn(command: &SpawnCommand<'_>) -> Result<StartedProcess, SpawnError> {
    let prepared = PreparedPlan::new(command.plan)?;
    let exec = PreparedCommand::new(command)?;
    let (ours, theirs) = Channel::pair().map_err(setup("make a socket pair"))?;
    // SAFETY: the caller has one thread, and the child only makes system calls.
    let child = match unsafe { fork() }.map_err(|errno| setup("fork")(errno.into()))? {
        ForkResult::Child => {
            drop(ours);
            match prepared.needs_namespaces() {
                true => run_intermediate(&prepared, &exec, &theirs),
                false => become_worker(&prepared, &exec, &theirs),
            }
        }
        ForkResult::Parent { child } => child,
    };
    drop(theirs);
    let has_intermediate = prepared.needs_namespaces();
    let worker = (!has_intermediate).then_some(child.as_raw());
    let report = StartupReport::of(None, worker).listen(&ours, command.plan).inspect_err(|_| {
        let _ = kill(child, Signal::SIGKILL);
    });
    let joining = match (has_intermediate, command.cgroups.is_empty()) {
        (true, true) => {
            // The intermediate process exits as soon as it has made its two children.
            let _ = waitpid(child, None);
            None
        }
        (true, false) => Some(child),
        (false, true) => None,
        (false, false) => Some(joining::start(&exec.cgroups, child).map_err(setup("fork"))?),
    };
    let mut started = report?.into_started(command.plan)?;
    started.joining = joining.map(|pid| pid.as_raw().unsigned_abs()).into_iter().collect();
    Ok(started)
}

fn setup(act: &'static str) -> impl Fn(io::Error) -> SpawnError {
    move |cause| SpawnError::Setup { act, cause }
}

/// What the child needs to run its program, prepared before the fork.
struct PreparedCommand<'a> {
    /// Owns the strings that the pointers below point to.
    _strings: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    cwd: CString,
    cgroups: Vec<File>,
    command: &'a SpawnCommand<'a>,
}

impl<'a> PreparedCommand<'a> {
    fn new(command: &'a SpawnCommand<'a>) -> Result<Self, SpawnError> {
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
            let cause = io::Error::new(io::ErrorKind::InvalidInput, "the command line is empty");
            return Err(setup("start the program")(cause));
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

/// Opens the process list (`cgroup.procs`) of each cgroup.
fn open_groups(cgroups: &[PathBuf]) -> Result<Vec<File>, SpawnError> {
    joining::open(cgroups).map_err(setup("open the session's cgroup"))
}

/// The intermediate process: makes the namespaces, forks init and the worker, moves them into their cgroups,
/// and exits.
fn run_intermediate(prepared: &PreparedPlan, exec: &PreparedCommand<'_>, channel: &Channel) -> ! {
    if let Err(failed) = prepared.make_namespaces() {
        give_up(channel, failed);
    }
    // SAFETY: this process has one thread, and the child only makes system calls.
    let init = match unsafe { fork() } {
        Ok(ForkResult::Child) => match prepared.enter_own_user() {
            Ok(()) => init::run(),
            Err(failed) => give_up(channel, failed),
        },
        Ok(ForkResult::Parent { child }) => child,
        Err(errno) => give_up(channel, fork_failed(errno)),
    };
    // SAFETY: as above.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => become_worker(prepared, exec, channel),
        Ok(ForkResult::Parent { child }) => {
            channel.send(&StartupMessage::Pids { init: init.as_raw(), worker: child.as_raw() });
            channel.close();
            joining::join(&exec.cgroups, &[child, init])
        }
        Err(errno) => give_up(channel, fork_failed(errno)),
    }
}

fn fork_failed(errno: nix::errno::Errno) -> StepError {
    StepError { step: ConfineStep::Fork, errno: errno as i32, index: 0 }
}

fn give_up(channel: &Channel, failed: StepError) -> ! {
    channel.send(&StartupMessage::Failed(failed));
    // SAFETY: exits without running any code of the caller.
    unsafe { libc::_exit(127) }
}

/// Confines this process, tests the sandbox, and runs the program.
fn become_worker(prepared: &PreparedPlan, exec: &PreparedCommand<'_>, channel: &Channel) -> ! {
    let confined = (|| {
        let command = exec.command;
        let descriptors = WorkerDescriptors {
            stdin: Some(command.stdin),
            stdout: command.stdout,
            stderr: command.stderr,
            kept: command.kept,
        };
        restore_signals();
        // This comes before the next step, which closes all other descriptors, also those of the plan.
        prepared.enter_view()?;
        descriptors::install(&descriptors, channel)?;
        rustix::io::fcntl_setfd(command.kept, FdFlags::empty())
            .map_err(StepError::at(ConfineStep::Descriptors))?;
        let listener = prepared.confine_in_view()?;
        if let Some(listener) = listener {
            channel.send_descriptor(b'L', listener.as_fd());
        }
        let results = prepared.canaries.run();
        channel.send(&StartupMessage::Canaries(results));
        if results.required_failed {
            // SAFETY: exits without running any code of the caller.
            unsafe { libc::_exit(126) }
        }
        rustix::process::chdir(exec.cwd.as_c_str())
            .map_err(StepError::at(ConfineStep::Directory))?;
        // SAFETY: the arrays end with null and point to strings that `exec` owns.
        unsafe { libc::execve(exec.argv[0], exec.argv.as_ptr(), exec.env.as_ptr()) };
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Err(StepError { step: ConfineStep::Execute, errno, index: 0 })
    })();
    match confined {
        Ok(()) => unreachable_exit(),
        Err(failed) => give_up(channel, failed),
    }
}

/// Restores the default signal handling: the caller blocks signals (it reads them from a descriptor) and
/// ignores SIGPIPE.
fn restore_signals() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default handler runs no code of ours.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &default) };
    let _ = SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK);
}

fn unreachable_exit() -> ! {
    // SAFETY: exits without running any code of the caller.
    unsafe { libc::_exit(127) }
}

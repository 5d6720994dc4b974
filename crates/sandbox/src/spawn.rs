//! Starting a confined process: fork, confine, test, run. The caller learns what was enforced, or
//! which step failed, before this returns.
//!
//! At level `full` three processes are made. The first only makes the namespaces and ends; its two
//! children are the namespace's init, which reaps and does nothing else, and the worker. Both come
//! to the caller, who holds everything (`hold`), as their parent ends.

mod channel;
mod init;
mod joining;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use rustix::io::FdFlags;
use windlass_protocol::confinement::{Confinement, Control, ControlState};

use self::channel::{Channel, Word};
use crate::enter::canary::CANARIES_MAX;
use crate::enter::{Failed, PrepareError, Prepared, Step, c_path};
use crate::plan::Plan;

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
    /// A process that moves it into its control groups, and exits with 0 when that is done. The
    /// kernel takes its time for that, some 10 ms, in which the program can start; but it must not
    /// be given work before.
    pub joining: Option<u32>,
    /// The proxy's listener in its network namespace, where the plan has one.
    pub listener: Option<OwnedFd>,
    pub confinement: Confinement,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot {act}: {cause}")]
    Setup { act: &'static str, cause: io::Error },
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Confine(Failed),
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
    let heard = hear(&ours, child, prepared.needs_namespaces());
    let joining = match (prepared.needs_namespaces(), command.cgroups.is_empty()) {
        (true, true) => {
            // It ends as soon as it has made its two children.
            let _ = waitpid(child, None);
            None
        }
        (true, false) => Some(child),
        (false, true) => None,
        (false, false) => Some(joining::start(&ready.cgroups, child)?),
    };
    let mut started = heard?.into_started(command.plan)?;
    started.joining = joining.map(|pid| pid.as_raw().unsigned_abs());
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
        let cgroups = command
            .cgroups
            .iter()
            .map(|dir| File::options().write(true).open(dir.join("cgroup.procs")))
            .collect::<Result<_, _>>()
            .map_err(setup("open the session's cgroup"))?;
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
        take_places(ready.command, channel)?;
        let listener = prepared.confine()?;
        if let Some(listener) = listener {
            channel.hand_over(listener.as_fd());
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

fn unreachable_exit() -> ! {
    // SAFETY: ends the process without running anything of the caller's.
    unsafe { libc::_exit(127) }
}

/// Its group, signals and descriptors are its own.
fn take_places(command: &Command<'_>, channel: &Channel) -> Result<(), Failed> {
    let failed = Failed::at(Step::Descriptors);
    rustix::process::setpgid(None, None).map_err(&failed)?;
    // The caller takes signals as a descriptor and ignores a broken pipe; the program does not.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default handler runs no code of ours.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &default) };
    let _ = SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    rustix::stdio::dup2_stdin(command.stdin).map_err(&failed)?;
    rustix::stdio::dup2_stdout(command.stdout).map_err(&failed)?;
    rustix::stdio::dup2_stderr(command.stderr).map_err(&failed)?;
    close_others(&[command.kept.as_raw_fd(), channel.as_raw_fd()]).map_err(&failed)?;
    rustix::io::fcntl_setfd(command.kept, FdFlags::empty()).map_err(&failed)
}

/// Marks every descriptor but the first three to be closed when the program runs, and closes those
/// that nobody here needs any more.
fn close_others(kept: &[i32; 2]) -> Result<(), rustix::io::Errno> {
    let (low, high) = (kept[0].min(kept[1]), kept[0].max(kept[1]));
    let close = |from: i32, to: i32| {
        if from > to {
            return Ok(());
        }
        // SAFETY: no memory is passed; what is closed is not used again in this process.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        if closed < 0 { Err(rustix::io::Errno::BADF) } else { Ok(()) }
    };
    close(3, low - 1)?;
    close(low + 1, high - 1)?;
    close(high + 1, i32::MAX)
}

/// What the caller heard of its child.
#[derive(Debug, Default)]
struct Heard {
    init: Option<i32>,
    worker: Option<i32>,
    listener: Option<OwnedFd>,
    canaries: Option<crate::enter::canary::Results>,
}

/// Listens until the program runs or nobody is left who could say anything.
fn hear(channel: &Channel, child: Pid, namespaces: bool) -> Result<Heard, SpawnError> {
    let mut heard = Heard::default();
    if !namespaces {
        heard.worker = Some(child.as_raw());
    }
    let until = std::time::Instant::now() + CONFINE_WAIT;
    let ended = loop {
        match channel.hear(until) {
            Ok(None) => break Ok(()),
            Ok(Some(Word::Pids { init, worker })) => {
                heard.init = Some(init);
                heard.worker = Some(worker);
            }
            Ok(Some(Word::Listener(listener))) => heard.listener = Some(listener),
            Ok(Some(Word::Canaries(results))) => heard.canaries = Some(results),
            Ok(Some(Word::Failed(failed))) => {
                break Err(SpawnError::Confine(failed));
            }
            Err(_) => break Err(SpawnError::TooSlow),
        }
    };
    match ended {
        Ok(()) => Ok(heard),
        Err(error) => {
            heard.end(child);
            Err(error)
        }
    }
}

impl Heard {
    /// Ends whatever was started.
    fn end(&self, child: Pid) {
        let all = [self.init, self.worker, Some(child.as_raw())];
        for pid in all.into_iter().flatten() {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    fn into_started(self, plan: &Plan) -> Result<Started, SpawnError> {
        let Some(worker) = self.worker else {
            let cause = io::Error::other("it ended without a word");
            return Err(setup("start it")(cause));
        };
        let Some(results) = self.canaries else {
            self.end(Pid::from_raw(worker));
            let cause = io::Error::other("it ended before it was confined");
            return Err(setup("start it")(cause));
        };
        let confinement = judge(plan, &results);
        if results.required_failed {
            self.end(Pid::from_raw(worker));
            let required = |report: &&windlass_protocol::confinement::ControlReport| {
                report.state == ControlState::NotEnforced && plan.required.contains(&report.control)
            };
            let control = confinement.controls.iter().find(required);
            let control = control.map_or(Control::Syscalls, |report| report.control);
            return Err(SpawnError::CanaryThrough { control });
        }
        Ok(Started {
            pid: worker.unsigned_abs(),
            init: self.init.map(i32::unsigned_abs),
            joining: None,
            listener: self.listener,
            confinement,
        })
    }
}

/// The plan's controls, with what the canaries found.
fn judge(plan: &Plan, results: &crate::enter::canary::Results) -> Confinement {
    let mut controls = plan.controls.clone();
    for (place, canary) in plan.canaries.iter().take(CANARIES_MAX).enumerate() {
        let Some(report) = controls.iter_mut().find(|report| report.control == canary.control)
        else {
            continue;
        };
        if results.is_through(place) {
            report.state = ControlState::NotEnforced;
            report.tested = false;
            report.mechanism = format!("a canary got through: {:?}", canary.attempt);
        } else {
            report.tested |= report.state == ControlState::Enforced;
        }
    }
    Confinement { isolation: plan.isolation, controls }
}

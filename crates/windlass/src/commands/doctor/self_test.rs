//! Confines a throwaway process as a session with the default policy, and tries every canary in it. The
//! process has exited before this returns.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use windlass_confine::plan::thorough;
use windlass_confine::{MachineSupport, SpawnCommand, StartedProcess, SurveyInput, spawn};
use windlass_protocol::confinement::{ControlReport, Isolation};
use windlass_protocol::policy::Policy;

use super::report::LevelTest;
use crate::outlook::Outlook;

/// How long the program inside may take.
const PROGRAM_WAIT: Duration = Duration::from_secs(10);

/// The program to run if no interpreter is installed.
const FALLBACK: &str = "/bin/true";

/// Confines a process at `level` and runs the interpreter in it. The calling process must be
/// single-threaded and must not wait for children itself.
pub fn run(
    level: Isolation,
    machine: &MachineSupport,
    site: &SurveyInput,
    interpreter: Option<PathBuf>,
) -> LevelTest {
    let argv = match &interpreter {
        Some(path) => vec![path.display().to_string(), "-Ic".to_owned(), "pass".to_owned()],
        None => vec![FALLBACK.to_owned()],
    };
    let program = argv[0].clone();
    match try_level(level, machine, &with_interpreter(site, interpreter), &argv) {
        Ok(CanaryRun { attempts, took, controls }) => {
            let took_ms = took.as_secs_f64() * 1000.0;
            LevelTest { level, attempts, took_ms, program, controls, error: None }
        }
        Err(error) => {
            let (controls, error) = (Vec::new(), Some(format!("{error:#}")));
            LevelTest { level, attempts: 0, took_ms: 0.0, program, controls, error }
        }
    }
}

struct CanaryRun {
    attempts: usize,
    took: Duration,
    controls: Vec<ControlReport>,
}

/// Adds the directories that a worker needs to read: the prefixes of the interpreter and its library.
fn with_interpreter(site: &SurveyInput, interpreter: Option<PathBuf>) -> SurveyInput {
    let real = interpreter.as_deref().and_then(|path| std::fs::canonicalize(path).ok());
    let prefix = |path: PathBuf| Some(path.parent()?.parent()?.to_owned());
    let needed = [interpreter, real].into_iter().flatten().filter_map(prefix);
    SurveyInput { needed: needed.filter(|path| path.parent().is_some()).collect(), ..site.clone() }
}

fn try_level(
    level: Isolation,
    machine: &MachineSupport,
    site: &SurveyInput,
    argv: &[String],
) -> anyhow::Result<CanaryRun> {
    let mut policy = Policy::of(windlass_protocol::policy::Preset::default());
    policy.isolation = Some(level);
    // Nothing is required, so that a canary that gets through is reported and the others still run.
    policy.required = Vec::new();
    let outlook = Outlook::new(&policy, machine, site);
    let plan = match (outlook.plan, outlook.refused) {
        (Some(plan), _) => thorough(plan, &policy, &outlook.place),
        (None, Some(refused)) => return Err(refused.into()),
        (None, None) => anyhow::bail!("level {level} cannot be planned"),
    };
    // The intermediate process exits at once. As subreaper, this process becomes the parent of its two
    // children.
    rustix::process::set_child_subreaper(Pid::from_raw(1))?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    let before = Instant::now();
    let started = spawn(&SpawnCommand {
        argv,
        env: &[],
        cwd: &site.workspace,
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        kept: null.as_fd(),
        cgroups: &[],
        plan: &plan,
    })?;
    let took = before.elapsed();
    let ended = end(&started);
    anyhow::ensure!(ended? == 0, "{} does not run when confined", argv[0]);
    Ok(CanaryRun { attempts: plan.canaries.len(), took, controls: started.confinement.controls })
}

/// Waits for the program, kills the remaining processes, and returns the exit code of the program.
fn end(started: &StartedProcess) -> anyhow::Result<i32> {
    let waited = wait(started.pid);
    let mut code = -1;
    for pid in [Some(started.pid), started.init].into_iter().flatten() {
        let Some(pid) = Pid::from_raw(pid.cast_signed()) else { continue };
        let _ = kill_process(pid, Signal::KILL);
        if let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::empty())
            && pid.as_raw_nonzero().get().cast_unsigned() == started.pid
        {
            code = status.exit_status().unwrap_or(-1);
        }
    }
    waited.map(|()| code)
}

fn wait(pid: u32) -> anyhow::Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(rustix::io::Errno::SRCH)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec::try_from(PROGRAM_WAIT)?;
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout))?;
    anyhow::ensure!(ended > 0, "the confined program took longer than {PROGRAM_WAIT:?}");
    Ok(())
}

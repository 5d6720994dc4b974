//! Starts a worker: gives a pooled worker its job, has a zygote fork one, or runs the worker's program. When
//! the zygote does not answer, the keeper runs the program.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use windlass_confine::plan::twins::restrict_to_room;
use windlass_confine::{
    Job, Plan, SpawnCommand, SpawnError, StartedProcess, UnassignedWorker, WorkerShape,
    WorkerStdio, from_zygote, spawn,
};
use windlass_protocol::confinement::Confinement;
use windlass_protocol::event::StartedBy;
use windlass_protocol::link::{Hold, Launch, Prepare};
use windlass_protocol::worker::FD_VARIABLE;

use crate::complaint::complain;
use crate::watch::LimitWatch;
use crate::worker::{KeeperEnds, Worker, WorkerEnds};

/// The name of a pooled worker's keeper in lists of processes.
const POOLED_NAME: &CStr = c"windlass-wait";

/// A worker that was just started, with its confinement and egress listener.
#[derive(Debug)]
pub(crate) struct StartedWorker {
    pub worker: Worker,
    pub confinement: Confinement,
    /// The listener of the sandbox's egress, if the policy allows hosts.
    pub listener: Option<OwnedFd>,
}

impl StartedWorker {
    fn of(started: StartedProcess, by: StartedBy, lines: KeeperEnds) -> Self {
        let worker = Worker::new(&started, by, lines);
        Self { worker, confinement: started.confinement, listener: started.listener }
    }
}

/// A pooled worker: forked before there is a session for it.
#[derive(Debug)]
pub(crate) struct PooledWorker {
    worker: UnassignedWorker,
    lines: KeeperEnds,
    cgroups: Vec<PathBuf>,
    /// The watch over the cgroups, with the counters that it has read so far.
    watch: LimitWatch,
}

impl PooledWorker {
    /// Has the zygote fork a worker. If `prepare` has a plan, the worker builds the base of that plan's view.
    pub fn fork(
        prepare: &Prepare,
        zygote: Option<OwnedFd>,
        hold: Hold,
    ) -> Result<Self, WorkerStartError> {
        let _ = rustix::thread::set_name(POOLED_NAME);
        let shape = serde_json::from_value(prepare.shape.clone())?;
        let zygote = zygote.ok_or(WorkerStartError::NoConnection)?;
        let (mut worker, lines) = fork(zygote.as_fd(), shape, hold, &prepare.cgroups)?;
        let cgroups = prepare.cgroups.clone();
        let watch = LimitWatch::unlimited(&cgroups);
        if let Some(plan) = &prepare.plan {
            worker.build(&serde_json::from_str(plan)?)?;
        }
        Ok(Self { worker, lines, cgroups, watch })
    }

    /// Whether the pooled worker is unusable after these processes have ended.
    pub fn is_broken_by(&mut self, ended: &[(u32, String)]) -> bool {
        let worker = &mut self.worker;
        let mut is_broken = false;
        for (pid, how) in ended {
            is_broken |= *pid == worker.pid || Some(*pid) == worker.init;
            if worker.joining.contains(pid) {
                worker.joining.retain(|joining| joining != pid);
                is_broken |= how != "exit code 0";
            }
        }
        is_broken
    }

    /// Whether the worker is in its cgroups.
    pub fn has_joined(&self) -> bool {
        self.worker.joining.is_empty()
    }

    /// Takes the watch over the cgroups, if the session has the same cgroups.
    pub fn watch_of(&mut self, launch: &Launch) -> Option<LimitWatch> {
        (self.cgroups == launch.cgroups).then(|| std::mem::take(&mut self.watch))
    }
}

/// Why a worker cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerStartError {
    #[error("the node's plan for the worker is not valid: {0}")]
    Plan(#[from] serde_json::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Spawn(#[from] SpawnError),
    #[error("a zygote cannot fork a worker for a keeper without a pid namespace")]
    NoNamespace,
    #[error("the node passed no connection to a zygote")]
    NoConnection,
}

impl From<Errno> for WorkerStartError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Starts a worker by the fastest available strategy. `room` is the part of the family's directory that this
/// session may use, if it was forked before. `zygote` is a connection for this worker only.
pub(crate) fn start(
    launch: &Launch,
    room: Option<&Path>,
    hold: Hold,
    pooled: Option<PooledWorker>,
    zygote: Option<OwnedFd>,
) -> Result<StartedWorker, WorkerStartError> {
    let mut plan: Plan = serde_json::from_str(&launch.plan)?;
    if let (Some(family), Some(room)) = (&launch.family, room) {
        restrict_to_room(&mut plan, family, room);
    }
    let job = |rest| Job { plan: &plan, rest, env: &launch.env, cwd: &launch.cwd };
    if let Some(PooledWorker { worker, lines, .. }) = pooled {
        let _ = rustix::thread::set_name(crate::NAME);
        match worker.rest_of(&plan) {
            Some(rest) => {
                return Ok(StartedWorker::of(worker.give(&job(&rest))?, StartedBy::Pool, lines));
            }
            None => worker.end(),
        }
    }
    if let Some(zygote) = zygote {
        match fork(zygote.as_fd(), WorkerShape::of(&plan), hold, &launch.cgroups) {
            Ok((worker, lines)) => {
                let rest = Plan { controls: Vec::new(), ..plan.clone() };
                return Ok(StartedWorker::of(worker.give(&job(&rest))?, StartedBy::Zygote, lines));
            }
            Err(error) => {
                complain!("keeper: cannot fork from the zygote, running the program: {error}")
            }
        }
    }
    run(launch, &plan)
}

fn fork(
    zygote: BorrowedFd<'_>,
    shape: WorkerShape,
    hold: Hold,
    cgroups: &[PathBuf],
) -> Result<(UnassignedWorker, KeeperEnds), WorkerStartError> {
    if hold != Hold::PidNamespace {
        return Err(WorkerStartError::NoNamespace);
    }
    let (lines, theirs) = KeeperEnds::make()?;
    let ends = WorkerStdio {
        stdout: theirs.stdout.as_fd(),
        stderr: theirs.stderr.as_fd(),
        kept: theirs.socket.as_fd(),
    };
    Ok((from_zygote(zygote, shape, &ends, cgroups)?, lines))
}

fn run(launch: &Launch, plan: &Plan) -> Result<StartedWorker, WorkerStartError> {
    let (lines, ends) = KeeperEnds::make()?;
    if let Some(uid) = plan.own_uid {
        ends.give_to(uid);
    }
    let WorkerEnds { socket, stdout, stderr } = ends;
    let null = std::fs::File::open("/dev/null")?;
    let mut env = launch.env.clone();
    env.push((FD_VARIABLE.to_owned(), socket.as_raw_fd().to_string()));
    let started = spawn(&SpawnCommand {
        argv: &launch.argv,
        env: &env,
        cwd: &launch.cwd,
        stdin: null.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        kept: socket.as_fd(),
        cgroups: &launch.cgroups,
        plan,
    })?;
    Ok(StartedWorker::of(started, StartedBy::Exec, lines))
}

//! How a keeper starts its worker: by running its program, by a fork from a zygote, or by giving a pooled
//! worker its job. When the zygote does not answer, the keeper runs the program.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use windlass_confine::plan::apart::leave_room;
use windlass_confine::{
    Command, Ends, Job, Plan, Shape, SpawnError, Started, Waiting, from_zygote, spawn,
};
use windlass_protocol::confinement::Confinement;
use windlass_protocol::event::StartedBy;
use windlass_protocol::link::{Hold, Launch, Prepare};
use windlass_protocol::worker::FD_VARIABLE;

use crate::complaint::complain;
use crate::watch::Watch;
use crate::worker::{Lines, Worker, WorkerLines};

/// What the keeper of a pooled worker is called in lists of processes.
const POOLED_NAME: &CStr = c"windlass-wait";

/// A worker that has just been started, and what came with it.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub worker: Worker,
    pub confinement: Confinement,
    /// Where its network ends, if it reaches out through the node's proxy.
    pub listener: Option<OwnedFd>,
}

impl Fresh {
    fn of(started: Started, by: StartedBy, lines: Lines) -> Self {
        let worker = Worker::new(&started, by, lines);
        Self { worker, confinement: started.confinement, listener: started.listener }
    }
}

/// A pooled worker: forked before there is a session for it.
#[derive(Debug)]
pub(crate) struct PooledWorker {
    worker: Waiting,
    lines: Lines,
    cgroups: Vec<PathBuf>,
    /// What was measured of the cgroups.
    watch: Watch,
}

impl PooledWorker {
    /// Forks one, and has it build the view that its session will most likely have.
    pub fn fork(
        prepare: &Prepare,
        zygote: Option<OwnedFd>,
        hold: Hold,
    ) -> Result<Self, StartError> {
        let _ = rustix::thread::set_name(POOLED_NAME);
        let shape = serde_json::from_value(prepare.shape.clone())?;
        let zygote = zygote.ok_or(StartError::NoConnection)?;
        let (mut worker, lines) = fork(zygote.as_fd(), shape, hold, &prepare.cgroups)?;
        let cgroups = prepare.cgroups.clone();
        let watch = Watch::unlimited(&cgroups);
        if let Some(plan) = &prepare.plan {
            worker.build(&serde_json::from_str(plan)?)?;
        }
        Ok(Self { worker, lines, cgroups, watch })
    }

    /// Whether the ends of these processes leave it unusable.
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

    /// Whether it is in its cgroups.
    pub fn has_joined(&self) -> bool {
        self.worker.joining.is_empty()
    }

    /// What was measured in the pool, for a session that has the same cgroups.
    pub fn watch_of(&mut self, launch: &Launch) -> Option<Watch> {
        (self.cgroups == launch.cgroups).then(|| std::mem::take(&mut self.watch))
    }
}

/// Why a worker cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the node's plan for it is no plan: {0}")]
    Plan(#[from] serde_json::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Spawn(#[from] SpawnError),
    #[error("no zygote can reach it: there is no pid namespace")]
    NoNamespace,
    #[error("no connection to a zygote came with it")]
    NoConnection,
}

impl From<Errno> for StartError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Starts a worker, by the quickest way there is. `room` is what twins have left it of the family's
/// directory, if there were any; `zygote` is a connection for this worker.
pub(crate) fn start(
    launch: &Launch,
    room: Option<&Path>,
    hold: Hold,
    pooled: Option<PooledWorker>,
    zygote: Option<OwnedFd>,
) -> Result<Fresh, StartError> {
    let mut plan: Plan = serde_json::from_str(&launch.plan)?;
    if let (Some(family), Some(room)) = (&launch.family, room) {
        leave_room(&mut plan, family, room);
    }
    let job = |rest| Job { plan: &plan, rest, env: &launch.env, cwd: &launch.cwd };
    if let Some(PooledWorker { worker, lines, .. }) = pooled {
        let _ = rustix::thread::set_name(crate::NAME);
        match worker.rest_of(&plan) {
            Some(rest) => {
                return Ok(Fresh::of(worker.give(&job(&rest))?, StartedBy::Pool, lines));
            }
            None => worker.end(),
        }
    }
    if let Some(zygote) = zygote {
        match fork(zygote.as_fd(), Shape::of(&plan), hold, &launch.cgroups) {
            Ok((worker, lines)) => {
                let rest = Plan { controls: Vec::new(), ..plan.clone() };
                return Ok(Fresh::of(worker.give(&job(&rest))?, StartedBy::Zygote, lines));
            }
            Err(error) => complain!("keeper: a worker is started without its zygote: {error}"),
        }
    }
    run(launch, &plan)
}

fn fork(
    zygote: BorrowedFd<'_>,
    shape: Shape,
    hold: Hold,
    cgroups: &[PathBuf],
) -> Result<(Waiting, Lines), StartError> {
    if hold != Hold::PidNamespace {
        return Err(StartError::NoNamespace);
    }
    let (lines, theirs) = Lines::make()?;
    let ends = Ends {
        stdout: theirs.stdout.as_fd(),
        stderr: theirs.stderr.as_fd(),
        kept: theirs.socket.as_fd(),
    };
    Ok((from_zygote(zygote, shape, &ends, cgroups)?, lines))
}

fn run(launch: &Launch, plan: &Plan) -> Result<Fresh, StartError> {
    let (lines, WorkerLines { socket, stdout, stderr }) = Lines::make()?;
    let null = std::fs::File::open("/dev/null")?;
    let mut env = launch.env.clone();
    env.push((FD_VARIABLE.to_owned(), socket.as_raw_fd().to_string()));
    let started = spawn(&Command {
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
    Ok(Fresh::of(started, StartedBy::Exec, lines))
}

//! How a worker comes to be: its program is run, it is forked from a zygote, or it was forked ahead of
//! time and waits. What can be done without a zygote is done without one when it does not answer.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::io::Errno;
use windlass_protocol::confinement::Confinement;
use windlass_protocol::event::StartedBy;
use windlass_protocol::link::{Bound, FromKeeper, Hold, Launch, Prepare};
use windlass_protocol::worker::FD_VARIABLE;
use windlass_sandbox::plan::apart::leave_room;
use windlass_sandbox::{
    Command, Ends, Job, Plan, Shape, SpawnError, Started, Waiting, from_zygote, spawn,
};

use crate::complaint::complain;
use crate::connection::Connection;
use crate::keeper::{Keeper, SETTLE_AFTER, Then};
use crate::usage::Meter;
use crate::watch::Watch;
use crate::worker::{Lines, Worker, WorkerLines};

/// What a keeper is called in lists of processes while its worker waits.
const WAITING_NAME: &CStr = c"windlass-wait";

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

/// A worker that waits for its session.
#[derive(Debug)]
pub(crate) struct InWaiting {
    worker: Stage,
    lines: Lines,
    /// Its control groups, and what was measured of them, and of the workspace of one that is bound.
    cgroups: Vec<PathBuf>,
    watch: Watch,
}

impl InWaiting {
    /// Fills in what a launch leaves out that is for this worker.
    pub fn complete(&self, launch: &mut Launch) {
        if let Stage::Bound { bound, .. } = &self.worker
            && std::mem::take(&mut launch.bound)
        {
            launch.plan.clone_from(&bound.plan);
            launch.env.clone_from(&bound.env);
        }
    }

    /// What was measured while it waited, for a session that has all of what was measured.
    pub fn watch_of(&mut self, launch: &Launch) -> Option<Watch> {
        let same = match &self.worker {
            Stage::Open(_) => true,
            Stage::Bound { bound, .. } => is_for(bound, launch),
        };
        (same && self.cgroups == launch.cgroups).then(|| std::mem::take(&mut self.watch))
    }

    /// It has waited for a while, and is what it will be.
    pub fn has_settled(&mut self) {
        if let Stage::Bound { meter, .. } = &mut self.worker {
            meter.begin();
        }
    }
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// It can be the worker of any session like those that it was made for.
    Open(Waiting),
    /// It is confined, for a session that has this.
    Bound { started: Started, bound: Bound, meter: Meter },
}

impl Stage {
    fn processes(&self) -> (u32, Option<u32>, &[u32]) {
        match self {
            Self::Open(Waiting { pid, init, joining, .. })
            | Self::Bound { started: Started { pid, init, joining, .. }, .. } => {
                (*pid, *init, joining)
            }
        }
    }

    /// The processes that move it into its control groups.
    fn joining(&mut self) -> &mut Vec<u32> {
        match self {
            Self::Open(Waiting { joining, .. })
            | Self::Bound { started: Started { joining, .. }, .. } => joining,
        }
    }
}

/// Whether a worker that is confined for `bound` is one for this launch.
fn is_for(bound: &Bound, launch: &Launch) -> bool {
    bound.plan == launch.plan && bound.env == launch.env && bound.cwd == launch.cwd
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
    #[error("the view that it has built is not the plan's")]
    OtherView,
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
    waiting: Option<InWaiting>,
    zygote: Option<OwnedFd>,
) -> Result<Fresh, StartError> {
    let waiting = match waiting {
        Some(InWaiting { worker: Stage::Bound { started, bound, meter }, lines, .. }) => {
            let _ = rustix::thread::set_name(crate::NAME);
            if is_for(&bound, launch) {
                let mut fresh = Fresh::of(started, StartedBy::Pool, lines);
                fresh.worker.meter = meter;
                return Ok(fresh);
            }
            started.end();
            None
        }
        Some(InWaiting { worker: Stage::Open(worker), lines, .. }) => Some((worker, lines)),
        None => None,
    };
    let mut plan: Plan = serde_json::from_str(&launch.plan)?;
    if let (Some(family), Some(room)) = (&launch.family, room) {
        leave_room(&mut plan, family, room);
    }
    let job = |rest| Job { plan: &plan, rest, env: &launch.env, cwd: &launch.cwd };
    if let Some((worker, lines)) = waiting {
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

/// Forks a worker that waits, and has it build the view that its session will most likely have, and
/// confine itself if it is known for what.
fn make_wait(
    prepare: &Prepare,
    zygote: Option<OwnedFd>,
    hold: Hold,
) -> Result<InWaiting, StartError> {
    let shape = serde_json::from_value(prepare.shape.clone())?;
    let zygote = zygote.ok_or(StartError::NoConnection)?;
    let (mut worker, lines) = fork(zygote.as_fd(), shape, hold, &prepare.cgroups)?;
    let cgroups = prepare.cgroups.clone();
    let watch = Watch::ahead(&cgroups, prepare.bound.as_ref().map(|bound| &*bound.cwd));
    if let Some(plan) = &prepare.plan {
        worker.build(&serde_json::from_str(plan)?)?;
    }
    let Some(bound) = prepare.bound.clone() else {
        return Ok(InWaiting { worker: Stage::Open(worker), lines, cgroups, watch });
    };
    let plan = serde_json::from_str(&bound.plan)?;
    let Some(rest) = worker.rest_of(&plan) else {
        worker.end();
        return Err(StartError::OtherView);
    };
    let job = Job { plan: &plan, rest: &rest, env: &bound.env, cwd: &bound.cwd };
    let started = worker.give(&job)?;
    let meter = Meter::of(started.pid);
    Ok(InWaiting { worker: Stage::Bound { started, bound, meter }, lines, cgroups, watch })
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

impl Keeper {
    /// Has a worker wait for a session. The node is told when it is in its cgroups; a keeper that
    /// cannot have one is of no use.
    pub(crate) fn prepare(&mut self, mut caller: Connection, prepare: &Prepare) {
        if self.launch.is_some() || self.waiting.is_some() {
            return;
        }
        let _ = rustix::thread::set_name(WAITING_NAME);
        let zygote = caller.take_passed();
        self.node = Some(caller);
        self.alone_since = None;
        let hold = self.held.hold();
        let forked = make_wait(prepare, zygote, hold);
        match forked {
            Ok(waiting) => {
                self.waiting = Some(waiting);
                self.settle = Some(Instant::now() + SETTLE_AFTER);
                self.say_prepared();
            }
            Err(error) => {
                complain!("keeper: no worker can wait: {error}");
                self.clear(Then::Exit);
            }
        }
    }

    /// Processes have ended: of the waiting worker's, or those that moved it.
    pub(crate) fn note_waiting(&mut self, ended: &[(u32, String)]) {
        let Some(InWaiting { worker, .. }) = &mut self.waiting else { return };
        let (worker_pid, init, _) = worker.processes();
        let mut broken = false;
        for (pid, how) in ended {
            broken |= *pid == worker_pid || Some(*pid) == init;
            if worker.joining().contains(pid) {
                worker.joining().retain(|joining| joining != pid);
                broken |= how != "exit code 0";
            }
        }
        if broken {
            complain!("keeper: a waiting worker ended");
            self.clear(Then::Exit);
        } else if !ended.is_empty() {
            self.say_prepared();
        }
    }

    fn say_prepared(&mut self) {
        let moved = self.waiting.as_ref().is_some_and(|waiting| {
            let (_, _, joining) = waiting.worker.processes();
            joining.is_empty()
        });
        if moved && self.launch.is_none() {
            self.say(&FromKeeper::Prepared { pid: self.held.pid() });
        }
    }
}

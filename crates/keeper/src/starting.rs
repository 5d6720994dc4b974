//! How a worker comes to be: its program is run, it is forked from a zygote, or it was forked ahead of
//! time and waits. What can be done without a zygote is done without one when it does not answer.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use windlass_protocol::confinement::Confinement;
use windlass_protocol::event::StartedBy;
use windlass_protocol::link::{FromKeeper, Hold, Launch, Prepare};
use windlass_protocol::worker::FD_VARIABLE;
use windlass_sandbox::plan::apart::leave_room;
use windlass_sandbox::{Command, Ends, Job, Plan, Shape, SpawnError, Waiting, from_zygote, spawn};

use crate::connection::Connection;
use crate::keeper::{Keeper, Then};
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

/// A worker that waits for its session.
#[derive(Debug)]
pub(crate) struct InWaiting {
    worker: Waiting,
    lines: Lines,
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
}

impl From<Errno> for StartError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Starts a worker, by the quickest way there is. `room` is what twins have left it of the family's
/// directory, if there were any.
pub(crate) fn start(
    launch: &Launch,
    room: Option<&Path>,
    hold: Hold,
    waiting: Option<InWaiting>,
) -> Result<Fresh, StartError> {
    let mut plan: Plan = serde_json::from_str(&launch.plan)?;
    if let (Some(family), Some(room)) = (&launch.family, room) {
        leave_room(&mut plan, family, room);
    }
    if waiting.is_some() {
        let _ = rustix::thread::set_name(crate::NAME);
    }
    if let Some(waiting) = waiting {
        match waiting.worker.rest_of(&plan) {
            Some(rest) => return waiting.claim(launch, &plan, &rest, StartedBy::Pool),
            None => waiting.worker.end(),
        }
    }
    if let Some(zygote) = launch.zygote.as_deref() {
        match fork(zygote, Shape::of(&plan), hold, &launch.cgroups) {
            Ok(waiting) => {
                let rest = Plan { controls: Vec::new(), ..plan.clone() };
                return waiting.claim(launch, &plan, &rest, StartedBy::Zygote);
            }
            Err(error) => eprintln!("keeper: a worker is started without its zygote: {error}"),
        }
    }
    run(launch, &plan)
}

fn fork(
    zygote: &Path,
    shape: Shape,
    hold: Hold,
    cgroups: &[PathBuf],
) -> Result<InWaiting, StartError> {
    if hold != Hold::PidNamespace {
        return Err(StartError::NoNamespace);
    }
    let (lines, theirs) = Lines::make()?;
    let ends = Ends {
        stdout: theirs.stdout.as_fd(),
        stderr: theirs.stderr.as_fd(),
        kept: theirs.socket.as_fd(),
    };
    Ok(InWaiting { worker: from_zygote(zygote, shape, &ends, cgroups)?, lines })
}

/// Forks a worker that waits, and has it build the view that its session will most likely have.
fn make_wait(prepare: &Prepare, hold: Hold) -> Result<InWaiting, StartError> {
    let shape = serde_json::from_value(prepare.shape.clone())?;
    let mut waiting = fork(&prepare.zygote, shape, hold, &prepare.cgroups)?;
    if let Some(plan) = &prepare.plan {
        waiting.worker.build(&serde_json::from_str(plan)?)?;
    }
    Ok(waiting)
}

impl InWaiting {
    fn claim(
        self,
        launch: &Launch,
        plan: &Plan,
        rest: &Plan,
        start: StartedBy,
    ) -> Result<Fresh, StartError> {
        let Self { worker, lines } = self;
        let started = worker.give(&Job { plan, rest, env: &launch.env, cwd: &launch.cwd })?;
        let worker = Worker::new(&started, start, lines);
        Ok(Fresh { worker, confinement: started.confinement, listener: started.listener })
    }
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
    let worker = Worker::new(&started, StartedBy::Exec, lines);
    Ok(Fresh { worker, confinement: started.confinement, listener: started.listener })
}

impl Keeper {
    /// Has a worker wait for a session. The node is told when it is in its cgroups; a keeper that
    /// cannot have one is of no use.
    pub(crate) fn prepare(&mut self, caller: Connection, prepare: &Prepare) {
        if self.launch.is_some() || self.waiting.is_some() {
            return;
        }
        let _ = rustix::thread::set_name(WAITING_NAME);
        self.node = Some(caller);
        self.alone_since = None;
        let hold = self.held.hold();
        let forked = make_wait(prepare, hold);
        match forked {
            Ok(waiting) => {
                self.waiting = Some(waiting);
                self.say_prepared();
            }
            Err(error) => {
                eprintln!("keeper: no worker can wait: {error}");
                self.clear(Then::Exit);
            }
        }
    }

    /// Processes have ended: of the waiting worker's, or those that moved it.
    pub(crate) fn note_waiting(&mut self, ended: &[(u32, String)]) {
        let Some(InWaiting { worker, .. }) = &mut self.waiting else { return };
        let mut broken = false;
        for (pid, how) in ended {
            broken |= *pid == worker.pid || Some(*pid) == worker.init;
            if worker.joining.contains(pid) {
                worker.joining.retain(|joining| joining != pid);
                broken |= how != "exit code 0";
            }
        }
        if broken {
            eprintln!("keeper: a waiting worker ended");
            self.clear(Then::Exit);
        } else if !ended.is_empty() {
            self.say_prepared();
        }
    }

    fn say_prepared(&mut self) {
        let moved = self.waiting.as_ref().is_some_and(|waiting| waiting.worker.joining.is_empty());
        if moved
            && let Some(node) = &mut self.node
            && self.launch.is_none()
        {
            node.say(&FromKeeper::Prepared { pid: self.held.pid() });
        }
    }
}

//! Starts a worker from a zygote: a warm interpreter that forks workers.
//!
//! A zygote is outside of every session. The node makes one connection to the zygote for each worker, and the
//! keeper sends a fork request over it. The zygote then forks an intermediate process. This process enters
//! the keeper's pid namespace and, at level `full`, the namespaces that the keeper has made together with
//! their init. It forks the worker and exits, so the worker becomes a child of the keeper.
//!
//! The worker waits for its job, confines itself by the same steps as every worker ([`inside`]), and reports
//! that on the same channel. Before it has a job, nothing in it belongs to a session, so it can wait in a
//! pool.

pub(crate) mod inside;
pub(crate) mod split;

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::{ForkResult, Pid, fork};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::{Deserialize, Serialize};
use windlass_protocol::confinement::Isolation;

use super::channel::{Channel, StartupMessage};
use super::startup::StartupReport;
use super::{
    CONFINE_WAIT, SpawnError, StartedProcess, fork_failed, give_up, init, joining, open_groups,
    setup,
};
use crate::enter::{NamespaceSetup, StepErrorAt};
use crate::plan::base::remaining_steps;
use crate::plan::{Mount, NetworkPlan, Plan};

/// The version of the protocol between keepers and zygotes.
const REQUEST_VERSION: u32 = 2;

/// How long a zygote may take to fork a worker. After that the keeper starts the worker without the zygote.
const FORK_WAIT: Duration = Duration::from_secs(2);

/// The namespaces of the keeper that its workers enter.
const KEEPER_NAMESPACES: libc::c_int = libc::CLONE_NEWPID | libc::CLONE_NEWNS;

/// The namespaces of a worker at level `full`, without the network namespace, which the worker enters last.
const WORKER_NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// The properties of a worker that must be known before it is forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerShape {
    pub isolation: Isolation,
    /// The worker gets a new network namespace.
    pub own_network: bool,
}

impl WorkerShape {
    pub fn of(plan: &Plan) -> Self {
        let own_network = plan.network != NetworkPlan::Machine;
        Self { isolation: plan.isolation, own_network }
    }
}

/// The worker's ends of its output pipes and its protocol socket.
#[derive(Debug)]
pub struct WorkerStdio<'a> {
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    /// The protocol socket.
    pub kept: BorrowedFd<'a>,
}

/// What a worker needs to become the worker of a session.
#[derive(Debug)]
pub struct Job<'a> {
    pub plan: &'a Plan,
    /// The steps that the worker still has to do: the result of [`UnassignedWorker::rest_of`].
    pub rest: &'a Plan,
    /// The whole environment.
    pub env: &'a [(String, String)],
    pub cwd: &'a Path,
}

/// A forked worker that has no session yet and waits for its job.
#[derive(Debug)]
pub struct UnassignedWorker {
    pub pid: u32,
    /// The init of its pid namespace, if it has one.
    pub init: Option<u32>,
    /// Helper processes that move it into its cgroups, as in [`StartedProcess`].
    pub joining: Vec<u32>,
    pub shape: WorkerShape,
    /// The view that the worker has built.
    view: Option<Vec<Mount>>,
    channel: Channel,
}

/// Makes the zygote at the other end of `zygote` fork a worker. The caller has one thread, is the init of its
/// pid namespace, and reaps its children.
pub fn from_zygote(
    zygote: BorrowedFd<'_>,
    shape: WorkerShape,
    stdio: &WorkerStdio<'_>,
    cgroups: &[PathBuf],
) -> Result<UnassignedWorker, SpawnError> {
    let groups = open_groups(cgroups)?;
    let namespaces = match shape.isolation {
        Isolation::Full => Some(WorkerNamespaces::make(shape, &groups)?),
        Isolation::Landlock | Isolation::None => None,
    };
    let init = namespaces.as_ref().map(|namespaces| namespaces.init);
    let mut report = StartupReport::of(init, None);
    let forked = ask(zygote, stdio, namespaces.as_ref()).and_then(|channel| {
        report.worker = Some(receive_pids(&channel)?.1);
        if let Some(namespaces) = &namespaces {
            namespaces.init_channel.close_sending();
        }
        Ok(channel)
    });
    let moved = forked.and_then(|channel| {
        let worker = Pid::from_raw(report.worker.unwrap_or_default());
        let joining = match groups.is_empty() {
            true => None,
            false => Some(joining::start(&groups, worker).map_err(setup("fork"))?),
        };
        Ok((channel, joining))
    });
    let (channel, moving) = moved
        .and_then(|(channel, moving)| {
            if let Some(WorkerNamespaces { init_channel, .. }) = &namespaces {
                if shape.own_network {
                    // Init has made the network namespace meanwhile. That takes the kernel longer than all
                    // other namespaces together.
                    channel.send_descriptor(b'N', receive_network(init_channel)?.as_fd());
                }
                wait_for_closed_init(init_channel)?;
            }
            Ok((channel, moving))
        })
        .inspect_err(|_| report.kill())?;
    let movers = namespaces.map(|namespaces| namespaces.mover).into_iter().chain(moving);
    Ok(UnassignedWorker {
        pid: report.worker.unwrap_or_default().unsigned_abs(),
        init: report.init.map(i32::unsigned_abs),
        joining: movers.map(|pid| pid.as_raw().unsigned_abs()).collect(),
        shape,
        view: None,
        channel,
    })
}

impl UnassignedWorker {
    /// Makes the worker build the view of this plan, and returns when the view is built.
    pub fn build(&mut self, plan: &Plan) -> Result<(), SpawnError> {
        let plan = Plan { controls: Vec::new(), ..plan.clone() };
        let written = serde_json::to_vec(&plan)
            .map_err(io::Error::from)
            .and_then(|plan| memory_file(c"windlass-view", &plan))
            .map_err(setup("write the plan of the worker's view"))?;
        self.channel.send_descriptor(b'V', written.as_fd());
        match self.channel.receive(Instant::now() + CONFINE_WAIT) {
            Ok(Some(StartupMessage::Built)) => {
                self.view = Some(plan.view);
                Ok(())
            }
            Ok(Some(StartupMessage::Failed(failed))) => {
                Err(SpawnError::Confine(StepErrorAt::of(failed, &plan)))
            }
            Ok(_) => Err(setup("build the worker's view")(no_answer())),
            Err(_) => Err(SpawnError::TooSlow),
        }
    }

    /// The steps of this plan that the worker still has to do. `None` if the worker cannot be used for this
    /// plan.
    pub fn rest_of(&self, plan: &Plan) -> Option<Plan> {
        if self.shape != WorkerShape::of(plan) {
            return None;
        }
        let view = match &self.view {
            Some(base) => {
                let remaining = remaining_steps(base, &plan.view)?;
                remaining.into_iter().map(|index| plan.view[index].clone()).collect()
            }
            None => plan.view.clone(),
        };
        // The worker does not need the control reports: the keeper reports them.
        let (landlock, rlimits) = (plan.landlock.clone(), plan.rlimits.clone());
        let (canaries, required) = (plan.canaries.clone(), plan.required.clone());
        Some(Plan { view, landlock, rlimits, canaries, required, controls: Vec::new(), ..*plan })
    }

    /// Kills the worker and its init.
    pub fn end(self) {
        self.report().kill();
    }

    /// Gives the worker its job. When this returns, the worker is confined.
    pub fn give(self, job: &Job<'_>) -> Result<StartedProcess, SpawnError> {
        let report = self.report();
        let sent = write_job(job).map(|job| self.channel.send_descriptor(b'J', job.as_fd()));
        if let Err(error) = sent {
            report.kill();
            return Err(setup("write the worker's job")(error));
        }
        let mut started = report.listen(&self.channel, job.rest)?.into_started(job.plan)?;
        started.joining = self.joining;
        Ok(started)
    }

    fn report(&self) -> StartupReport {
        StartupReport::of(self.init.map(u32::cast_signed), Some(self.pid.cast_signed()))
    }
}

/// Writes a job into a memory file: the length of the remaining plan, the plan, the working directory, and
/// each environment variable after a NUL byte.
fn write_job(job: &Job<'_>) -> io::Result<OwnedFd> {
    let plan = serde_json::to_vec(job.rest)?;
    let length = u32::try_from(plan.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(plan);
    bytes.extend(job.cwd.as_os_str().as_encoded_bytes());
    for (name, value) in job.env {
        bytes.push(0);
        bytes.extend(name.as_bytes());
        bytes.push(b'=');
        bytes.extend(value.as_bytes());
    }
    memory_file(c"windlass-job", &bytes)
}

fn memory_file(name: &CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// The namespaces of a worker at level `full`, made before the worker is forked.
#[derive(Debug)]
struct WorkerNamespaces {
    init: i32,
    /// The process that made the namespaces. It now moves init into its cgroups.
    mover: Pid,
    /// Connects the keeper with init. Init sends the network namespace that it has made, if the worker gets
    /// one. The keeper closes its end for sending when the worker has entered the namespaces. Init closes its
    /// end when other processes can no longer read or trace it.
    init_channel: Channel,
}

impl WorkerNamespaces {
    fn make(shape: WorkerShape, groups: &[File]) -> Result<Self, SpawnError> {
        let namespaces = NamespaceSetup::new(NetworkPlan::Machine);
        let pair = || Channel::pair().map_err(setup("make a socket pair"));
        let (ours, theirs) = pair()?;
        let (init_channel, of_init) = pair()?;
        // SAFETY: the caller has one thread, and the child only makes system calls.
        let mover = match unsafe { fork() }.map_err(|errno| setup("fork")(errno.into()))? {
            ForkResult::Child => make_with_init(&namespaces, groups, &theirs, (shape, &of_init)),
            ForkResult::Parent { child } => child,
        };
        drop((theirs, of_init));
        let (init, _) = receive_pids(&ours)?;
        Ok(Self { init, mover, init_channel })
    }
}

/// Makes the namespaces and their init, moves init into its cgroups, and exits.
fn make_with_init(
    namespaces: &NamespaceSetup,
    groups: &[File],
    channel: &Channel,
    (shape, of_init): (WorkerShape, &Channel),
) -> ! {
    if let Err(failed) = namespaces.make() {
        give_up(channel, failed);
    }
    // SAFETY: this process has one thread, and the child only makes system calls.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            if shape.own_network {
                make_network(of_init);
            }
            // An ordinary user's zygote can enter only the namespaces of a process that it may trace. So init
            // protects itself after the worker has entered, and before the worker has its job.
            of_init.wait_for_end();
            init::close_to_others();
            of_init.close_sending();
            init::run()
        }
        Ok(ForkResult::Parent { child }) => {
            channel.send(&StartupMessage::Pids { init: child.as_raw(), worker: 0 });
            channel.close();
            joining::join(groups, &[child])
        }
        Err(errno) => give_up(channel, fork_failed(errno)),
    }
}

/// Makes the network namespace of the worker and sends it to the keeper. Init stays in it.
fn make_network(channel: &Channel) {
    match NamespaceSetup::make_network() {
        Ok(network) => channel.send_descriptor(b'N', network.as_fd()),
        Err(failed) => give_up(channel, failed),
    }
}

fn receive_network(channel: &Channel) -> Result<OwnedFd, SpawnError> {
    match channel.receive(Instant::now() + FORK_WAIT) {
        Ok(Some(StartupMessage::Network(network))) => Ok(network),
        Ok(Some(StartupMessage::Failed(failed))) => {
            Err(SpawnError::Confine(StepErrorAt { failed, path: None, own_uid: None }))
        }
        Ok(_) => Err(setup("make the worker's network namespace")(no_answer())),
        Err(_) => Err(SpawnError::TooSlow),
    }
}

/// Waits until other processes can no longer read or trace init.
fn wait_for_closed_init(init_channel: &Channel) -> Result<(), SpawnError> {
    match init_channel.receive(Instant::now() + FORK_WAIT) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(setup("protect the init of the pid namespace")(io::Error::other(
            "unexpected message",
        ))),
        Err(_) => Err(SpawnError::TooSlow),
    }
}

/// Receives the pids of init and worker, which are the first message.
fn receive_pids(channel: &Channel) -> Result<(i32, i32), SpawnError> {
    match channel.receive(Instant::now() + FORK_WAIT) {
        Ok(Some(StartupMessage::Pids { init, worker })) => Ok((init, worker)),
        Ok(Some(StartupMessage::Failed(failed))) => {
            Err(SpawnError::Confine(StepErrorAt { failed, path: None, own_uid: None }))
        }
        Ok(_) => Err(setup("fork the worker")(no_answer())),
        Err(_) => Err(SpawnError::TooSlow),
    }
}

fn no_answer() -> io::Error {
    io::Error::other("the process ended without an answer")
}

/// Sends the zygote a request to fork a worker.
fn ask(
    zygote: BorrowedFd<'_>,
    stdio: &WorkerStdio<'_>,
    namespaces: Option<&WorkerNamespaces>,
) -> Result<Channel, SpawnError> {
    let failed = |errno: rustix::io::Errno| setup("ask the zygote for a worker")(errno.into());
    let (ours, theirs) = Channel::pair().map_err(setup("make a socket pair"))?;
    let keeper = pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed)?;
    let init = match namespaces.and_then(|made| rustix::process::Pid::from_raw(made.init)) {
        Some(init) => Some(pidfd_open(init, PidfdFlags::empty()).map_err(failed)?),
        None => None,
    };
    let flags = if init.is_some() { WORKER_NAMESPACES } else { 0 };
    let mut words = [0; 12];
    words[..4].copy_from_slice(&REQUEST_VERSION.to_le_bytes());
    words[4..8].copy_from_slice(&KEEPER_NAMESPACES.to_le_bytes());
    words[8..].copy_from_slice(&flags.to_le_bytes());
    let mut descriptors =
        vec![keeper.as_fd(), theirs.as_fd(), stdio.kept, stdio.stdout, stdio.stderr];
    descriptors.extend(init.as_ref().map(AsFd::as_fd));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(6))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    // There is one request for each connection, so the socket buffer always has room for it.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(zygote, &[IoSlice::new(&words)], &mut ancillary, flags).map_err(failed)?;
    Ok(ours)
}

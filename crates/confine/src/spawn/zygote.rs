//! Starting a worker from a zygote: an interpreter that has its modules already, and forks.
//!
//! A zygote is outside of every session. Asked by a keeper, over a connection that the node has made
//! for one worker, it forks a process into the keeper's pid
//! namespace (and, at level `full`, into namespaces that the keeper has made, with their init in
//! them), which forks the worker and ends: so the worker's parent is the keeper. The worker waits for
//! its job, confines itself by the same steps as any other ([`inside`]), and says so on the same
//! channel. Until it has its job, nothing in it belongs to a session: it can wait in a pool.

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

use super::channel::{Channel, Word};
use super::heard::Heard;
use super::{
    CONFINE_WAIT, SpawnError, Started, fork_failed, give_up, init, joining, open_groups, setup,
};
use crate::enter::{FailedAt, Spaces};
use crate::plan::base::late;
use crate::plan::{Mount, NetworkPlan, Plan};

/// The version of what keepers and zygotes say to each other.
const REQUEST: u32 = 2;

/// How long a zygote may take to fork a worker; after that the worker is started without it.
const FORK_WAIT: Duration = Duration::from_secs(2);

/// The namespaces of a keeper that its workers are in.
const OF_KEEPER: libc::c_int = libc::CLONE_NEWPID | libc::CLONE_NEWNS;

/// Those of a worker at level `full`, but for the network's, which it enters last.
const OF_WORKER: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// What must be known of a worker before it is forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    pub isolation: Isolation,
    /// A network namespace of its own.
    pub own_network: bool,
}

impl Shape {
    pub fn of(plan: &Plan) -> Self {
        let own_network = plan.network != NetworkPlan::Machine;
        Self { isolation: plan.isolation, own_network }
    }
}

/// The worker's ends of its protocol socket and pipes.
#[derive(Debug)]
pub struct Ends<'a> {
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    pub kept: BorrowedFd<'a>,
}

/// What makes a waiting worker a session's.
#[derive(Debug)]
pub struct Job<'a> {
    pub plan: &'a Plan,
    /// What [`Waiting::rest_of`] said of it.
    pub rest: &'a Plan,
    /// The whole environment.
    pub env: &'a [(String, String)],
    pub cwd: &'a Path,
}

/// A worker that waits for its job.
#[derive(Debug)]
pub struct Waiting {
    pub pid: u32,
    /// The first process of its pid namespace, where it has one.
    pub init: Option<u32>,
    /// Processes that move it into its control groups, as in [`Started`].
    pub joining: Vec<u32>,
    pub shape: Shape,
    /// The view that it has built.
    view: Option<Vec<Mount>>,
    channel: Channel,
}

/// Has the zygote at the other end of `zygote` fork a worker. The caller has one thread, is the first
/// process of its pid namespace, and reaps its children.
pub fn from_zygote(
    zygote: BorrowedFd<'_>,
    shape: Shape,
    ends: &Ends<'_>,
    cgroups: &[PathBuf],
) -> Result<Waiting, SpawnError> {
    let groups = open_groups(cgroups)?;
    let nest = match shape.isolation {
        Isolation::Full => Some(Nest::make(shape, &groups)?),
        Isolation::Landlock | Isolation::None => None,
    };
    let mut heard = Heard::of(nest.as_ref().map(|nest| nest.init), None);
    let forked = ask(zygote, ends, nest.as_ref()).and_then(|channel| {
        heard.worker = Some(first_word(&channel)?.1);
        if let Some(nest) = &nest {
            nest.init_channel.say_no_more();
        }
        Ok(channel)
    });
    let moved = forked.and_then(|channel| {
        let worker = Pid::from_raw(heard.worker.unwrap_or_default());
        let joining = match groups.is_empty() {
            true => None,
            false => Some(joining::start(&groups, worker).map_err(setup("fork"))?),
        };
        Ok((channel, joining))
    });
    let (channel, moving) = moved
        .and_then(|(channel, moving)| {
            if let Some(Nest { init_channel, .. }) = &nest {
                if shape.own_network {
                    // Made meanwhile, which takes the kernel longer than all other namespaces together.
                    channel.hand_over(b'N', hear_network(init_channel)?.as_fd());
                }
                hear_closed(init_channel)?;
            }
            Ok((channel, moving))
        })
        .inspect_err(|_| heard.end())?;
    let movers = nest.map(|nest| nest.mover).into_iter().chain(moving);
    Ok(Waiting {
        pid: heard.worker.unwrap_or_default().unsigned_abs(),
        init: heard.init.map(i32::unsigned_abs),
        joining: movers.map(|pid| pid.as_raw().unsigned_abs()).collect(),
        shape,
        view: None,
        channel,
    })
}

impl Waiting {
    /// Has the worker build the view of this plan, and returns when it is there.
    pub fn build(&mut self, plan: &Plan) -> Result<(), SpawnError> {
        let plan = Plan { controls: Vec::new(), ..plan.clone() };
        let written = serde_json::to_vec(&plan)
            .map_err(io::Error::from)
            .and_then(|plan| nameless(c"windlass-view", &plan))
            .map_err(setup("write down its view"))?;
        self.channel.hand_over(b'V', written.as_fd());
        match self.channel.hear(Instant::now() + CONFINE_WAIT) {
            Ok(Some(Word::Built)) => {
                self.view = Some(plan.view);
                Ok(())
            }
            Ok(Some(Word::Failed(failed))) => Err(SpawnError::Confine(FailedAt::of(failed, &plan))),
            Ok(_) => Err(setup("build its view")(io::Error::other("it ended without a word"))),
            Err(_) => Err(SpawnError::TooSlow),
        }
    }

    /// What is left to be done of this plan; nothing if it cannot be a worker with it.
    pub fn rest_of(&self, plan: &Plan) -> Option<Plan> {
        if self.shape != Shape::of(plan) {
            return None;
        }
        let view = match &self.view {
            Some(base) => {
                late(base, &plan.view)?.into_iter().map(|place| plan.view[place].clone()).collect()
            }
            None => plan.view.clone(),
        };
        // What each control amounts to is the keeper's to say.
        let (landlock, rlimits) = (plan.landlock.clone(), plan.rlimits.clone());
        let (canaries, required) = (plan.canaries.clone(), plan.required.clone());
        Some(Plan { view, landlock, rlimits, canaries, required, controls: Vec::new(), ..*plan })
    }

    /// Ends it: it will be nobody's.
    pub fn end(self) {
        Heard::of(self.init.map(u32::cast_signed), Some(self.pid.cast_signed())).end();
    }

    /// Makes the worker a session's; it is confined when this returns.
    pub fn give(self, job: &Job<'_>) -> Result<Started, SpawnError> {
        let heard = Heard::of(self.init.map(u32::cast_signed), Some(self.pid.cast_signed()));
        let given = write_down(job).map(|job| self.channel.hand_over(b'J', job.as_fd()));
        if let Err(error) = given {
            heard.end();
            return Err(setup("write down its job")(error));
        }
        let mut started = heard.listen(&self.channel, job.rest)?.into_started(job.plan)?;
        started.joining = self.joining;
        Ok(started)
    }
}

/// The length of what is left of the plan, and that, the directory, and each variable, in a file without a name.
fn write_down(job: &Job<'_>) -> io::Result<OwnedFd> {
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
    nameless(c"windlass-job", &bytes)
}

fn nameless(name: &CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Namespaces at level `full`, made before there is a worker.
#[derive(Debug)]
struct Nest {
    init: i32,
    /// The process that made them, which now moves init into its control groups.
    mover: Pid,
    /// Connects the keeper with init. Init sends the network namespace that it has made, if the worker
    /// has one of its own. The keeper closes its end for sending when the worker has entered, and init
    /// does the same when it can no longer be read by other processes.
    init_channel: Channel,
}

impl Nest {
    fn make(shape: Shape, groups: &[File]) -> Result<Self, SpawnError> {
        let spaces = Spaces::new(NetworkPlan::Machine);
        let pair = || Channel::pair().map_err(setup("make a socket pair"));
        let (ours, theirs) = pair()?;
        let (init_channel, of_init) = pair()?;
        // SAFETY: the caller has one thread, and the child makes system calls only.
        let mover = match unsafe { fork() }.map_err(|errno| setup("fork")(errno.into()))? {
            ForkResult::Child => nest(&spaces, groups, &theirs, (shape, &of_init)),
            ForkResult::Parent { child } => child,
        };
        drop((theirs, of_init));
        let (init, _) = first_word(&ours)?;
        Ok(Self { init, mover, init_channel })
    }
}

/// Makes the namespaces and their init, and ends.
fn nest(
    spaces: &Spaces,
    groups: &[File],
    channel: &Channel,
    (shape, of_init): (Shape, &Channel),
) -> ! {
    if let Err(failed) = spaces.make() {
        give_up(channel, failed);
    }
    // SAFETY: one thread, and the child makes system calls only.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            if shape.own_network {
                make_network(of_init);
            }
            // An ordinary user's zygote can only enter the namespaces of a process that it may look
            // into: init closes itself after that, and before the worker has its job.
            of_init.wait_for_end();
            init::close_to_others();
            of_init.say_no_more();
            init::run()
        }
        Ok(ForkResult::Parent { child }) => {
            channel.say(&Word::Pids { init: child.as_raw(), worker: 0 });
            channel.close();
            joining::join(groups, &[child])
        }
        Err(errno) => give_up(channel, fork_failed(errno)),
    }
}

/// Makes the network namespace that the worker will be in, and init is.
fn make_network(channel: &Channel) {
    match Spaces::make_network() {
        Ok(network) => channel.hand_over(b'N', network.as_fd()),
        Err(failed) => give_up(channel, failed),
    }
}

fn hear_network(channel: &Channel) -> Result<OwnedFd, SpawnError> {
    match channel.hear(Instant::now() + FORK_WAIT) {
        Ok(Some(Word::Network(network))) => Ok(network),
        Ok(Some(Word::Failed(failed))) => Err(SpawnError::Confine(FailedAt { failed, path: None })),
        Ok(_) => Err(setup("make its network")(io::Error::other("it ended without a word"))),
        Err(_) => Err(SpawnError::TooSlow),
    }
}

/// Waits until init can no longer be read by other processes.
fn hear_closed(init_channel: &Channel) -> Result<(), SpawnError> {
    match init_channel.hear(Instant::now() + FORK_WAIT) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(setup("close its init")(io::Error::other("it said something else"))),
        Err(_) => Err(SpawnError::TooSlow),
    }
}

/// The numbers of init and worker, the first thing that is said.
fn first_word(channel: &Channel) -> Result<(i32, i32), SpawnError> {
    match channel.hear(Instant::now() + FORK_WAIT) {
        Ok(Some(Word::Pids { init, worker })) => Ok((init, worker)),
        Ok(Some(Word::Failed(failed))) => Err(SpawnError::Confine(FailedAt { failed, path: None })),
        Ok(_) => Err(setup("fork it")(io::Error::other("it ended without a word"))),
        Err(_) => Err(SpawnError::TooSlow),
    }
}

/// Sends the zygote what it needs to fork a worker.
fn ask(
    zygote: BorrowedFd<'_>,
    ends: &Ends<'_>,
    nest: Option<&Nest>,
) -> Result<Channel, SpawnError> {
    let failed = |errno: rustix::io::Errno| setup("ask its zygote")(errno.into());
    let (ours, theirs) = Channel::pair().map_err(setup("make a socket pair"))?;
    let keeper = pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed)?;
    let init = match nest.and_then(|nest| rustix::process::Pid::from_raw(nest.init)) {
        Some(init) => Some(pidfd_open(init, PidfdFlags::empty()).map_err(failed)?),
        None => None,
    };
    let flags = if init.is_some() { OF_WORKER } else { 0 };
    let mut words = [0; 12];
    words[..4].copy_from_slice(&REQUEST.to_le_bytes());
    words[4..8].copy_from_slice(&OF_KEEPER.to_le_bytes());
    words[8..].copy_from_slice(&flags.to_le_bytes());
    let mut descriptors = vec![keeper.as_fd(), theirs.as_fd(), ends.kept, ends.stdout, ends.stderr];
    descriptors.extend(init.as_ref().map(AsFd::as_fd));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(6))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    // One request a connection: there is always room for it.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(zygote, &[IoSlice::new(&words)], &mut ancillary, flags).map_err(failed)?;
    Ok(ours)
}

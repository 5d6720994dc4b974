//! Forks a live session. The worker forks its twin itself, inside its namespaces. This keeper makes the
//! twin's descriptors, and the twin's keeper is a fork of this keeper. The steps:
//!
//! 1. The keeper sends `fork` to the worker.
//! 2. The worker answers `fork_wait`, and the keeper passes the twin's descriptors.
//! 3. The worker sends `forked`. The twin sends its first bytes; the kernel tells the twin's process id with
//!    them.
//! 4. The keeper checks from outside that original and twin are separated ([`separation`]).
//! 5. The keeper forks the twin's keeper, and tells the node.

mod separation;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use windlass_confine::Plan;
use windlass_confine::plan::twins::{FamilyPaths, TwinRulesets, move_to_twin, twin_rulesets};
use windlass_procs::twin::{KeeperFork, SessionProcesses, fork_keeper, give_up};
use windlass_protocol::confinement::{Confinement, Control, ControlReport, ControlState};
use windlass_protocol::event::EventKind;
use windlass_protocol::limits::{CHUNK_BYTES_MAX, NOT_CARRIED_MAX, REASON_BYTES_MAX};
use windlass_protocol::link::{ForkDone, ForkEnd, ForkOrder, FromKeeper, Launch, NotCarried};
use windlass_protocol::text::bounded;
use windlass_protocol::worker::{ToWorker, TwinOrder};
use windlass_protocol::{ErrorCode, family};

use self::separation::{ThreadSnapshot, check_apart};
use crate::keeper::Keeper;
use crate::process_scope::ProcessScope;
use crate::signals::Signals;
use crate::stage::{StageEvent, WorkerStage};
use crate::watch::LimitWatch;
use crate::worker::{KeeperEnds, Worker, WorkerEnds, sender_of};

/// How long the worker may take for the whole fork.
const FORK_WAIT: Duration = Duration::from_secs(10);

/// How long a forked keeper may take until it listens.
const LISTEN_WAIT: Duration = Duration::from_secs(5);

/// Connections that may queue at a keeper's socket.
const BACKLOG: i32 = 16;

/// Maximum bytes of `name` and `what` of a [`NotCarried`]. With these limits all entries fit one header, even
/// if every character is escaped.
const NAME_BYTES_MAX: usize = 80;
const WHAT_BYTES_MAX: usize = 20;

/// The refusal when the twin ended early.
const TWIN_ENDED: &str = "the twin ended before its first message";

/// A fork in progress.
#[derive(Debug)]
pub(crate) struct PendingFork {
    fork: Box<ForkOrder>,
    /// The launch of the twin's session, for its keeper. A reset of the twin starts a worker by it.
    launch: Box<Launch>,
    until: Instant,
    ours: KeeperEnds,
    /// The twin's ends, until they are passed to the worker.
    theirs: Option<WorkerEnds>,
    /// The twin's process id, known from its first message.
    twin: Option<u32>,
    /// The twin has closed its socket. The original's `forked` message says why.
    twin_ended: bool,
    /// What the original said in `forked` that the twin does not carry over.
    said: Option<Vec<NotCarried>>,
    /// The session's threads before the fork. `None` if the session is not confined.
    before: Option<ThreadSnapshot>,
}

/// Why a fork is refused.
#[derive(Debug)]
struct ForkRefusal {
    code: ErrorCode,
    message: String,
}

impl ForkRefusal {
    fn new(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::ForkRefused, message: message.into() }
    }
}

impl PendingFork {
    pub fn until(&self) -> Instant {
        self.until
    }

    /// The socket on which the twin's first message arrives, until it has arrived.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        (self.twin.is_none() && !self.twin_ended).then(|| self.ours.socket.as_fd())
    }
}

impl Keeper {
    pub(crate) fn begin_fork(&mut self, fork: Box<ForkOrder>) {
        let session = fork.session.clone();
        match self.ask_worker(fork) {
            Ok(forking) => self.forking = Some(forking),
            Err(refused) => self.say_forked(session, refused.into()),
        }
    }

    fn ask_worker(&mut self, fork: Box<ForkOrder>) -> Result<PendingFork, ForkRefusal> {
        if self.forking.is_some() || self.worker.running.turn().is_some() {
            let message = "the session runs a turn or another fork".to_owned();
            return Err(ForkRefusal { code: ErrorCode::SessionBusy, message });
        }
        let launch =
            self.launch.as_ref().ok_or_else(|| ForkRefusal::new("the session was not started"))?;
        let mut twin = TwinSpec::of(launch, &fork)?;
        // From now on this session never uses the twin's directory, whether the fork succeeds or not.
        self.family.room = Some(family::next_room(&fork.room));
        match (self.stage, &self.worker.process) {
            (WorkerStage::Up, Some(worker)) if worker.forks => {}
            (WorkerStage::Up, _) => return Err(ForkRefusal::new("the worker cannot fork")),
            _ => return Err(ForkRefusal::new("the worker is not running")),
        }
        let before = match twin.order.original {
            Some(_) => Some(ThreadSnapshot::look(&self.family, self.worker.pids())?),
            None => None,
        };
        twin.order.threads = before.as_ref().map(ThreadSnapshot::threads).unwrap_or_default();
        let order = twin.order_bytes()?;
        let failed = |errno: rustix::io::Errno| {
            ForkRefusal::new(format!("cannot create descriptors: {errno}"))
        };
        let (ours, theirs) = KeeperEnds::make().map_err(failed)?;
        if let Some(uid) = twin.own_uid {
            theirs.give_to(uid);
        }
        rustix::net::sockopt::set_socket_passcred(&ours.socket, true).map_err(failed)?;
        let session = fork.session.clone();
        let worker = self
            .worker
            .process
            .as_mut()
            .ok_or_else(|| ForkRefusal::new("the worker is not running"))?;
        let sent = worker.send(ToWorker::Fork { session }, &order);
        sent.map_err(|error| {
            ForkRefusal::new(format!("cannot send `fork` to the worker: {error}"))
        })?;
        let until = Instant::now() + FORK_WAIT;
        Ok(PendingFork {
            fork,
            launch: twin.launch,
            until,
            ours,
            theirs: Some(theirs),
            twin: None,
            twin_ended: false,
            said: None,
            before,
        })
    }

    /// Handles `fork_wait`: passes the twin's descriptors to the worker.
    pub(crate) fn worker_waits_for_ends(&mut self) {
        let theirs = self.forking.as_mut().and_then(|forking| forking.theirs.take());
        match (theirs, self.worker.process.as_mut()) {
            (Some(theirs), Some(worker)) => {
                if let Err(errno) = worker.hand_over(&theirs) {
                    self.fork_failed(ForkRefusal::new(format!("cannot pass descriptors: {errno}")));
                }
            }
            // There is no fork in progress.
            _ => self.worker.running.drop_message(),
        }
    }

    /// Handles `forked`, the original's message after the fork.
    pub(crate) fn worker_forked(&mut self, ok: bool, reason: String, limit: bool, body: &Bytes) {
        let Some(forking) = &mut self.forking else {
            return self.worker.running.drop_message();
        };
        if !ok {
            let code = if limit { ErrorCode::ForkLimit } else { ErrorCode::ForkRefused };
            let message = bounded(&reason, REASON_BYTES_MAX);
            return self.fork_failed(ForkRefusal { code, message });
        }
        if forking.twin_ended {
            return self.fork_failed(ForkRefusal::new(TWIN_ENDED));
        }
        // An empty body is an empty list.
        let said = if body.is_empty() { b"[]".as_slice() } else { body };
        let Ok(mut said) = serde_json::from_slice::<Vec<NotCarried>>(said) else {
            return self.fork_failed(ForkRefusal::new(
                "the worker's list of what is not carried over is not valid",
            ));
        };
        said.truncate(NOT_CARRIED_MAX + 1);
        for one in &mut said {
            one.what = bounded(&one.what, WHAT_BYTES_MAX);
            one.name = bounded(&one.name, NAME_BYTES_MAX);
        }
        forking.said = Some(said);
        self.finish_fork();
    }

    /// The twin has sent its first message: asks the kernel for the twin's process id.
    pub(crate) fn handle_twin(&mut self) {
        let Some(forking) = &mut self.forking else { return };
        match sender_of(&forking.ours.socket) {
            Ok(None) => {}
            Ok(Some(pid)) => {
                forking.twin = Some(pid);
                self.finish_fork();
            }
            Err(_) if forking.said.is_none() => forking.twin_ended = true,
            Err(_) => self.fork_failed(ForkRefusal::new(TWIN_ENDED)),
        }
    }

    /// Abandons the fork in progress, if there is one.
    pub(crate) fn drop_fork(&mut self, why: &str) {
        if self.forking.is_some() {
            self.fork_failed(ForkRefusal::new(why));
        }
    }

    pub(crate) fn pass_fork_deadline(&mut self, now: Instant) {
        if self.forking.as_ref().is_some_and(|forking| now >= forking.until) {
            self.drop_fork("the fork took too long");
        }
    }

    /// Reports the refusal. A twin that exists nevertheless finds its socket closed, and ends.
    fn fork_failed(&mut self, refused: ForkRefusal) {
        if let Some(forking) = self.forking.take() {
            self.say_forked(forking.fork.session, refused.into());
        }
    }

    fn say_forked(&mut self, session: windlass_protocol::SessionId, end: ForkEnd) {
        self.node.say(&FromKeeper::Forked { session, end });
    }

    /// When original and twin have both sent their message, forks the twin's keeper.
    fn finish_fork(&mut self) {
        let ready = |forking: &PendingFork| forking.twin.is_some() && forking.said.is_some();
        if !self.forking.as_ref().is_some_and(ready) {
            return;
        }
        let Some(forking) = self.forking.take() else { return };
        let session = forking.fork.session.clone();
        match self.start_keeper(forking) {
            Ok(Some(done)) => self.say_forked(session, ForkEnd::Done(done)),
            // This process is the twin's keeper now.
            Ok(None) => {}
            Err(refused) => self.say_forked(session, refused.into()),
        }
    }

    /// Forks the twin's keeper if original and twin are separated. The parent gets the answer for the node.
    /// The child gets `None`, and has closed every descriptor of the original.
    fn start_keeper(&mut self, forking: PendingFork) -> Result<Option<ForkDone>, ForkRefusal> {
        let failed = |error: std::io::Error| {
            ForkRefusal::new(format!("cannot start a keeper for the twin: {error}"))
        };
        let twin = forking.twin.unwrap_or_default();
        let processes = SessionProcesses::of(twin, &forking.fork.cgroups).map_err(failed)?;
        let before = forking.before.as_ref();
        let can_reach = check_apart(&self.family, self.worker.pids(), before, &processes)?;
        let (listens, says) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        match fork_keeper(&self.held).map_err(failed)? {
            KeeperFork::Twin(held) => {
                drop(listens);
                self.become_keeper_of_twin(held, forking, processes, &says);
                Ok(None)
            }
            KeeperFork::Original(keeper) => {
                drop(says);
                let listens = says_listening(&listens);
                if !listens {
                    // The twin is killed when its keeper has ended.
                    keeper.kill();
                }
                let session = forking.fork.session.clone();
                self.family.add(session, keeper, processes);
                let before =
                    forking.before.as_ref().map(ThreadSnapshot::processes).unwrap_or_default();
                if let Some(pids) = self.worker.pids() {
                    self.family.narrow_scope(pids, &self.cgroups(), &before);
                }
                if let Some(own) = self.family.scope.subset() {
                    own.untrack(twin);
                }
                if listens {
                    let not_carried = forking.said.unwrap_or_default();
                    return Ok(Some(ForkDone { not_carried, can_reach }));
                }
                Err(ForkRefusal::new("the twin's keeper does not listen"))
            }
        }
    }

    fn become_keeper_of_twin(
        &mut self,
        held: windlass_procs::HeldTree,
        forking: PendingFork,
        processes: SessionProcesses,
        says: &OwnedFd,
    ) {
        let PendingFork { fork, launch, ours, .. } = forking;
        let confinement = self.worker.confinement.take().map(of_twin);
        let inits = self.worker.init();
        let Ok(listener) = listen(&fork.socket) else { give_up() };
        let Ok(signals) = Signals::take(held.hold()) else { give_up() };
        let Ok(joining) = processes.join() else { give_up() };
        // Closes the original's descriptors: its node connection, its worker, its listener.
        *self = Self::new(listener, held, signals);
        let worker = Worker::of_twin(processes.root(), inits, joining, ours);
        let until = Instant::now() + Duration::from_millis(launch.start_timeout_ms);
        self.worker.watch = LimitWatch::of(&launch);
        self.launch = Some(launch);
        self.worker.process = Some(worker);
        self.apply(StageEvent::Started { until });
        self.family.scope = ProcessScope::TwinWorker(processes);
        self.family.inits.extend(inits);
        self.family.foreign_init = inits;
        self.worker.confinement.clone_from(&confinement);
        if let Some(confinement) = confinement {
            self.node.tell(None, EventKind::Confined(confinement), Bytes::new());
        }
        let _ = rustix::io::write(says, b"l");
    }
}

/// How a twin is made.
struct TwinSpec {
    /// For the worker: the directories of original and twin, and the rulesets that separate them.
    order: TwinOrder,
    launch: Box<Launch>,
    /// The user id of the whole family, if it has one of its own.
    own_uid: Option<u32>,
}

impl TwinSpec {
    fn of(original: &Launch, fork: &ForkOrder) -> Result<Self, ForkRefusal> {
        let first = original.family.as_deref();
        let first = first.ok_or_else(|| {
            ForkRefusal::new("the session was started without a directory for twins")
        })?;
        let mut plan: Plan = serde_json::from_str(&original.plan).map_err(|error| {
            ForkRefusal::new(format!("the session's plan is not valid: {error}"))
        })?;
        let enforced = |report: &ControlReport| {
            report.control == Control::Protected && report.state == ControlState::Enforced
        };
        if plan.required.contains(&Control::Protected) && plan.controls.iter().any(enforced) {
            return Err(ForkRefusal::new(
                "the policy requires protected names in the workspace, and a copy of the workspace \
                 cannot protect them",
            ));
        }
        // The node sends the path without symlinks.
        let workspace = original.cwd.clone();
        let paths = FamilyPaths { workspace: &workspace, family: first, room: &fork.room };
        let layers =
            twin_rulesets(&plan, paths).map_err(|error| ForkRefusal::new(error.to_string()))?;
        let (theirs, twin) = match layers {
            None => (None, None),
            Some(TwinRulesets { original, twin }) => (Some(original), Some(twin)),
        };
        // Fails for a path that is not UTF-8, for example.
        let no_text = |error: serde_json::Error| {
            ForkRefusal::new(format!("the twin's plan or order has no JSON form: {error}"))
        };
        let text = |ruleset| serde_json::to_string(&ruleset).map_err(no_text);
        let copy = family::workspace(&fork.room);
        let (theirs, twin) = (theirs.map(text).transpose()?, twin.map(text).transpose()?);
        move_to_twin(&mut plan, paths);
        let own_uid = plan.own_uid;
        let plan = serde_json::to_string(&plan).map_err(no_text)?;
        let launch = Box::new(Launch {
            session: fork.session.clone(),
            cwd: copy.clone(),
            plan,
            cgroups: fork.cgroups.clone(),
            family: Some(family::room_of_twin(&fork.room)),
            // A worker from a zygote becomes a child of pid 1 of its pid namespace. A twin's keeper is not
            // pid 1.
            from_zygote: false,
            // The twin's keeper binds its socket at the final path, which never changes.
            socket: None,
            ..original.clone()
        });
        let order = TwinOrder { workspace, copy, original: theirs, twin, threads: Vec::new() };
        Ok(Self { order, launch, own_uid })
    }

    fn order_bytes(&self) -> Result<Bytes, ForkRefusal> {
        let order = serde_json::to_vec(&self.order).map_err(|error| {
            ForkRefusal::new(format!("the twin's plan or order has no JSON form: {error}"))
        })?;
        if order.len() > CHUNK_BYTES_MAX {
            return Err(ForkRefusal::new(
                "the session's confinement has more rules than a fork can carry",
            ));
        }
        Ok(order.into())
    }
}

impl From<ForkRefusal> for ForkEnd {
    fn from(ForkRefusal { code, message }: ForkRefusal) -> Self {
        Self::Refused { code, message }
    }
}

/// The confinement of a twin: that of the original, except that names in the twin's workspace are not
/// protected. Mounts protect them in the original's workspace; the copy has no such mounts.
fn of_twin(mut confinement: Confinement) -> Confinement {
    for report in &mut confinement.controls {
        if report.control == Control::Protected && report.state == ControlState::Enforced {
            report.state = ControlState::NotEnforced;
            report.mechanism = "the workspace of a fork is a copy, and names in it are not \
                protected until the session is reset"
                .to_owned();
        }
    }
    confinement
}

/// The listening socket of the twin's keeper. The twin's keeper itself must bind and listen, so that the
/// kernel reports its process id to the node.
fn listen(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Waits until the forked keeper says that it listens. False if it does not.
fn says_listening(listens: &OwnedFd) -> bool {
    let wait = Timespec::try_from(LISTEN_WAIT).unwrap_or_default();
    let mut asked = [PollFd::new(listens, PollFlags::IN)];
    let mut said = [0];
    matches!(poll(&mut asked, Some(&wait)), Ok(1..))
        && matches!(rustix::io::read(listens, &mut said), Ok(1))
}

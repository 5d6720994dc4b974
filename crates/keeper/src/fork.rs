//! Forking a live session. The worker forks its twin itself, inside its namespaces; the twin's
//! descriptors are made here, and its keeper is a fork of this one. The order: `fork` to the worker,
//! its `fork_wait`, the descriptors, its `forked` and the twin's first bytes, which tell by the
//! kernel's word who it is; then the check from outside that the two are apart ([`separation`]), then
//! the keeper, and then the node is told.

mod separation;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use windlass_confine::Plan;
use windlass_confine::plan::apart::{Apart, Places, apart, moved};
use windlass_procs::twin::{Forked, Part, fork_keeper, give_up};
use windlass_protocol::confinement::{Confinement, Control, ControlReport, ControlState};
use windlass_protocol::event::EventKind;
use windlass_protocol::limits::{CHUNK_BYTES_MAX, NOT_CARRIED_MAX, REASON_BYTES_MAX};
use windlass_protocol::link::{ForkDone, ForkEnd, ForkOrder, FromKeeper, Launch, NotCarried};
use windlass_protocol::text::bounded;
use windlass_protocol::worker::{ToWorker, TwinOrder};
use windlass_protocol::{ErrorCode, family};

use self::separation::{Before, check_apart};
use crate::keeper::Keeper;
use crate::own::Own;
use crate::signals::Signals;
use crate::stage::{Event, Stage};
use crate::watch::Watch;
use crate::worker::{Lines, Worker, WorkerLines, sender_of};

/// How long the worker may take for all of it.
const FORK_WAIT: Duration = Duration::from_secs(10);

/// How long a forked keeper may take until it listens.
const LISTEN_WAIT: Duration = Duration::from_secs(5);

/// Connections that may wait at a keeper's socket.
const BACKLOG: i32 = 16;

/// Bytes of a name and of its kind in the answer: all of them fit one header, whatever is escaped.
const NAME_BYTES_MAX: usize = 80;
const WHAT_BYTES_MAX: usize = 20;

/// Said of a twin that never came to be.
const TWIN_ENDED: &str = "the twin ended before it said a word";

/// A fork on its way.
#[derive(Debug)]
pub(crate) struct Forking {
    fork: Box<ForkOrder>,
    /// What the twin's keeper holds, and would start if the twin were reset.
    launch: Box<Launch>,
    until: Instant,
    ours: Lines,
    /// The twin's ends, until the worker has them.
    theirs: Option<WorkerLines>,
    /// The twin, once it has said something.
    twin: Option<u32>,
    /// The twin has closed its socket: the original's word tells why.
    twin_ended: bool,
    /// The original's word.
    said: Option<Vec<NotCarried>>,
    /// The session's threads before the fork; none where nothing confines them.
    before: Option<Before>,
}

/// Why there is no twin.
#[derive(Debug)]
struct Refused {
    code: ErrorCode,
    message: String,
}

impl Refused {
    fn new(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::ForkRefused, message: message.into() }
    }
}

impl Forking {
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Where the twin's first word comes, until it has come.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        (self.twin.is_none() && !self.twin_ended).then(|| self.ours.socket.as_fd())
    }
}

impl Keeper {
    pub(crate) fn begin_fork(&mut self, fork: Box<ForkOrder>) {
        let session = fork.session.clone();
        match self.ask_worker(fork) {
            Ok(forking) => self.family.forking = Some(forking),
            Err(refused) => self.say_forked(session, refused.into()),
        }
    }

    fn ask_worker(&mut self, fork: Box<ForkOrder>) -> Result<Forking, Refused> {
        if self.family.forking.is_some() || self.worker.running.turn().is_some() {
            let message = "the session is busy".to_owned();
            return Err(Refused { code: ErrorCode::SessionBusy, message });
        }
        let launch = self.launch.as_ref().ok_or_else(|| Refused::new("it was not started"))?;
        let mut twin = Twin::of(launch, &fork)?;
        // From now on nothing of this session is made where the twin's place is, whatever becomes of it.
        self.family.room = Some(family::next_room(&fork.room));
        match (self.stage, &self.worker.process) {
            (Stage::Up, Some(worker)) if worker.forks => {}
            (Stage::Up, _) => return Err(Refused::new("its worker cannot fork")),
            _ => return Err(Refused::new("its worker is not up")),
        }
        let before = match twin.order.original {
            Some(_) => Some(Before::look(&self.family, self.worker.who())?),
            None => None,
        };
        twin.order.threads = before.as_ref().map(Before::threads).unwrap_or_default();
        let order = twin.order_bytes()?;
        let failed = |errno: rustix::io::Errno| Refused::new(format!("no descriptors: {errno}"));
        let (ours, theirs) = Lines::make().map_err(failed)?;
        rustix::net::sockopt::set_socket_passcred(&ours.socket, true).map_err(failed)?;
        let session = fork.session.clone();
        let worker =
            self.worker.process.as_mut().ok_or_else(|| Refused::new("its worker is not up"))?;
        let sent = worker.send(ToWorker::Fork { session }, &order);
        sent.map_err(|error| Refused::new(format!("its worker cannot be told: {error}")))?;
        let until = Instant::now() + FORK_WAIT;
        Ok(Forking {
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

    /// The worker waits for its twin's descriptors.
    pub(crate) fn worker_waits_for_ends(&mut self) {
        let theirs = self.family.forking.as_mut().and_then(|forking| forking.theirs.take());
        match (theirs, self.worker.process.as_mut()) {
            (Some(theirs), Some(worker)) => {
                if let Err(errno) = worker.hand_over(&theirs) {
                    self.fork_failed(Refused::new(format!("descriptors were not passed: {errno}")));
                }
            }
            // It asks for what nobody offered.
            _ => self.worker.running.drop_message(),
        }
    }

    /// The original's word after the fork.
    pub(crate) fn worker_forked(&mut self, ok: bool, reason: String, limit: bool, body: &Bytes) {
        let Some(forking) = &mut self.family.forking else {
            return self.worker.running.drop_message();
        };
        if !ok {
            let code = if limit { ErrorCode::ForkLimit } else { ErrorCode::ForkRefused };
            let message = bounded(&reason, REASON_BYTES_MAX);
            return self.fork_failed(Refused { code, message });
        }
        if forking.twin_ended {
            return self.fork_failed(Refused::new(TWIN_ENDED));
        }
        // An empty body is an empty list.
        let said = if body.is_empty() { b"[]".as_slice() } else { body };
        let Ok(mut said) = serde_json::from_slice::<Vec<NotCarried>>(said) else {
            return self.fork_failed(Refused::new("its worker did not say what is not carried"));
        };
        said.truncate(NOT_CARRIED_MAX + 1);
        for one in &mut said {
            one.what = bounded(&one.what, WHAT_BYTES_MAX);
            one.name = bounded(&one.name, NAME_BYTES_MAX);
        }
        forking.said = Some(said);
        self.finish_fork();
    }

    /// The twin has said its first word: who it is, the kernel tells.
    pub(crate) fn hear_twin(&mut self) {
        let Some(forking) = &mut self.family.forking else { return };
        match sender_of(&forking.ours.socket) {
            Ok(None) => {}
            Ok(Some(pid)) => {
                forking.twin = Some(pid);
                self.finish_fork();
            }
            Err(_) if forking.said.is_none() => forking.twin_ended = true,
            Err(_) => self.fork_failed(Refused::new(TWIN_ENDED)),
        }
    }

    /// Gives a fork up whose time is over, or whose worker is gone.
    pub(crate) fn drop_fork(&mut self, why: &str) {
        if self.family.forking.is_some() {
            self.fork_failed(Refused::new(why));
        }
    }

    pub(crate) fn pass_fork_deadline(&mut self, now: Instant) {
        if self.family.forking.as_ref().is_some_and(|forking| now >= forking.until) {
            self.drop_fork("it took too long");
        }
    }

    /// A twin that comes all the same finds its socket closed, and ends.
    fn fork_failed(&mut self, refused: Refused) {
        if let Some(forking) = self.family.forking.take() {
            self.say_forked(forking.fork.session, refused.into());
        }
    }

    fn say_forked(&mut self, session: windlass_protocol::SessionId, end: ForkEnd) {
        self.node.say(&FromKeeper::Forked { session, end });
    }

    /// Both have spoken: the twin gets its keeper.
    fn finish_fork(&mut self) {
        let ready = |forking: &Forking| forking.twin.is_some() && forking.said.is_some();
        if !self.family.forking.as_ref().is_some_and(ready) {
            return;
        }
        let Some(forking) = self.family.forking.take() else { return };
        let session = forking.fork.session.clone();
        match self.start_keeper(forking) {
            Ok(Some(done)) => self.say_forked(session, ForkEnd::Done(done)),
            // This process is the twin's keeper now.
            Ok(None) => {}
            Err(refused) => self.say_forked(session, refused.into()),
        }
    }

    /// Forks, if the two are apart. In the parent, what is said of the twin; in the child nothing, and
    /// everything that was the original's is closed.
    fn start_keeper(&mut self, forking: Forking) -> Result<Option<ForkDone>, Refused> {
        let failed = |error: std::io::Error| Refused::new(format!("no keeper for it: {error}"));
        let twin = forking.twin.unwrap_or_default();
        let part = Part::of(twin, &forking.fork.cgroups).map_err(failed)?;
        let before = forking.before.as_ref();
        let can_reach = check_apart(&self.family, self.worker.who(), before, &part)?;
        let (listens, says) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        match fork_keeper(&self.held).map_err(failed)? {
            Forked::Twin(held) => {
                drop(listens);
                self.become_keeper_of_twin(held, forking, part, &says);
                Ok(None)
            }
            Forked::Original(keeper) => {
                drop(says);
                let listens = heard(&listens);
                if !listens {
                    // The twin goes with it.
                    keeper.kill();
                }
                let session = forking.fork.session.clone();
                self.family.add(session, keeper, part);
                let before = forking.before.as_ref().map(Before::processes).unwrap_or_default();
                if let Some(who) = self.worker.who() {
                    self.family.claim_first(who, &self.cgroups(), &before);
                }
                if let Some(own) = self.family.own.part() {
                    own.forget(twin);
                }
                if listens {
                    let not_carried = forking.said.unwrap_or_default();
                    return Ok(Some(ForkDone { not_carried, can_reach }));
                }
                Err(Refused::new("its keeper could not listen"))
            }
        }
    }

    fn become_keeper_of_twin(
        &mut self,
        held: windlass_procs::Held,
        forking: Forking,
        part: Part,
        says: &OwnedFd,
    ) {
        let Forking { fork, launch, ours, .. } = forking;
        let confinement = self.worker.confinement.take().map(of_twin);
        let inits = self.worker.init();
        let Ok(listener) = listen(&fork.socket) else { give_up() };
        let Ok(signals) = Signals::take(held.hold()) else { give_up() };
        let Ok(joining) = part.join() else { give_up() };
        // Closes all that is the original's: its node, its worker, its listener.
        *self = Self::new(listener, held, signals);
        let worker = Worker::of_twin(part.root(), inits, joining, ours);
        let until = Instant::now() + Duration::from_millis(launch.start_timeout_ms);
        self.worker.watch = Watch::of(&launch);
        self.launch = Some(launch);
        self.worker.process = Some(worker);
        self.apply(Event::Started { until });
        self.family.own = Own::Twin(part);
        self.family.inits.extend(inits);
        self.family.foreign = inits;
        self.worker.confinement.clone_from(&confinement);
        if let Some(confinement) = confinement {
            self.node.tell(None, EventKind::Confined(confinement), Bytes::new());
        }
        let _ = rustix::io::write(says, b"l");
    }
}

/// What a twin is made by.
struct Twin {
    /// What the worker is told of where the two work and what keeps them apart.
    order: TwinOrder,
    launch: Box<Launch>,
}

impl Twin {
    fn of(original: &Launch, fork: &ForkOrder) -> Result<Self, Refused> {
        let first = original.family.as_deref();
        let first = first.ok_or_else(|| Refused::new("it was started without a room for twins"))?;
        let mut plan: Plan = serde_json::from_str(&original.plan)
            .map_err(|error| Refused::new(format!("its plan is none: {error}")))?;
        let enforced = |report: &ControlReport| {
            report.control == Control::Protected && report.state == ControlState::Enforced
        };
        if plan.required.contains(&Control::Protected) && plan.controls.iter().any(enforced) {
            return Err(Refused::new(
                "its policy requires that names in the workspace are protected, and in a copy they \
                 are not",
            ));
        }
        // The node gives it without links.
        let workspace = original.cwd.clone();
        let places = Places { workspace: &workspace, family: first, room: &fork.room };
        let layers = apart(&plan, places).map_err(|error| Refused::new(error.to_string()))?;
        let (theirs, twin) = match layers {
            None => (None, None),
            Some(Apart { original, twin }) => (Some(original), Some(twin)),
        };
        // A path that is not UTF-8, for one.
        let no_text = |error: serde_json::Error| Refused::new(format!("no text for it: {error}"));
        let text = |ruleset| serde_json::to_string(&ruleset).map_err(no_text);
        let copy = family::workspace(&fork.room);
        let (theirs, twin) = (theirs.map(text).transpose()?, twin.map(text).transpose()?);
        moved(&mut plan, places);
        let plan = serde_json::to_string(&plan).map_err(no_text)?;
        let launch = Box::new(Launch {
            session: fork.session.clone(),
            cwd: copy.clone(),
            plan,
            cgroups: fork.cgroups.clone(),
            family: Some(family::room_of_twin(&fork.room)),
            // A worker from a zygote is the child of who is first in its pid namespace: not of a twin's
            // keeper.
            from_zygote: false,
            // Bound by its keeper, and never renamed.
            socket: None,
            ..original.clone()
        });
        let order = TwinOrder { workspace, copy, original: theirs, twin, threads: Vec::new() };
        Ok(Self { order, launch })
    }

    fn order_bytes(&self) -> Result<Bytes, Refused> {
        let order = serde_json::to_vec(&self.order)
            .map_err(|error| Refused::new(format!("no text for it: {error}")))?;
        if order.len() > CHUNK_BYTES_MAX {
            return Err(Refused::new("its confinement has more rules than a fork can pass on"));
        }
        Ok(order.into())
    }
}

impl From<Refused> for ForkEnd {
    fn from(Refused { code, message }: Refused) -> Self {
        Self::Refused { code, message }
    }
}

/// What is enforced on a twin: all that is on the original, but for names in its workspace that
/// mounts protect, which are not at the copy.
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

/// The socket at which the twin's keeper is reached. Bound and listened at by this very process, so
/// that the kernel tells the node who it is.
fn listen(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether the forked keeper says that it listens.
fn heard(listens: &OwnedFd) -> bool {
    let wait = Timespec::try_from(LISTEN_WAIT).unwrap_or_default();
    let mut asked = [PollFd::new(listens, PollFlags::IN)];
    let mut said = [0];
    matches!(poll(&mut asked, Some(&wait)), Ok(1..))
        && matches!(rustix::io::read(listens, &mut said), Ok(1))
}

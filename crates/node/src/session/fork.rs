//! Forking a live session: the original is held idle, its workspace copied, its worker forked by its
//! keeper; then the twin is a session like any other, with a keeper, a journal and an owner.
//!
//! [`rooms`] knows the directories, [`copy`] copies a workspace, [`hidden`] knows which is not copied.

mod copy;
mod hidden;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use windlass_journal::{NewSession, SessionLog};
use windlass_lifecycle::link::NodeHalf;
use windlass_lifecycle::{Event, Session as Machine};
use windlass_protocol::api::{CopyScope, LeftOutDirectory, SessionState};
use windlass_protocol::confinement::Isolation;
use windlass_protocol::event::EndReason;
use windlass_protocol::limits::WAITING_TURNS_MAX;
use windlass_protocol::link::{Attached, Command, Fork, ForkDone, ForkEnd};
use windlass_protocol::policy::Policy;
use windlass_protocol::worker::FORKS;
use windlass_protocol::{ErrorCode, LinkSeq, Owner, SessionId, family};

use self::copy::{InPlace, NotCopied};
use super::actor::Actor;
use super::keeper_link::KeeperLink;
use super::receipts::WorkspaceFate;
use super::requests::answer;
use super::start::{self, Spec};
use super::{Handle, Reply, Request};
use crate::clock::now_ms;
use crate::context::Context;
use crate::failure::Failure;
use crate::keepers;
use crate::session_dirs::{self, Staged};

/// How long a keeper may take to fork, beyond what it gives its worker.
const FORK_PATIENCE: Duration = Duration::from_secs(20);

/// A session that is held idle, as far as its twin must be like it.
#[derive(Debug)]
pub(crate) struct Original {
    created: NewSession,
    /// Where the twin's place is to be made.
    room: PathBuf,
    /// What confines it, as its worker said.
    isolation: Option<Isolation>,
}

/// What a client wants of a twin.
#[derive(Debug, Clone)]
pub(crate) struct TwinWish {
    pub id: SessionId,
    /// The original's where absent.
    pub owner: Option<Owner>,
    pub copy: CopyScope,
}

/// A twin that was made, and what its client is told.
#[derive(Debug)]
pub(crate) struct MadeTwin {
    pub handle: Handle,
    pub done: ForkDone,
    /// Directories that its workspace does not have, and how many more.
    pub left_out: Vec<LeftOutDirectory>,
    pub left_out_more: u64,
}

/// What a session's owner knows of forks.
#[derive(Debug)]
pub(super) struct ForkSide {
    /// Its first room; none where an earlier release made the session.
    room: Option<PathBuf>,
    /// The room for the next twin: what the keeper reported last, moved on with each fork since
    /// then. None where the keeper does not report it.
    current: Option<PathBuf>,
    /// It is a twin, and its worker has not been up yet.
    awaits_twin: bool,
    /// Over when nobody wants it idle any more.
    held: Option<oneshot::Receiver<()>>,
    /// What was asked meanwhile, in that order.
    put_off: VecDeque<Request>,
    /// Who waits for the keeper's answer, and for which session.
    asked: Option<(SessionId, Reply<ForkDone>)>,
}

impl ForkSide {
    pub fn new(room: Option<PathBuf>, awaits_twin: bool) -> Self {
        Self { room, current: None, awaits_twin, held: None, put_off: VecDeque::new(), asked: None }
    }

    /// Takes the keeper's current room. A fork command that the keeper has not seen yet may already
    /// have moved this node to a deeper room, which then stays.
    pub fn keeper_said(&mut self, attached: &Attached) {
        let depth = |room: &PathBuf| room.components().count();
        let said = attached.room.as_ref().filter(|_| attached.forks);
        if said.map(depth) > self.current.as_ref().map(depth) {
            self.current = said.cloned();
        }
    }

    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether a turn must wait.
    pub fn is_behind(&self) -> bool {
        self.is_held() || !self.put_off.is_empty()
    }

    /// Whether a reset must wait: a twin that is not up yet holds what it is to lose.
    pub fn cannot_reset(&self) -> bool {
        self.is_behind() || self.awaits_twin
    }

    /// Whether this session is a twin whose worker has not started yet. A client that has the twin's id may
    /// already ask for a fork of it.
    pub fn awaits_twin(&self) -> bool {
        self.awaits_twin
    }

    /// Waits until nobody wants it idle any more.
    pub async fn released(&mut self) {
        if let Some(held) = &mut self.held {
            let _ = held.await;
        }
    }

    pub fn first_room(&self) -> Option<PathBuf> {
        self.room.clone()
    }
}

/// Makes a twin of `original`. What was begun is finished also when nobody waits for it any more.
pub(crate) async fn fork(
    context: &Arc<Context>,
    original: Handle,
    wish: TwinWish,
) -> Result<MadeTwin, Failure> {
    if !context.reserve(&wish.id).await {
        return Err(start::exists(&wish.id));
    }
    let context = context.clone();
    let forked = tokio::spawn(async move {
        let forked = make(&context, &original, &wish).await;
        if forked.is_err() {
            let (context, id) = (context.clone(), wish.id.clone());
            let undo = move || {
                context.cgroups.end_of(&id);
                context.forget(&id);
            };
            // It fails only with the runtime.
            let _ = tokio::task::spawn_blocking(undo).await;
        }
        forked
    });
    forked.await.map_err(|error| start::internal(&error.to_string()))?
}

async fn make(
    context: &Arc<Context>,
    original: &Handle,
    wish: &TwinWish,
) -> Result<MadeTwin, Failure> {
    let id = &wish.id;
    if context.journal.session(id).is_ok_and(|known| known.is_some()) {
        return Err(start::exists(id));
    }
    let (hold, until) = oneshot::channel();
    let held = original.ask(|reply| Request::Hold { until, reply }).await?;
    let Prepared { new, spec, fork, left_out } =
        prepare_apart(context, original, held, wish.clone()).await?;
    let (socket, room) = (fork.socket.clone(), fork.room.clone());
    let asked = original.ask(|reply| Request::Fork { fork: Box::new(fork), reply });
    let asked = tokio::time::timeout(FORK_PATIENCE, asked).await;
    drop(hold);
    let asked = asked.unwrap_or_else(|_| Err(refused("its keeper did not answer in time")));
    let mut done = match asked {
        Ok(done) => done,
        Err(failure) => {
            // The original's keeper may have died in the middle of it.
            keepers::end_at(&socket);
            remove_place(context, id, room).await;
            return Err(failure);
        }
    };
    done.not_carried.extend(left_out.files);
    let (log, link) = match record_and_reach(context, new, socket.clone()) {
        Ok(made) => made,
        Err(failure) => {
            keepers::end_at(&socket);
            remove_place(context, id, room).await;
            return Err(failure);
        }
    };
    let machine = Machine::default();
    let (mut actor, handle) = start::assemble(context, id.clone(), machine, log, link, spec);
    actor.timers.keeper = Some(Instant::now() + context.config.keeper_patience);
    context.admit(handle.clone());
    context.metrics.session_created();
    tokio::spawn(actor.run());
    let NotCopied { directories, directories_more, .. } = left_out;
    Ok(MadeTwin { handle, done, left_out: directories, left_out_more: directories_more })
}

/// Records a twin whose keeper listens, and connects to the keeper.
fn record_and_reach(
    context: &Context,
    new: NewSession,
    socket: PathBuf,
) -> Result<(SessionLog, KeeperLink), Failure> {
    let id = new.id.clone();
    let log = context.journal.create(new).map_err(|error| start::creation_failed(&id, &error))?;
    let half = NodeHalf::new(context.epoch, LinkSeq(0));
    match KeeperLink::open(socket, half, None) {
        Ok(link) => Ok((log, link)),
        Err(error) => {
            drop(log);
            start::unrecord(context, &id);
            Err(Failure::of_keeper(&id, &error))
        }
    }
}

/// Removes the directories of a twin that is not made.
async fn remove_place(context: &Arc<Context>, id: &SessionId, room: PathBuf) {
    let (context, id) = (context.clone(), id.clone());
    let remove = move || {
        session_dirs::unlink(&context.config, &id);
        session_dirs::remove_place(&context.config, &room);
    };
    // It fails only with the runtime.
    let _ = tokio::task::spawn_blocking(remove).await;
}

/// What a fork needs before the keeper is asked for it.
struct Prepared {
    new: NewSession,
    spec: Spec,
    fork: Fork,
    /// What the copy of the workspace does not have.
    left_out: NotCopied,
}

/// [`prepare`], where waiting hurts nobody.
async fn prepare_apart(
    context: &Arc<Context>,
    original: &Handle,
    held: Original,
    wish: TwinWish,
) -> Result<Prepared, Failure> {
    let (context, first) = (context.clone(), original.family.clone());
    let prepared = move || prepare(&context, held, wish, first);
    let prepared = tokio::task::spawn_blocking(prepared).await;
    prepared.map_err(|error| start::internal(&error.to_string()))?
}

/// The twin's place with its workspace, its cgroups, and what the journal will know of it.
fn prepare(
    context: &Context,
    held: Original,
    wish: TwinWish,
    first: SessionId,
) -> Result<Prepared, Failure> {
    let Original { created, room, isolation } = held;
    let TwinWish { id, owner, copy: scope } = wish;
    let spec = Spec::of(&created)?;
    check_hidden(context, &spec, created.workspace.as_ref())?;
    let socket = keepers::socket_path(&context.config, &id);
    keepers::check_path(&socket).map_err(|error| start::internal(&error.to_string()))?;
    keepers::remove_socket(&socket);
    let staged = Staged::new(&context.config, &id).map_err(|error| cannot_copy(&error))?;
    let into = staged.workspace().map_err(|error| cannot_copy(&error))?;
    let in_place = in_place(isolation, spec.policy.as_ref(), created.workspace.as_ref());
    let left_out = copy::copy(created.workspace.as_ref(), &into, scope, in_place)?;
    context.placeholders.leave_out(&created.id, created.workspace.as_ref(), &into);
    let copy = family::workspace(&room);
    // A session whose record has no policy is of a release that had none, and so has no limits.
    let limits = spec.policy.as_ref().map(|policy| policy.limits).unwrap_or_default();
    let cgroups = start::make_cgroups(context, &id, &limits)?;
    let spec = Spec {
        cgroups: cgroups.clone(),
        // The original's, and the family's to the end.
        tmp: None,
        owner: owner.or(spec.owner),
        forked_from: Some(created.id),
        family: Some(first),
        room: Some(family::room_of_twin(&room)),
        ..spec
    };
    let new = NewSession {
        id: id.clone(),
        created_at_ms: now_ms(),
        workspace: copy.display().to_string(),
        worker_kind: created.worker_kind,
        spec: spec.record()?,
        quota_bytes: created.quota_bytes,
    };
    session_dirs::link(&context.config, &id, &copy).map_err(|error| cannot_copy(&error))?;
    if let Err(error) = staged.install(&context.config, &room) {
        session_dirs::unlink(&context.config, &id);
        let what = "its twin's directories cannot be made";
        return Err(Failure::of_machine(what, &error)
            .unwrap_or_else(|| refused(&format!("{what}: {error}"))));
    }
    Ok(Prepared { new, spec, fork: Fork { session: id, socket, room, cgroups }, left_out })
}

/// A link into the original's workspace is made only where the twin cannot write through it: what keeps
/// twins apart does not hold without confinement, and not in directories that both may write.
fn in_place(isolation: Option<Isolation>, policy: Option<&Policy>, workspace: &Path) -> InPlace {
    let Some(policy) = policy else { return InPlace::Nothing };
    let is_confined = matches!(isolation, Some(Isolation::Full | Isolation::Landlock));
    let home = std::env::home_dir();
    if is_confined && !hidden::is_in_common(workspace, policy, home.as_deref()) {
        InPlace::Link
    } else {
        InPlace::Nothing
    }
}

/// A copy must not show what is hidden.
fn check_hidden(context: &Context, spec: &Spec, workspace: &Path) -> Result<(), Failure> {
    let home = std::env::home_dir();
    let policy = spec.policy.as_ref();
    match hidden::hidden_in(workspace, policy, home.as_deref(), &context.config) {
        None => Ok(()),
        Some(path) => Err(refused(&format!(
            "{} is hidden from the session, but would not be in a copy of its workspace {}; \
             a session in a directory of its own can be forked",
            path.display(),
            workspace.display()
        ))),
    }
}

fn cannot_copy(error: &std::io::Error) -> Failure {
    Failure::while_making("the workspace cannot be copied", error)
}

fn refused(message: &str) -> Failure {
    Failure::new(ErrorCode::ForkRefused, message)
}

impl Actor {
    /// Holds the session idle until `until` is over.
    pub(super) fn hold(&mut self, until: oneshot::Receiver<()>) -> Result<Original, Failure> {
        let state = self.machine.state();
        if state != SessionState::Idle || self.fork.is_held() {
            let message = format!("session {} is not idle", self.id);
            return Err(Failure::new(ErrorCode::SessionBusy, message));
        }
        let created = self.log.facts().created.clone();
        let first = self.fork.room.as_deref().ok_or_else(|| {
            refused("it was made by an earlier release, without a room for twins")
        })?;
        let room = self.fork.current.clone();
        let room = room.ok_or_else(|| refused("its keeper is of an earlier release"))?;
        if !session_dirs::is_room_of(first, &room) {
            return Err(refused("its keeper names a room that is none of its own"));
        }
        // Of a worker of an earlier release, its keeper knows.
        let capabilities = self.log.facts().capabilities.as_ref();
        if capabilities.is_some_and(|known| !known.iter().any(|capability| capability == FORKS)) {
            return Err(refused("its worker cannot fork"));
        }
        self.fork.held = Some(until);
        let isolation = self.log.facts().confinement.as_ref().map(|found| found.isolation);
        Ok(Original { created, room, isolation })
    }

    /// Keeps a request for later: a turn or a reset that came while the session is held, or a fork that came
    /// before the worker of a twin had started.
    pub(super) fn put_off(&mut self, request: Request) {
        if self.fork.put_off.len() < WAITING_TURNS_MAX {
            return self.fork.put_off.push_back(request);
        }
        let full = Failure::of(ErrorCode::Overloaded, self.id.as_str());
        match request {
            Request::Submit(submit) => answer(submit.reply, Err(full)),
            Request::Reset { reply } => answer(reply, Err(full)),
            Request::Hold { reply, .. } => answer(reply, Err(full)),
            _ => {}
        }
    }

    /// The session is not held any more.
    pub(super) fn let_go(&mut self) {
        self.fork.held = None;
        self.catch_up();
    }

    /// Serves what was put off.
    fn catch_up(&mut self) {
        for request in std::mem::take(&mut self.fork.put_off) {
            // None of them ends the session's owner.
            let _ = self.serve(request);
        }
    }

    pub(super) fn ask_fork(&mut self, fork: Box<Fork>, reply: Reply<ForkDone>) {
        if self.machine.state() != SessionState::Idle {
            return answer(reply, Err(Failure::of(ErrorCode::SessionBusy, self.id.as_str())));
        }
        let (session, next_room) = (fork.session.clone(), family::next_room(&fork.room));
        if let Err(error) = self.link.command(Command::Fork(fork), Bytes::new()) {
            let message = format!("session {} was not forked: {error}", self.id);
            return answer(reply, Err(refused(&message)));
        }
        self.fork.asked = Some((session, reply));
        // Also if the fork fails: the worker may have added its Landlock layer by then.
        self.fork.current = Some(next_room);
        // A closed link shows when it is read.
        let _ = self.link.flush();
    }

    /// The keeper's word about a fork.
    pub(super) fn forked(&mut self, session: &SessionId, end: ForkEnd) {
        let Some((_, reply)) = self.fork.asked.take_if(|(asked, _)| asked == session) else {
            return;
        };
        let end = match end {
            ForkEnd::Done(done) => Ok(done),
            ForkEnd::Refused { code, message } => {
                Err(Failure::new(code, format!("session {} was not forked: {message}", self.id)))
            }
        };
        answer(reply, end);
    }

    /// A twin's first worker holds state from its first moment.
    pub(super) fn note_carried_state(&mut self, event: Event) {
        if event == Event::WorkerReady && std::mem::take(&mut self.fork.awaits_twin) {
            self.step(Event::StateCarried);
            if !self.fork.is_held() {
                self.catch_up();
            }
        }
    }

    /// What becomes of the workspace when the session ends.
    pub(super) fn workspace_fate(&self, reason: EndReason) -> WorkspaceFate {
        let original = {
            let info = self.info.lock().expect("no holder of this lock can panic");
            info.forked_from.clone()
        };
        let made_at_ms = self.log.facts().created.created_at_ms;
        WorkspaceFate::of(&self.context.journal, original, made_at_ms, reason)
    }

    /// The temporary directory that goes with this session: the family's, when this is the last of it.
    pub(super) fn family_tmp(&mut self) -> Option<PathBuf> {
        let handle = self.context.find(&self.id)?;
        let others = self.context.handles();
        if others.iter().any(|other| other.family == handle.family && other.id != self.id) {
            return None;
        }
        self.tmp.take().or_else(|| Some(self.context.config.tmp_of(&handle.family)))
    }
}

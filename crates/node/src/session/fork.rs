//! Forking a live session: the original is held idle, its workspace copied, its worker forked by its
//! keeper; then the twin is a session like any other, with a keeper, a journal and an owner.
//!
//! `session_dirs` knows the directories, [`copy`] copies a workspace, [`hidden`] knows which is not copied.

mod copy;
mod hidden;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use windlass_journal::{NewSession, SessionFacts, SessionLog};
use windlass_lifecycle::SessionMachine;
use windlass_lifecycle::link::NodeHalf;
use windlass_protocol::api::{CopyScope, LeftOutDirectory};
use windlass_protocol::confinement::Isolation;
use windlass_protocol::link::{AttachReply, ForkDone, ForkEnd, ForkOrder};
use windlass_protocol::policy::Policy;
use windlass_protocol::worker::FORKS;
use windlass_protocol::{ErrorCode, LinkSeq, Owner, SessionId, family};

use self::copy::{InPlace, NotCopied};
use super::keeper_link::KeeperLink;
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

/// Resets that may wait while a session is held.
const RESETS_MAX: usize = 64;

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

/// What a session's owner knows of forks, besides what the lifecycle decides.
#[derive(Debug)]
pub(super) struct ForkSide {
    /// Its first room; none where an earlier release made the session.
    room: Option<PathBuf>,
    /// The room for the next twin: what the keeper reported last, moved on with each fork since
    /// then. None where the keeper does not report it.
    current: Option<PathBuf>,
    /// Over when nobody wants the session held any more.
    held: Option<oneshot::Receiver<()>>,
    /// Who waits until the session is held.
    wanting: Option<Reply<Original>>,
    /// Who waits for the keeper's answer, and for which session.
    asked: Option<(SessionId, Reply<ForkDone>)>,
    /// Who waits for a reset: it is answered when the keeper is told.
    resets: Vec<Reply<()>>,
}

impl ForkSide {
    pub fn new(room: Option<PathBuf>) -> Self {
        Self { room, current: None, held: None, wanting: None, asked: None, resets: Vec::new() }
    }

    /// Takes the keeper's current room. A fork command that the keeper has not seen yet may already
    /// have moved this node to a deeper room, which then stays.
    pub fn keeper_said(&mut self, attached: &AttachReply) {
        let depth = |room: &PathBuf| room.components().count();
        let said = attached.room.as_ref().filter(|_| attached.forks);
        if said.map(depth) > self.current.as_ref().map(depth) {
            self.current = said.cloned();
        }
    }

    pub fn first_room(&self) -> Option<PathBuf> {
        self.room.clone()
    }

    /// Whether the session is held, or somebody waits until it is.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Waits until nobody wants the session held any more.
    pub async fn released(&mut self) {
        if let Some(held) = &mut self.held {
            let _ = held.await;
        }
    }

    /// Nobody wants the session held any more.
    pub fn let_go(&mut self) {
        self.held = None;
        self.wanting = None;
    }

    /// Somebody wants the session held, until `until` is over. The lifecycle says when it is.
    pub fn want(&mut self, until: oneshot::Receiver<()>, reply: Reply<Original>) {
        self.held = Some(until);
        self.wanting = Some(reply);
    }

    /// The session is held: whoever waited for that learns what its twin must be like. Whether somebody
    /// still wants it held.
    pub fn grant(&mut self, facts: &SessionFacts) -> bool {
        let Some(reply) = self.wanting.take() else { return false };
        let original = self.original(facts);
        let is_wanted = original.is_ok();
        if !is_wanted {
            self.held = None;
        }
        answer(reply, original);
        is_wanted
    }

    /// Somebody wants a fresh worker.
    pub fn answer_reset(&mut self, reply: Reply<()>) {
        if self.resets.len() < RESETS_MAX {
            self.resets.push(reply);
        } else {
            let message = "as many resets wait as may wait";
            answer(reply, Err(Failure::new(ErrorCode::Overloaded, message)));
        }
    }

    /// Every reset that was asked for is on its way.
    pub fn resets_done(&mut self) {
        self.resets.drain(..).for_each(|reply| answer(reply, Ok(())));
    }

    /// The session cannot be held.
    pub fn refuse(&mut self, failure: Failure) {
        self.held = None;
        if let Some(reply) = self.wanting.take() {
            answer(reply, Err(failure));
        }
    }

    fn original(&self, facts: &SessionFacts) -> Result<Original, Failure> {
        let first = self.room.as_deref().ok_or_else(|| {
            refused("it was made by an earlier release, without a room for twins")
        })?;
        let room = self.current.clone();
        let room = room.ok_or_else(|| refused("its keeper is of an earlier release"))?;
        if !session_dirs::is_room_of(first, &room) {
            return Err(refused("its keeper names a room that is none of its own"));
        }
        // Of a worker of an earlier release, its keeper knows.
        let known = facts.capabilities.as_ref();
        if known.is_some_and(|known| !known.iter().any(|capability| capability == FORKS)) {
            return Err(refused("its worker cannot fork"));
        }
        let isolation = facts.confinement.as_ref().map(|found| found.isolation);
        Ok(Original { created: facts.created.clone(), room, isolation })
    }

    /// The keeper was asked to fork: the next twin gets another room. Also if the fork fails: the worker
    /// may have added its Landlock layer by then.
    pub fn asked(&mut self, session: SessionId, room: &Path, reply: Reply<ForkDone>) {
        self.asked = Some((session, reply));
        self.current = Some(family::next_room(room));
    }

    /// The keeper's word about a fork.
    pub fn answered(&mut self, original: &SessionId, twin: &SessionId, end: ForkEnd) {
        let Some((_, reply)) = self.asked.take_if(|(asked, _)| asked == twin) else { return };
        let end = match end {
            ForkEnd::Done(done) => Ok(done),
            ForkEnd::Refused { code, message } => {
                Err(Failure::new(code, format!("session {original} was not forked: {message}")))
            }
        };
        answer(reply, end);
    }
}

/// Makes a twin of `original`. What was begun is finished also when nobody waits for it any more.
pub(crate) async fn fork(
    context: &Arc<Context>,
    original: Handle,
    wish: TwinWish,
) -> Result<MadeTwin, Failure> {
    if !context.sessions.reserve(&wish.id).await {
        return Err(start::exists(&wish.id));
    }
    let context = context.clone();
    let forked = tokio::spawn(async move {
        let forked = make(&context, &original, &wish).await;
        if forked.is_err() {
            let (context, id) = (context.clone(), wish.id.clone());
            let undo = move || {
                context.host.cgroups.end_of(&id);
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
    let (actor, handle) = start::assemble(context, SessionMachine::twin(), log, link, spec);
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
    let half = NodeHalf::new(log.facts().epoch, LinkSeq(0));
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
    fork: ForkOrder,
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
    context.host.placeholders.leave_out(&created.id, created.workspace.as_ref(), &into);
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
    Ok(Prepared { new, spec, fork: ForkOrder { session: id, socket, room, cgroups }, left_out })
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

pub(super) fn refused(message: &str) -> Failure {
    Failure::new(ErrorCode::ForkRefused, message)
}

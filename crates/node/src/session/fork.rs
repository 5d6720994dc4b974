//! Forks a live session. The node holds the original idle and copies its workspace; the original's keeper
//! forks the worker. The twin is then a session like any other, with a keeper, a journal and an owner.
//!
//! `session_dirs` makes the directories, `copying` copies the workspace.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use windlass_journal::{NewSession, SessionFacts, SessionLog};
use windlass_lifecycle::SessionMachine;
use windlass_lifecycle::link::NodeHalf;
use windlass_protocol::api::{CopyScope, LeftOutDirectory};
use windlass_protocol::confinement::Isolation;
use windlass_protocol::event::StartedBy;
use windlass_protocol::link::{AttachReply, ForkDone, ForkEnd, ForkOrder};
use windlass_protocol::worker::FORKS;
use windlass_protocol::{ClientName, ErrorCode, LinkSeq, Owner, SessionId, family};

use super::answer;
use super::children;
use super::copying::copy::{self, NotCopied};
use super::copying::{cannot_copy, check_hidden, installed_dirs, refused};
use super::keeper_link::KeeperLink;
use super::spec::Spec;
use super::start;
use super::{ReplySender, Request, SessionHandle};
use crate::clock::now_ms;
use crate::context::Context;
use crate::failure::Failure;
use crate::keepers;
use crate::session_dirs::{self, StagedTwin};

/// How long a keeper may take to answer a fork command. Longer than the time it gives its worker.
const FORK_PATIENCE: Duration = Duration::from_secs(20);

/// Maximum number of resets that wait while a session is held.
const RESETS_MAX: usize = 64;

/// What a fork needs to know of the session that is held idle.
#[derive(Debug)]
pub(crate) struct HeldOriginal {
    created: NewSession,
    /// The room in which the twin's directories are made.
    room: PathBuf,
    /// The isolation that the worker reported.
    isolation: Option<Isolation>,
}

/// A client's request for a twin.
#[derive(Debug, Clone)]
pub(crate) struct TwinRequest {
    pub id: SessionId,
    /// The program that wants the twin.
    pub client: Option<ClientName>,
    /// Absent: the original's owner.
    pub owner: Option<Owner>,
    pub copy: CopyScope,
}

/// A new twin, and what the client is told about it.
#[derive(Debug)]
pub(crate) struct NewTwin {
    pub handle: SessionHandle,
    pub done: ForkDone,
    /// Directories that are not in the copied workspace, and how many more there are.
    pub left_out: Vec<LeftOutDirectory>,
    pub left_out_more: u64,
}

/// The part of a session's owner that handles forks and resets. The lifecycle decides when a session is held.
#[derive(Debug)]
pub(super) struct ForkSide {
    /// The session's first room (`windlass_protocol::family`). None if an earlier release made the session.
    first_room: Option<PathBuf>,
    /// The room for the next twin: the one that the keeper reported last, moved on with each fork since.
    /// None if the keeper does not report it.
    next_room: Option<PathBuf>,
    /// Resolves when the session need not be held any more.
    held: Option<oneshot::Receiver<()>>,
    /// The reply to a hold request, until the session is held.
    hold_reply: Option<ReplySender<HeldOriginal>>,
    /// The reply to a fork request, until the keeper answers, with the twin's id.
    fork_reply: Option<(SessionId, ReplySender<ForkDone>)>,
    /// The replies to reset requests. They are sent after the keeper got its command.
    resets: Vec<ReplySender<()>>,
}

impl ForkSide {
    pub fn new(first_room: Option<PathBuf>) -> Self {
        Self {
            first_room,
            next_room: None,
            held: None,
            hold_reply: None,
            fork_reply: None,
            resets: Vec::new(),
        }
    }

    /// Takes over the room that the keeper reports. A fork command that the keeper has not seen yet may have
    /// moved this node on to a deeper room already; that one stays.
    pub fn keeper_said(&mut self, attached: &AttachReply) {
        let depth = |dir: &PathBuf| dir.components().count();
        let reported = attached.room.as_ref().filter(|_| attached.forks);
        if reported.map(depth) > self.next_room.as_ref().map(depth) {
            self.next_room = reported.cloned();
        }
    }

    pub fn first_room(&self) -> Option<PathBuf> {
        self.first_room.clone()
    }

    /// Whether the session is held, or a hold request waits.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Waits until the session need not be held any more.
    pub async fn released(&mut self) {
        if let Some(held) = &mut self.held {
            let _ = held.await;
        }
    }

    /// The session need not be held any more.
    pub fn release(&mut self) {
        self.held = None;
        self.hold_reply = None;
    }

    /// Takes a hold request. The reply is sent when the lifecycle holds the session.
    pub fn request_hold(&mut self, until: oneshot::Receiver<()>, reply: ReplySender<HeldOriginal>) {
        self.held = Some(until);
        self.hold_reply = Some(reply);
    }

    /// The session is held: answers the hold request. Returns whether the session must stay held.
    pub fn grant(&mut self, facts: &SessionFacts) -> bool {
        let Some(reply) = self.hold_reply.take() else { return false };
        let original = self.original(facts);
        let stays_held = original.is_ok();
        if !stays_held {
            self.held = None;
        }
        answer(reply, original);
        stays_held
    }

    /// Takes a reset request. The reply waits until [`Self::resets_done`].
    pub fn queue_reset(&mut self, reply: ReplySender<()>) {
        if self.resets.len() < RESETS_MAX {
            self.resets.push(reply);
        } else {
            let message = "too many resets wait for this session";
            answer(reply, Err(Failure::new(ErrorCode::Overloaded, message)));
        }
    }

    /// The commands for all requested resets have been sent to the keeper.
    pub fn resets_done(&mut self) {
        self.resets.drain(..).for_each(|reply| answer(reply, Ok(())));
    }

    /// The session cannot be held.
    pub fn refuse(&mut self, failure: Failure) {
        self.held = None;
        if let Some(reply) = self.hold_reply.take() {
            answer(reply, Err(failure));
        }
    }

    fn original(&self, facts: &SessionFacts) -> Result<HeldOriginal, Failure> {
        let first = self.first_room.as_deref().ok_or_else(|| {
            refused("the session was made by an earlier release, which cannot fork")
        })?;
        let room = self.next_room.clone().ok_or_else(|| {
            refused("the session's keeper is of an earlier release, which cannot fork")
        })?;
        if !session_dirs::is_room_of(first, &room) {
            let dir = room.display();
            return Err(refused(&format!(
                "the keeper reports {dir}, which is not in the session's directory"
            )));
        }
        // A worker of an earlier release reports no capabilities; then its keeper decides.
        let known = facts.capabilities.as_ref();
        if known.is_some_and(|known| !known.iter().any(|capability| capability == FORKS)) {
            return Err(refused("the session's worker cannot fork"));
        }
        let isolation = facts.confinement.as_ref().map(|found| found.isolation);
        Ok(HeldOriginal { created: facts.created.clone(), room, isolation })
    }

    /// The fork command was sent: the next twin gets another room. This holds also if the fork
    /// fails, because the worker may have added its Landlock layer by then.
    pub fn fork_sent(&mut self, twin: SessionId, room: &Path, reply: ReplySender<ForkDone>) {
        self.fork_reply = Some((twin, reply));
        self.next_room = Some(family::next_room(room));
    }

    /// The keeper reports how a fork ended.
    pub fn fork_done(&mut self, original: &SessionId, twin: &SessionId, end: ForkEnd) {
        let Some((_, reply)) = self.fork_reply.take_if(|(asked, _)| asked == twin) else { return };
        let end = match end {
            ForkEnd::Done(done) => Ok(done),
            ForkEnd::Refused { code, message } => {
                Err(Failure::new(code, format!("session {original} was not forked: {message}")))
            }
        };
        answer(reply, end);
    }
}

/// Makes a twin of `original`. A task of its own finishes the fork, even if the client disconnects.
pub(crate) async fn fork(
    context: &Arc<Context>,
    original: SessionHandle,
    request: TwinRequest,
) -> Result<NewTwin, Failure> {
    // A twin of a child is a child of the same parent.
    let parent = original.parent.as_ref();
    let reserved = context.sessions.reserve(&request.id, parent).await;
    let failure =
        |why| children::refusal(&why, parent).unwrap_or_else(|| start::exists(&request.id));
    reserved.map_err(failure)?;
    let context = context.clone();
    let forked = tokio::spawn(async move {
        let (claim, forked) = match start::claim_new(&context, &request.id).await {
            Ok(claim) => (claim, make(&context, &original, &request).await),
            Err(failure) => (None, Err(failure)),
        };
        match forked {
            Ok(twin) => {
                let confirmed = context.end_if_fenced(claim.as_ref(), &twin.handle).await;
                confirmed.map(|()| twin)
            }
            Err(failure) => {
                let (node, id) = (context.clone(), request.id.clone());
                // The join fails only when the runtime stops.
                let _ = tokio::task::spawn_blocking(move || node.host.cgroups.end_of(&id)).await;
                context.forget_unmade(&request.id, claim).await;
                Err(failure)
            }
        }
    });
    forked.await.map_err(|error| start::internal(&error.to_string()))?
}

async fn make(
    context: &Arc<Context>,
    original: &SessionHandle,
    request: &TwinRequest,
) -> Result<NewTwin, Failure> {
    let id = &request.id;
    if context.journal.session(id).is_ok_and(|known| known.is_some()) {
        return Err(start::exists(id));
    }
    let (hold, until) = oneshot::channel();
    let held = original.ask(|reply| Request::Hold { until, reply }).await?;
    let PreparedTwin { new, spec, fork, left_out } =
        prepare_blocking(context, original, held, request.clone()).await?;
    let (socket, room) = (fork.socket.clone(), fork.room.clone());
    let asked = original.ask(|reply| Request::Fork { fork: Box::new(fork), reply });
    let asked = tokio::time::timeout(FORK_PATIENCE, asked).await;
    drop(hold);
    let asked =
        asked.unwrap_or_else(|_| Err(refused("the session's keeper did not answer in time")));
    let mut done = match asked {
        Ok(done) => done,
        Err(failure) => {
            // The original's keeper may have died while it forked.
            keepers::end_at(&socket);
            remove_twin_dirs(context, id, room).await;
            return Err(failure);
        }
    };
    done.not_carried.extend(left_out.files);
    let (log, link) = match record_and_reach(context, new, socket.clone()) {
        Ok(made) => made,
        Err(failure) => {
            keepers::end_at(&socket);
            remove_twin_dirs(context, id, room).await;
            return Err(failure);
        }
    };
    let (actor, handle) = start::assemble(context, SessionMachine::twin(), log, link, spec);
    context.admit(handle.clone());
    context.metrics.session_created();
    context.metrics.session_starts(&handle.info().kind, StartedBy::Fork);
    tokio::spawn(actor.run());
    children::end_if_orphan(context, &handle);
    let NotCopied { directories, directories_more, .. } = left_out;
    Ok(NewTwin { handle, done, left_out: directories, left_out_more: directories_more })
}

/// Makes a twin's journal and connects to its keeper, which listens already.
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

/// Removes the directories of a twin whose fork failed.
async fn remove_twin_dirs(context: &Arc<Context>, id: &SessionId, room: PathBuf) {
    let (context, id) = (context.clone(), id.clone());
    let remove = move || {
        session_dirs::unlink(&context.config, &id);
        session_dirs::remove_twin_dir(&context.config, &room);
    };
    // The join fails only when the runtime stops.
    let _ = tokio::task::spawn_blocking(remove).await;
}

/// A twin that is ready to be forked.
struct PreparedTwin {
    new: NewSession,
    spec: Spec,
    fork: ForkOrder,
    /// What is not in the copy of the workspace.
    left_out: NotCopied,
}

/// Runs [`prepare`] on a thread that may block.
async fn prepare_blocking(
    context: &Arc<Context>,
    original: &SessionHandle,
    held: HeldOriginal,
    request: TwinRequest,
) -> Result<PreparedTwin, Failure> {
    let (context, first) = (context.clone(), original.family.clone());
    let prepared = move || prepare(&context, held, request, first);
    let prepared = tokio::task::spawn_blocking(prepared).await;
    prepared.map_err(|error| start::internal(&error.to_string()))?
}

/// Makes the twin's directories with the copied workspace, its cgroups, and its record for the journal.
fn prepare(
    context: &Context,
    held: HeldOriginal,
    request: TwinRequest,
    first: SessionId,
) -> Result<PreparedTwin, Failure> {
    let HeldOriginal { created, room, isolation } = held;
    let TwinRequest { id, client, owner, copy: scope } = request;
    let mut spec = Spec::of(&created)?;
    if let Some(policy) = &mut spec.policy {
        // The twin has the limits of its original, so they are not fitted.
        policy.limits = context.claim_limits(&id, &policy.limits, policy.limits)?;
    }
    check_hidden(context, spec.policy.as_ref(), created.workspace.as_ref())?;
    let socket = keepers::socket_path(&context.config, &id);
    keepers::check_path(&socket).map_err(|error| start::internal(&error.to_string()))?;
    keepers::remove_socket(&socket);
    let staged = StagedTwin::new(&context.config, &id).map_err(|error| cannot_copy(&error))?;
    let into = staged.workspace().map_err(|error| cannot_copy(&error))?;
    let installed = installed_dirs(isolation, spec.policy.as_ref(), created.workspace.as_ref());
    let left_out = copy::copy(created.workspace.as_ref(), &into, scope, installed)?;
    context.host.placeholders.leave_out(&created.id, created.workspace.as_ref(), &into);
    let copy = family::workspace(&room);
    // A record without a policy is of a release without policies, so the session has no limits.
    let limits = spec.policy.as_ref().map(|policy| policy.limits).unwrap_or_default();
    let cgroups = start::make_cgroups(context, &id, &limits)?;
    let spec = Spec {
        cgroups: cgroups.clone(),
        // The twin uses the original's temporary directory, which stays until the whole family has ended.
        tmp: None,
        client,
        owner: owner.or(spec.owner),
        forked_from: Some(created.id),
        copied_from: None,
        family: Some(first),
        room: Some(family::room_of_twin(&room)),
        // The twin has a trace of its own.
        trace: None,
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
        let what = "cannot make the twin's directories";
        return Err(Failure::of_machine(what, &error)
            .unwrap_or_else(|| refused(&format!("{what}: {error}"))));
    }
    let fork = ForkOrder { session: id, socket, room, cgroups };
    Ok(PreparedTwin { new, spec, fork, left_out })
}

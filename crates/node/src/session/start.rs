//! How a session's owner comes to be for a new session.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use windlass_client::stream::LeanStream;
use windlass_journal::{AppendError, CreateError, NewSession, SessionFacts, SessionLog};
use windlass_lifecycle::SessionMachine;
use windlass_lifecycle::link::NodeHalf;
use windlass_protocol::api::{self, CreateSession, SessionState};
use windlass_protocol::kinds;
use windlass_protocol::link::Launch;
use windlass_protocol::policy::{HostRules, Limits, Network, Policy};
use windlass_protocol::{ErrorCode, Owner, SessionId};

use super::actor::Actor;
use super::calls::ToolCalls;
use super::deadlines::Deadlines;
use super::fork::ForkSide;
use super::idle::{ClientPresence, IdleWatch};
use super::journal_side::JournalSide;
use super::keeper_link::KeeperLink;
use super::keeper_side::KeeperSide;
use super::lifetime::Lifetime;
use super::limits;
use super::public_view::PublicView;
use super::round::Round;
use super::turn_queue::TurnQueue;
use super::{Handle, INBOX_MAX, Inbox, Request};
use crate::clock::now_ms;
use crate::context::Context;
use crate::failure::Failure;
use crate::provision::{KeeperDoor, Lease, Made, SessionSpec, WorkerParts, WorkerStart};
use windlass_egress::Ledger;
use windlass_tools::Caller;

/// How long a keeper may take to read what it keeps, where that does not fit into its socket.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);

/// What the journal keeps of a session's making, to go on with it after a restart.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Spec {
    #[serde(default = "usual_interrupt_grace_ms")]
    pub interrupt_grace_ms: u64,
    /// Absent in what a node wrote that knew of none.
    #[serde(default)]
    pub policy: Option<Policy>,
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
    /// The session's temporary files, where it has no private `/tmp`.
    #[serde(default)]
    pub tmp: Option<PathBuf>,
    #[serde(default)]
    pub owner: Option<Owner>,
    /// The session that it was forked from, and the first of its family.
    #[serde(default)]
    pub forked_from: Option<SessionId>,
    #[serde(default)]
    pub family: Option<SessionId>,
    /// Its first room for twins.
    #[serde(default)]
    pub room: Option<PathBuf>,
    /// The interpreter whose zygote its workers are forked from.
    #[serde(default)]
    pub zygote_of: Option<PathBuf>,
    /// Its idle timeout in seconds, 0 for none; absent where the node's is meant.
    #[serde(default)]
    pub idle_s: Option<u64>,
    /// The deadline of its turns that have none; absent where the node's is meant.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// Of a session whose record does not say.
fn usual_interrupt_grace_ms() -> u64 {
    5000
}

/// The session that a twin was forked from, by its record.
pub(crate) fn original_of(facts: &SessionFacts) -> Option<SessionId> {
    Spec::of(&facts.created).ok()?.forked_from
}

impl Spec {
    /// From a session's record. Fields that the record lacks have their defaults; a record that cannot
    /// be read is an error, since its policy would be lost.
    pub(super) fn of(created: &NewSession) -> Result<Self, Failure> {
        serde_json::from_value(created.spec.clone()).map_err(|error| {
            internal(&format!("the record of session {} cannot be read: {error}", created.id))
        })
    }

    /// As the journal keeps it.
    pub(super) fn record(&self) -> Result<serde_json::Value, Failure> {
        serde_json::to_value(self)
            .map_err(|error| internal(&format!("a session's record cannot be made: {error}")))
    }

    /// How long the session may live.
    fn wall_s(&self) -> Option<u64> {
        self.policy.as_ref()?.limits.wall_s
    }

    /// Who its code is, to those who offer tools.
    fn caller(&self, created: &NewSession) -> Caller {
        let rules = self.policy.as_ref().map_or_else(Vec::new, |policy| policy.tools.clone());
        let words = kinds::terms_of(&created.worker_kind);
        Caller { session: created.id.clone(), owner: self.owner.clone(), rules, words }
    }

    /// The hosts that it may reach, where its policy is a list of them.
    fn hosts(&self) -> Option<HostRules> {
        match &self.policy.as_ref()?.network {
            Network::Hosts(rules) => Some(rules.clone()),
            Network::None | Network::Open => None,
        }
    }
}

/// Makes a session: journal, keeper, owner. `first` is in its inbox before anybody can know it.
pub(crate) async fn create(
    context: &Arc<Context>,
    id: SessionId,
    wanted: CreateSession,
    first: Option<Request>,
) -> Result<Handle, Failure> {
    if !context.sessions.reserve(&id).await {
        return Err(exists(&id));
    }
    // Whoever asks may be gone before it is made; what was begun is finished all the same.
    let made = tokio::spawn(make_reserved(context.clone(), id, wanted, first));
    made.await.map_err(|error| internal(&error.to_string()))?
}

/// Makes a session whose id is taken, or gives the id back.
async fn make_reserved(
    context: Arc<Context>,
    id: SessionId,
    wanted: CreateSession,
    first: Option<Request>,
) -> Result<Handle, Failure> {
    let made = make(&context, id.clone(), wanted).await;
    match made {
        Ok((actor, handle)) => {
            if let Some(first) = first {
                handle.send(first).await?;
            }
            context.admit(handle.clone());
            context.metrics.session_created();
            tokio::spawn(actor.run());
            if context.host.placeholders.are_needed_by(&id) && context.host.placeholders.are_few() {
                drop(tokio::task::spawn_blocking(move || context.host.placeholders.stock_up()));
            }
            Ok(handle)
        }
        Err(failure) => {
            context.forget(&id);
            Err(failure)
        }
    }
}

async fn make(
    context: &Arc<Context>,
    id: SessionId,
    wanted: CreateSession,
) -> Result<(Actor, Handle), Failure> {
    let prepared = {
        let (context, id) = (context.clone(), id.clone());
        // It touches the disk and starts a process: not on the thread that serves turns.
        tokio::task::spawn_blocking(move || prepare(&context, &id, &wanted))
            .await
            .map_err(|error| internal(&error.to_string()))??
    };
    let facts = prepared.log.facts();
    let half = NodeHalf::new(facts.epoch, facts.last_link);
    let Prepared { log, keeper, launch, spec, made } = prepared;
    let link = match reach_keeper(keeper, half, launch).await {
        Ok(link) => link,
        Err(error) => {
            drop(log);
            let (context, unmade) = (context.clone(), id.clone());
            // It fails only with the runtime.
            let _ = tokio::task::spawn_blocking(move || {
                unrecord(&context, &unmade);
                context.host.provision.release(&made);
            })
            .await;
            return Err(Failure::of_keeper(&id, &error));
        }
    };
    Ok(assemble(context, SessionMachine::default(), log, link, spec))
}

/// Connects to a session's keeper and tells it what it keeps.
async fn reach_keeper(
    KeeperDoor { socket, start }: KeeperDoor,
    half: NodeHalf,
    launch: Box<Launch>,
) -> std::io::Result<KeeperLink> {
    let mut link = match start {
        WorkerStart::Pool(line) => {
            KeeperLink::over(LeanStream::new(line)?, socket, half, Some(launch))
        }
        WorkerStart::Zygote(zygote) => {
            KeeperLink::open_with(socket, half, Some(launch), Some(zygote))
        }
        WorkerStart::Exec => KeeperLink::open(socket, half, Some(launch)),
    }?;
    // Whoever hears that the session is there finds it there, also if this node dies now. A keeper
    // that does not read is its owner's to deal with.
    match tokio::time::timeout(LAUNCH_WAIT, link.flushed()).await {
        Ok(told) => told.map(|()| link),
        Err(_) => Ok(link),
    }
}

struct Prepared {
    log: SessionLog,
    keeper: KeeperDoor,
    launch: Box<Launch>,
    spec: Spec,
    /// What is un-made if the keeper cannot be reached.
    made: Made,
}

fn prepare(context: &Context, id: &SessionId, wanted: &CreateSession) -> Result<Prepared, Failure> {
    let policy = policy_of(wanted)?;
    let limits = policy.limits;
    if context.journal.has_session(id) {
        return Err(exists(id));
    }
    let lease = context.host.provision.acquire(&SessionSpec { id, wanted, policy: &policy })?;
    let spec = spec_of(context, wanted, policy, &lease);
    match record(context, id, wanted, &lease, &spec) {
        Ok(log) => {
            let launch = launch_of(context, id, &lease, limits);
            Ok(Prepared { log, keeper: lease.keeper, launch, spec, made: lease.made })
        }
        Err(failure) => {
            context.host.provision.release(&lease.made);
            Err(failure)
        }
    }
}

/// Makes the session's journal.
fn record(
    context: &Context,
    id: &SessionId,
    wanted: &CreateSession,
    lease: &Lease,
    spec: &Spec,
) -> Result<SessionLog, Failure> {
    let new = NewSession {
        id: id.clone(),
        created_at_ms: now_ms(),
        workspace: lease.made.dir.workspace.display().to_string(),
        worker_kind: lease.worker.recipe.kind.name.to_owned(),
        spec: spec.record()?,
        quota_bytes: wanted.output_quota_bytes.unwrap_or(context.config.output_quota_bytes),
    };
    context.journal.create(new).map_err(|error| creation_failed(id, &error))
}

fn spec_of(context: &Context, wanted: &CreateSession, policy: Policy, lease: &Lease) -> Spec {
    let grace = context.config.interrupt_grace;
    let grace = wanted.interrupt_grace_ms.map_or(grace, Duration::from_millis);
    Spec {
        interrupt_grace_ms: millis(grace),
        policy: Some(policy),
        cgroups: lease.made.cgroups.clone(),
        tmp: lease.made.dir.tmp.clone(),
        owner: wanted.owner.clone(),
        room: Some(lease.made.dir.family.clone()),
        zygote_of: lease.worker.zygote_of.clone(),
        idle_s: wanted.idle_s,
        deadline_ms: wanted.deadline_ms,
        ..Spec::default()
    }
}

fn launch_of(context: &Context, id: &SessionId, lease: &Lease, limits: Limits) -> Box<Launch> {
    let (config, dir) = (&context.config, &lease.made.dir);
    let WorkerParts { recipe, plan, egress, .. } = &lease.worker;
    let pooled = matches!(lease.keeper.start, WorkerStart::Pool(_));
    Box::new(Launch {
        session: id.clone(),
        argv: recipe.argv.clone(),
        env: recipe.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        cwd: dir.workspace.clone(),
        node_grace_ms: millis(config.node_grace),
        start_timeout_ms: millis(config.start_timeout),
        plan: plan.clone(),
        egress: egress.clone(),
        limits,
        cgroups: lease.made.cgroups.clone(),
        from_zygote: matches!(lease.keeper.start, WorkerStart::Zygote(_)),
        socket: pooled.then(|| lease.keeper.socket.clone()),
        family: Some(dir.family.clone()),
    })
}

/// Takes the record of a session back whose keeper could not be had: whoever asked is told so, and there is no
/// such session.
pub(super) fn unrecord(context: &Context, id: &SessionId) {
    if let Err(error) = context.journal.remove(id) {
        tracing::warn!(session = %id, %error, "the record of a session that was not made stays");
    }
}

/// The cgroups that a session's processes join.
pub(super) fn make_cgroups(
    context: &Context,
    id: &SessionId,
    limits: &Limits,
) -> Result<Vec<PathBuf>, Failure> {
    context.host.cgroups.make(id, limits).map_err(|error| {
        Failure::while_making(format_args!("the cgroups of session {id} cannot be made"), &error)
    })
}

fn policy_of(wanted: &CreateSession) -> Result<Policy, Failure> {
    let asked = wanted.policy.clone().unwrap_or_default();
    asked.resolve().map_err(|error| Failure::new(ErrorCode::BadRequest, error.to_string()))
}

/// A session's owner, and the handle by which the node reaches it. The keeper must answer the attach.
pub(super) fn assemble(
    context: &Arc<Context>,
    machine: SessionMachine,
    log: SessionLog,
    link: KeeperLink,
    spec: Spec,
) -> (Actor, Handle) {
    let config = &context.config;
    let created = &log.facts().created;
    let id = created.id.clone();
    let (sender, inbox) = mpsc::channel(INBOX_MAX);
    let (seen, seen_receiver) = watch::channel(log.facts().last_seq);
    let info = Arc::new(Mutex::new(info_with(log.facts(), machine.state(), &spec)));
    let clients = ClientPresence::default();
    let egress = spec
        .hosts()
        .map(|rules| Arc::new(Ledger::new(rules, Box::new(Inbox(sender.clone())), now_ms)));
    let handle = Handle {
        id: id.clone(),
        inbox: sender,
        info: info.clone(),
        seen: seen_receiver,
        reader: log.reader(),
        egress,
        family: spec.family.clone().unwrap_or_else(|| id.clone()),
        room: spec.room.clone(),
        clients: clients.clone(),
    };
    let calls = ToolCalls::new(spec.caller(created));
    let wall_s = spec.wall_s();
    let wall_at = limits::wall_end(created.created_at_ms, wall_s);
    let idle = IdleWatch::new(spec.idle_s, config.session_idle, clients);
    let mut life = Lifetime::new(idle, wall_s, wall_at);
    (life.cgroups, life.tmp) = (spec.cgroups, spec.tmp);
    let deadlines = Deadlines::new(spec.deadline_ms, config.deadline);
    let grace = Duration::from_millis(spec.interrupt_grace_ms);
    let mut keeper = KeeperSide::new(link, spec.zygote_of, config.keeper_patience);
    keeper.expect_answer();
    let actor = Actor {
        id,
        context: context.clone(),
        machine,
        inbox,
        round: Round::default(),
        journal: JournalSide::new(log),
        keeper,
        queue: TurnQueue::new(deadlines, grace),
        calls,
        fork: ForkSide::new(spec.room),
        view: PublicView::new(info, seen),
        life,
    };
    (actor, handle)
}

/// A session from its journal: what clients are shown of it. Without its policy it is not shown, since
/// what the policy hides is found by it.
pub(crate) fn info(facts: &SessionFacts, state: SessionState) -> Result<api::Session, Failure> {
    Ok(info_with(facts, state, &Spec::of(&facts.created)?))
}

fn info_with(facts: &SessionFacts, state: SessionState, spec: &Spec) -> api::Session {
    api::Session {
        id: facts.created.id.clone(),
        state,
        worker: facts.worker.clone().unwrap_or_default(),
        kind: facts.created.worker_kind.clone(),
        workspace: facts.created.workspace.clone(),
        created_at_ms: facts.created.created_at_ms,
        turn: None,
        waiting: 0,
        turns: facts.last_turn.0,
        seq: facts.last_seq,
        restarts: facts.restarts,
        keeper_pid: None,
        worker_pid: facts.worker_pid,
        started_by: facts.started_by,
        capabilities: facts.capabilities.clone(),
        hold: None,
        policy: spec.policy.clone().map(Box::new),
        owner: spec.owner.clone(),
        forked_from: spec.forked_from.clone(),
        confinement: facts.confinement.clone(),
        output_bytes: facts.output_bytes,
        output_dropped_bytes: facts.output_dropped_bytes,
        messages_dropped: facts.messages_dropped,
        idle_s: spec.idle_s,
        deadline_ms: spec.deadline_ms,
        ended: facts.ended.clone(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn exists(id: &SessionId) -> Failure {
    Failure::new(ErrorCode::SessionExists, format!("there is or was a session {id}"))
}

pub(super) fn creation_failed(id: &SessionId, error: &CreateError) -> Failure {
    match error {
        CreateError::AlreadyExists(_) => exists(id),
        CreateError::Append(AppendError::DiskFull { .. }) => {
            Failure::new(ErrorCode::DiskFull, format!("the journal has no room for session {id}"))
        }
        CreateError::Append(error @ AppendError::TooLarge { .. }) => {
            let message = format!("the journal has no record for session {id}: {error}");
            Failure::new(ErrorCode::MessageTooLarge, message)
        }
        other => {
            Failure::while_making(format_args!("the journal of session {id} cannot be made"), other)
        }
    }
}

pub(super) fn internal(message: &str) -> Failure {
    Failure::internal(message)
}

//! Makes a new session: its resources, its journal, its keeper and its owner task.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use windlass_client::stream::LeanStream;
use windlass_journal::{AppendError, CreateError, NewSession, SessionFacts, SessionLog};
use windlass_lifecycle::SessionMachine;
use windlass_lifecycle::link::NodeHalf;
use windlass_protocol::api::{self, CreateSession, Durability, SessionState};
use windlass_protocol::event::StartedBy;
use windlass_protocol::kinds::agent::engine_of;
use windlass_protocol::link::Launch;
use windlass_protocol::policy::{Limits, Policy};
use windlass_protocol::{ClientName, ErrorCode, SessionId};

use super::actor::Actor;
use super::branch::WorkspaceCopy;
use super::calls::{ClaimingAgent, ToolCalls};
use super::children::{self, Inheritance};
use super::copying::copy::NotCopied;
use super::deadlines::Deadlines;
use super::fork::ForkSide;
use super::idle::{ClientPresence, IdleWatch};
use super::journal_side::JournalSide;
use super::keeper_link::KeeperLink;
use super::keeper_side::KeeperSide;
use super::lifetime::Lifetime;
use super::limits;
use super::public_view::{PublicInfo, PublicView};
use super::refusals::RefusalWatch;
use super::round::Round;
use super::spec::Spec;
use super::trace::{SessionTrace, TRACEPARENT};
use super::turn_queue::TurnQueue;
use super::{INBOX_MAX, OwnerInbox, Request, SessionHandle, preparing};
use crate::audit::SessionAudit;
use crate::clock::now_ms;
use crate::config::StartBy;
use crate::context::Context;
use crate::disk::SessionClaims as _;
use crate::failure::Failure;
use crate::fleet::FleetClaim;
use crate::packages::UsedEnvironment;
use crate::provision::{
    KeeperEndpoint, Lease, SessionResources, SessionSpec, WorkerParts, WorkerStart,
};
use crate::session_dirs;
use crate::tenant_usage::MeasuredCgroups;
use crate::workers::Workers;
use windlass_egress::Ledger;
use windlass_telemetry::TraceParent;

/// How long a keeper may take to read its launch message, if the message does not fit into its socket buffer.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);

const NOT_REPLICATED: &str = "a session with durability \"replicated\" needs a fleet, and this node is in none; create it \
    without `durability`, or send it to a node of a fleet";

/// Makes a session: journal, keeper, owner. `first` is put into the inbox before any other request can be.
pub(crate) async fn create(
    context: &Arc<Context>,
    id: SessionId,
    mut wanted: CreateSession,
    origin: SessionOrigin,
    first: Option<Request>,
) -> Result<MadeSession, Failure> {
    if wanted.durability == Durability::Replicated && context.fleet().is_none() {
        return Err(Failure::new(ErrorCode::BadRequest, NOT_REPLICATED));
    }
    let inherited = Inheritance::of(context, &mut wanted)?;
    let parent = inherited.as_ref().map(|inherited| &inherited.parent);
    let reserved = context.sessions.reserve(&id, parent).await;
    let failure = |why| children::refusal(&why, parent).unwrap_or_else(|| exists(&id));
    reserved.map_err(failure)?;
    // The client may disconnect meanwhile. A task of its own finishes the session in any case.
    let order = SessionOrder { wanted, inherited, origin };
    let made = tokio::spawn(make_reserved(context.clone(), id, order, first));
    made.await.map_err(|error| internal(&error.to_string()))?
}

/// Where the request for a session comes from.
#[derive(Debug, Default)]
pub(crate) struct SessionOrigin {
    /// The program that wants the session.
    pub client: Option<ClientName>,
    /// The client's span.
    pub trace: Option<TraceParent>,
}

/// What a client wants, and what the session has from its parent.
#[derive(Debug)]
struct SessionOrder {
    wanted: CreateSession,
    inherited: Option<Inheritance>,
    origin: SessionOrigin,
}

/// Makes a session whose id is reserved. If that fails, frees the id.
async fn make_reserved(
    context: Arc<Context>,
    id: SessionId,
    order: SessionOrder,
    first: Option<Request>,
) -> Result<MadeSession, Failure> {
    let (claim, made) = match claim_new(&context, &id).await {
        Ok(claim) => (claim, make(&context, id.clone(), order).await),
        Err(failure) => (None, Err(failure)),
    };
    match made {
        Ok((actor, MadeSession { handle, left_out, environment })) => {
            let first = first.filter(|_| context.confirm_claim(claim.as_ref()).is_ok());
            let may_run = first.is_some();
            if let Some(first) = first {
                handle.send(first).await?;
            }
            context.admit(handle.clone());
            context.metrics.session_created();
            preparing::make_missing(&context, &handle);
            tokio::spawn(actor.run());
            children::end_if_orphan(&context, &handle);
            if context.host.placeholders.are_needed_by(&id) && context.host.placeholders.are_few() {
                let context = context.clone();
                drop(tokio::task::spawn_blocking(move || context.host.placeholders.stock_up()));
            }
            let held = context.end_if_fenced(claim.as_ref(), &handle).await;
            // After a refusal the session is created on another node. A first turn that may have run must not run there.
            if !may_run {
                held?;
            }
            Ok(MadeSession { handle, left_out, environment })
        }
        Err(failure) => {
            context.forget_unmade(&id, claim).await;
            Err(failure)
        }
    }
}

/// Claims the name of a new session in the fleet, unless this node has or had a session of that name: the entry of an
/// ended session stays as it is then.
pub(super) async fn claim_new(
    context: &Context,
    id: &SessionId,
) -> Result<Option<FleetClaim>, Failure> {
    if context.journal.has_session(id) {
        return Err(exists(id));
    }
    context.claim_name(id).await
}

async fn make(
    context: &Arc<Context>,
    id: SessionId,
    order: SessionOrder,
) -> Result<(Actor, MadeSession), Failure> {
    let prepared = {
        let (context, id) = (context.clone(), id.clone());
        // This writes to the disk and starts a process, so it must not block the thread that serves turns.
        tokio::task::spawn_blocking(move || prepare(&context, &id, &order))
            .await
            .map_err(|error| internal(&error.to_string()))??
    };
    let facts = prepared.log.facts();
    let half = NodeHalf::new(facts.epoch, facts.last_link);
    let PreparedSession { log, keeper, launch, spec, resources, left_out, environment } = prepared;
    count_start(context, &log.facts().created.worker_kind, &keeper.start);
    let link = match reach_keeper(keeper, half, launch).await {
        Ok(link) => link,
        Err(error) => {
            drop(log);
            let (context, unmade) = (context.clone(), id.clone());
            // The join fails only when the runtime stops.
            let _ = tokio::task::spawn_blocking(move || {
                unrecord(&context, &unmade);
                context.host.provision.release(&resources);
                remove_copy(&context, &spec, &resources.dir.workspace);
            })
            .await;
            return Err(Failure::of_keeper(&id, &error));
        }
    };
    let (actor, handle) = assemble(context, SessionMachine::default(), log, link, spec);
    Ok((actor, MadeSession { handle, left_out, environment }))
}

/// Counts how the first worker of a session starts.
fn count_start(context: &Context, kind: &str, start: &WorkerStart) {
    let (start, is_pooled) = match start {
        WorkerStart::Exec => (StartedBy::Exec, false),
        WorkerStart::Zygote(_) => (StartedBy::Zygote, false),
        WorkerStart::Pool(_) => (StartedBy::Pool, true),
    };
    context.metrics.session_starts(kind, start);
    if context.config.start == StartBy::Pool {
        context.metrics.pool_claimed(kind, is_pooled);
    }
}

/// Connects to a session's keeper and sends it the launch message.
async fn reach_keeper(
    KeeperEndpoint { socket, start }: KeeperEndpoint,
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
    // The client is answered only after the launch is in the keeper's socket, so the session exists even if
    // this node dies then. If the keeper does not read in time, the session's owner deals with that.
    match tokio::time::timeout(LAUNCH_WAIT, link.flushed()).await {
        Ok(told) => told.map(|()| link),
        Err(_) => Ok(link),
    }
}

struct PreparedSession {
    log: SessionLog,
    keeper: KeeperEndpoint,
    launch: Box<Launch>,
    spec: Spec,
    /// Released if the keeper cannot be reached.
    resources: SessionResources,
    left_out: NotCopied,
    /// Held until the session can be seen to use it.
    environment: Option<UsedEnvironment>,
}

/// A new session, and what is not in the copy of its workspace.
#[derive(Debug)]
pub(crate) struct MadeSession {
    pub handle: SessionHandle,
    pub left_out: NotCopied,
    /// Held until the session is listed. Then its summary names the environment.
    environment: Option<UsedEnvironment>,
}

fn prepare(
    context: &Context,
    id: &SessionId,
    SessionOrder { wanted, inherited, origin }: &SessionOrder,
) -> Result<PreparedSession, Failure> {
    let mut wanted = wanted.clone();
    let policy = policy_for(context, id, &mut wanted, inherited.as_ref())?;
    let limits = policy.limits;
    if context.journal.has_session(id) {
        return Err(exists(id));
    }
    // Twins of an earlier session with this id have its temporary directory with its packages, and its rules for secrets.
    if context.has_family(id) {
        let message = format!("a twin of an earlier session {id} still lives");
        return Err(Failure::new(ErrorCode::SessionExists, message));
    }
    if !policy.secrets.is_empty() {
        // Makes the proxy's certificates before the session's code can look for them.
        context.host.secrets.prepare()?;
    }
    let copy = WorkspaceCopy::make(context, id, &wanted, &policy)?;
    let (mut copied_from, mut left_out) = (None, NotCopied::default());
    if let Some(copy) = copy {
        wanted.workspace = Some(copy.path.display().to_string());
        (copied_from, left_out) = (Some(copy.from), copy.left_out);
    }
    // Held until the session is listed as one that uses the environment.
    let environment = context.host.packages.for_session(&wanted)?;
    if let Some(used) = &environment {
        wanted.interpreter = Some(used.venv.display().to_string());
    }
    let wanted = &wanted;
    let in_new_workspace = match inherited {
        Some(inherited) => inherited.in_new_workspace,
        None => wanted.workspace.is_none(),
    };
    let venv = environment.as_ref().map(|used| &*used.venv);
    let spec = SessionSpec { id, wanted, policy: &policy, in_new_workspace, environment: venv };
    let acquired = context.host.provision.acquire(&spec);
    if acquired.is_err() && copied_from.is_some() {
        session_dirs::remove(&context.config, &context.config.workspace_of(id));
    }
    let lease = acquired?;
    let spec = Spec {
        copied_from,
        client: origin.client.clone(),
        parent: inherited.as_ref().map(|inherited| inherited.parent.clone()),
        parent_family: inherited.as_ref().map(|inherited| inherited.family.clone()),
        trace: origin.trace,
        ..spec_of(context, wanted, policy, &lease)
    };
    match record(context, id, wanted, &lease, &spec) {
        Ok(log) => {
            let mut launch = launch_of(context, id, &lease, limits);
            let kind = log.facts().created.worker_kind.as_str();
            if let Some(timeout) = context.host.workers.ready_timeout(kind) {
                launch.start_timeout_ms = millis(timeout);
            }
            Ok(PreparedSession {
                log,
                keeper: lease.keeper,
                launch,
                spec,
                resources: lease.resources,
                left_out,
                environment,
            })
        }
        Err(failure) => {
            context.host.provision.release(&lease.resources);
            remove_copy(context, &spec, &lease.resources.dir.workspace);
            Err(failure)
        }
    }
}

/// Removes the workspace of a session that is not made, if it is a copy.
fn remove_copy(context: &Context, spec: &Spec, workspace: &Path) {
    if spec.copied_from.is_some() {
        session_dirs::remove(&context.config, workspace);
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
        workspace: lease.resources.dir.workspace.display().to_string(),
        worker_kind: lease.worker.recipe.name.clone(),
        spec: spec.record()?,
        quota_bytes: wanted
            .output_quota_bytes
            .unwrap_or(context.config.defaults.output_quota_bytes),
    };
    context.journal.create(new).map_err(|error| creation_failed(id, &error))
}

fn spec_of(context: &Context, wanted: &CreateSession, policy: Policy, lease: &Lease) -> Spec {
    let grace = context.config.defaults.interrupt_grace;
    let grace = wanted.interrupt_grace_ms.map_or(grace, Duration::from_millis);
    Spec {
        interrupt_grace_ms: millis(grace),
        policy: Some(policy),
        cgroups: lease.resources.cgroups.clone(),
        tmp: lease.resources.dir.tmp.clone(),
        owner: wanted.owner.clone(),
        environment: wanted.environment.clone(),
        terminal: wanted.terminal,
        room: Some(lease.resources.dir.family_dir.clone()),
        agent_home: lease.resources.dir.agent_home.clone(),
        zygote_of: lease.worker.zygote_of.clone(),
        idle_s: wanted.idle_s,
        deadline_ms: wanted.deadline_ms,
        durability: wanted.durability,
        env_has_traceparent: wanted.env.contains_key(TRACEPARENT),
        ..Spec::default()
    }
}

fn launch_of(context: &Context, id: &SessionId, lease: &Lease, limits: Limits) -> Box<Launch> {
    let (config, dir) = (&context.config, &lease.resources.dir);
    let WorkerParts { recipe, plan, egress, .. } = &lease.worker;
    let pooled = matches!(lease.keeper.start, WorkerStart::Pool(_));
    Box::new(Launch {
        session: id.clone(),
        argv: recipe.argv.clone(),
        env: recipe.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        cwd: dir.workspace.clone(),
        node_grace_ms: millis(config.keepers.node_grace),
        start_timeout_ms: millis(config.keepers.start_timeout),
        plan: plan.clone(),
        egress: egress.clone(),
        limits,
        cgroups: lease.resources.cgroups.clone(),
        from_zygote: matches!(lease.keeper.start, WorkerStart::Zygote(_)),
        socket: pooled.then(|| lease.keeper.socket.clone()),
        family: Some(dir.family_dir.clone()),
        scratch: dir.scratch(),
    })
}

/// Removes the journal of a session whose keeper could not be reached. The client gets an error, and the
/// session does not exist.
pub(super) fn unrecord(context: &Context, id: &SessionId) {
    if let Err(error) = context.journal.remove(id) {
        tracing::warn!(session = %id, %error, "cannot remove the journal of a session that was not made");
    }
}

/// Makes the cgroups for a session's processes.
pub(super) fn make_cgroups(
    context: &Context,
    id: &SessionId,
    limits: &Limits,
) -> Result<Vec<PathBuf>, Failure> {
    context.host.cgroups.make(id, limits).map_err(|error| {
        Failure::while_making(format_args!("cannot make the cgroups of session {id}"), &error)
    })
}

/// The policy of a new session, with limits that are within the quota of its tenant.
fn policy_for(
    context: &Context,
    id: &SessionId,
    wanted: &mut CreateSession,
    inherited: Option<&Inheritance>,
) -> Result<Policy, Failure> {
    let mut policy = match inherited {
        Some(inherited) => inherited.policy.clone(),
        None => policy_of(&context.host.workers, wanted)?,
    };
    context.host.packages.allow_in(wanted, &mut policy)?;
    let named = wanted.policy.as_ref().map(|policy| policy.limits).unwrap_or_default();
    policy.limits = context.claim_limits(id, &named, policy.limits)?;
    Ok(policy)
}

fn policy_of(workers: &Workers, wanted: &CreateSession) -> Result<Policy, Failure> {
    let asked = wanted.policy.as_ref().or_else(|| workers.policy(wanted));
    asked
        .cloned()
        .unwrap_or_default()
        .resolve()
        .map_err(|error| Failure::new(ErrorCode::BadRequest, error.to_string()))
}

/// The egress ledger of a session whose policy is a list of hosts.
fn ledger_of(
    context: &Context,
    id: &SessionId,
    spec: &Spec,
    owner: OwnerInbox,
) -> Option<Arc<Ledger>> {
    let ledger = Ledger::new(spec.hosts()?, Box::new(owner), now_ms);
    let rules = spec.policy.as_ref().map(|policy| policy.secrets.clone()).unwrap_or_default();
    if rules.is_empty() {
        return Some(Arc::new(ledger));
    }
    let family = spec.parent_family.as_ref().or(spec.family.as_ref()).unwrap_or(id);
    let secrets = context.host.secrets.for_family(family, rules);
    Some(Arc::new(ledger.with_secrets(secrets)))
}

/// Builds a session's owner and its handle. The attach is sent; the keeper must still answer it.
pub(super) fn assemble(
    context: &Arc<Context>,
    machine: SessionMachine,
    log: SessionLog,
    link: KeeperLink,
    spec: Spec,
) -> (Actor, SessionHandle) {
    let config = &context.config;
    let created = &log.facts().created;
    let id = created.id.clone();
    let (sender, inbox) = mpsc::channel(INBOX_MAX);
    let (seen, seen_receiver) = watch::channel(log.facts().last_seq);
    let info = Arc::new(PublicInfo::new(info_with(log.facts(), machine.state(), &spec)));
    let clients = ClientPresence::default();
    let owner = OwnerInbox { inbox: sender.clone(), decisions: context.metrics.egress() };
    let egress = ledger_of(context, &id, &spec, owner);
    let refusals = RefusalWatch::new(egress.clone(), &spec, machine.current());
    let handle = SessionHandle {
        id: id.clone(),
        inbox: sender,
        info: info.clone(),
        seen: seen_receiver,
        reader: log.reader(),
        egress,
        family: spec.family.clone().unwrap_or_else(|| id.clone()),
        room: spec.room.clone(),
        parent: spec.parent.clone(),
        durability: spec.durability,
        clients: clients.clone(),
        cgroups: Arc::new(MeasuredCgroups::new(spec.cgroups.clone())),
    };
    let agent = spec.agent_home.clone().map(|home| {
        let engine = engine_of(&created.worker_kind);
        ClaimingAgent { home, engine }
    });
    let telemetry = context.serving.telemetry.as_ref();
    let trace = SessionTrace::new(telemetry, created, &spec);
    let calls = ToolCalls::new(spec.caller(created), agent);
    let wall_s = spec.wall_s();
    let wall_at = limits::wall_end(created.created_at_ms, wall_s);
    let idle = IdleWatch::new(spec.idle_s, config.defaults.idle, clients);
    let mut life = Lifetime::new(idle, wall_s, wall_at);
    (life.cgroups, life.tmp) = (spec.cgroups, spec.tmp);
    life.audit = SessionAudit::new(&created.worker_kind, handle.egress.clone());
    let deadlines = Deadlines::new(spec.deadline_ms, config.defaults.deadline);
    let grace = Duration::from_millis(spec.interrupt_grace_ms);
    let ready = context.host.workers.ready_timeout(&created.worker_kind);
    let patience = config.keepers.patience_with(ready);
    let mut keeper = KeeperSide::new(link, spec.zygote_of, patience);
    keeper.expect_answer();
    let mut queue = TurnQueue::new(deadlines, grace);
    queue.refusals = refusals;
    let actor = Actor {
        id,
        context: context.clone(),
        machine,
        inbox,
        round: Round::default(),
        journal: JournalSide::new(log, context.metrics.dropped_output(), trace),
        keeper,
        queue,
        calls,
        fork: ForkSide::new(spec.room),
        view: PublicView::new(info, seen),
        life,
    };
    (actor, handle)
}

/// What clients see of a session, from its journal. Fails if the record has no readable policy, because the
/// policy says what is hidden.
pub(crate) fn info(facts: &SessionFacts, state: SessionState) -> Result<api::Session, Failure> {
    Ok(info_with(facts, state, &Spec::of(&facts.created)?))
}

fn info_with(facts: &SessionFacts, state: SessionState, spec: &Spec) -> api::Session {
    api::Session {
        id: facts.created.id.clone(),
        tenant: facts.created.id.tenant(),
        state,
        // The HTTP door names the node.
        node: None,
        worker: facts.worker.clone().unwrap_or_default(),
        kind: facts.created.worker_kind.clone(),
        workspace: facts.created.workspace.clone(),
        environment: spec.environment.clone(),
        terminal: spec.terminal,
        copied_from: spec.copied_from.clone(),
        created_at_ms: facts.created.created_at_ms,
        turn: None,
        waiting: 0,
        turns: facts.last_turn.0,
        seq: facts.last_seq,
        restarts: facts.restarts,
        keeper_pid: None,
        worker_pid: facts.worker_pid,
        started_by: facts.started_by,
        start_figures: facts.start_figures,
        capabilities: facts.capabilities.clone(),
        hold: None,
        policy: spec.policy.clone().map(Box::new),
        client: spec.client.clone(),
        owner: spec.owner.clone(),
        forked_from: spec.forked_from.clone(),
        parent: spec.parent.clone(),
        resume: facts.resume.clone(),
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
    Failure::new(ErrorCode::SessionExists, format!("session {id} exists or has existed"))
}

pub(super) fn creation_failed(id: &SessionId, error: &CreateError) -> Failure {
    match error {
        CreateError::AlreadyExists(_) => exists(id),
        CreateError::Append(AppendError::DiskFull { .. }) => Failure::new(
            ErrorCode::DiskFull,
            format!("no space left for the journal of session {id}"),
        ),
        CreateError::Append(error @ AppendError::TooLarge { .. }) => {
            let message = format!("the journal cannot record session {id}: {error}");
            Failure::new(ErrorCode::MessageTooLarge, message)
        }
        other => {
            Failure::while_making(format_args!("cannot make the journal of session {id}"), other)
        }
    }
}

pub(super) fn internal(message: &str) -> Failure {
    Failure::internal(message)
}

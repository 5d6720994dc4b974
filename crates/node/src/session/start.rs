//! How a session's owner comes to be for a new session.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use windlass_client::stream::LeanStream;
use windlass_journal::{AppendError, CreateError, Facts, NewSession, SessionLog};
use windlass_lifecycle::Session as Machine;
use windlass_lifecycle::link::NodeHalf;
use windlass_protocol::api::{self, CreateSession, SessionState};
use windlass_protocol::link::Launch;
use windlass_protocol::policy::{HostRules, Limits, Network, Policy};
use windlass_protocol::{ErrorCode, Owner, SessionId};

use super::actor::{Actor, Timers};
use super::alarm::Alarm;
use super::calls::OpenCalls;
use super::confine::Confined;
use super::deadlines::Deadlines;
use super::disk::Owed;
use super::fork::{ForkSide, rooms};
use super::idle::{ClientPresence, IdleWatch};
use super::keeper_link::KeeperLink;
use super::limits::{self, LimitsHeard};
use super::places;
use super::siting::{Sited, site};
use super::turns::Turns;
use super::{Handle, INBOX_MAX, Request};
use crate::clock::now_ms;
use crate::context::Context;
use crate::egress::Ledger;
use crate::environments::Claimed;
use crate::failure::Failure;
use crate::keepers;
use crate::tools::Caller;

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
pub(crate) fn original_of(facts: &Facts) -> Option<SessionId> {
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
    fn caller(&self, id: &SessionId) -> Caller {
        let rules = self.policy.as_ref().map_or_else(Vec::new, |policy| policy.tools.clone());
        Caller { session: id.clone(), owner: self.owner.clone(), rules }
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
    if !context.reserve(&id).await {
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
            if context.placeholders.are_needed_by(&id) && context.placeholders.are_few() {
                drop(tokio::task::spawn_blocking(move || context.placeholders.stock_up()));
            }
            Ok(handle)
        }
        Err(failure) => {
            context.starting.end(&id);
            // Whatever was made of it goes; a leftover that is busy is swept by the next node.
            context.cgroups.remove_of(&id);
            rooms::remove(&context.config, &context.config.tmp_of(&id));
            rooms::remove_empty(&context.config, &context.config.room_of(&id));
            places::give_back(&context.config, &id);
            context.placeholders.release(&id);
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
    let half = NodeHalf::new(context.epoch, prepared.log.facts().last_link);
    let Prepared { log, socket, launch, spec, zygote, claimed } = prepared;
    let link = match reach_keeper(claimed.as_ref(), socket, half, launch, zygote).await {
        Ok(link) => link,
        Err(error) => {
            drop(log);
            let (context, unmade) = (context.clone(), id.clone());
            // It fails only with the runtime.
            let _ = tokio::task::spawn_blocking(move || unrecord(&context, &unmade)).await;
            return Err(Failure::of_keeper(&id, &error));
        }
    };
    if let Some(claimed) = claimed {
        claimed.used();
    }
    let (mut actor, handle) = assemble(context, id, Machine::default(), log, link, spec);
    actor.timers.keeper = Some(Instant::now() + context.config.keeper_patience);
    Ok((actor, handle))
}

/// Connects to a session's keeper and tells it what it keeps.
async fn reach_keeper(
    claimed: Option<&Claimed>,
    socket: PathBuf,
    half: NodeHalf,
    launch: Box<Launch>,
    zygote: Option<OwnedFd>,
) -> std::io::Result<KeeperLink> {
    let mut link = match claimed {
        Some(claimed) => {
            let line = claimed.line().and_then(LeanStream::new)?;
            KeeperLink::over(line, socket, half, Some(launch))
        }
        None => KeeperLink::open_with(socket, half, Some(launch), zygote),
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
    socket: std::path::PathBuf,
    launch: Box<Launch>,
    spec: Spec,
    /// A connection to the zygote that forks its worker.
    zygote: Option<OwnedFd>,
    /// The worker that waited, where one did.
    claimed: Option<Claimed>,
}

fn prepare(context: &Context, id: &SessionId, wanted: &CreateSession) -> Result<Prepared, Failure> {
    let config = &context.config;
    let policy = policy_of(wanted)?;
    let Sited { workspace, recipe, confined, zygote, mut claimed } =
        site(context, id, wanted, &policy)?;
    let Confined { planned, egress, tmp, room, .. } = confined;
    let grace = wanted.interrupt_grace_ms.map_or(config.interrupt_grace, Duration::from_millis);
    let limits = policy.limits;
    let cgroups = match &claimed {
        Some(claimed) => claimed.cgroups.clone(),
        None => make_cgroups(context, id, &limits)?,
    };
    let spec = Spec {
        interrupt_grace_ms: millis(grace),
        policy: Some(policy),
        cgroups: cgroups.clone(),
        tmp,
        owner: wanted.owner.clone(),
        room: Some(room.clone()),
        zygote_of: zygote.as_ref().map(|_| recipe.interpreter.clone()),
        idle_s: wanted.idle_s,
        deadline_ms: wanted.deadline_ms,
        ..Spec::default()
    };
    let new = NewSession {
        id: id.clone(),
        created_at_ms: now_ms(),
        workspace: workspace.display().to_string(),
        worker_kind: recipe.kind.to_owned(),
        spec: spec.record()?,
        quota_bytes: wanted.output_quota_bytes.unwrap_or(config.output_quota_bytes),
    };
    let log = match claimed.as_mut().and_then(Claimed::take_spare) {
        Some(spare) => context.journal.create_in(spare, new),
        None => context.journal.create(new),
    }
    .map_err(|error| creation_failed(id, &error))?;
    let socket = match &claimed {
        Some(claimed) => claimed.socket.clone(),
        None => match start_keeper(context, id) {
            Ok(socket) => socket,
            Err(failure) => {
                drop(log);
                unrecord(context, id);
                return Err(failure);
            }
        },
    };
    // A worker that waited was forked already.
    let zygote = zygote.filter(|_| claimed.is_none()).and_then(|zygote| zygote.connect().ok());
    let bound = claimed.as_ref().is_some_and(Claimed::is_bound);
    let (plan, env) = match bound {
        // Its keeper has them.
        true => (String::new(), Vec::new()),
        false => (planned.text.clone(), recipe.env.into_iter().collect()),
    };
    let launch = Box::new(Launch {
        session: id.clone(),
        argv: recipe.argv,
        env,
        cwd: workspace,
        bound,
        node_grace_ms: millis(config.node_grace),
        start_timeout_ms: millis(config.start_timeout),
        plan,
        egress,
        limits,
        cgroups,
        from_zygote: zygote.is_some(),
        socket: claimed.as_ref().map(|claimed| claimed.socket.clone()),
        family: Some(room),
    });
    Ok(Prepared { log, socket, launch, spec, zygote, claimed })
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
    context.cgroups.make(id, limits).map_err(|error| {
        Failure::while_making(format_args!("the cgroups of session {id} cannot be made"), &error)
    })
}

/// Starts a keeper, and says where its socket is.
fn start_keeper(context: &Context, id: &SessionId) -> Result<PathBuf, Failure> {
    keepers::start(context, id).map_err(|error| {
        Failure::while_making(format_args!("the keeper of session {id} cannot be started"), &error)
    })
}

fn policy_of(wanted: &CreateSession) -> Result<Policy, Failure> {
    let asked = wanted.policy.clone().unwrap_or_default();
    asked.resolve().map_err(|error| Failure::new(ErrorCode::BadRequest, error.to_string()))
}

pub(super) fn assemble(
    context: &Arc<Context>,
    id: SessionId,
    machine: Machine,
    log: SessionLog,
    link: KeeperLink,
    spec: Spec,
) -> (Actor, Handle) {
    let (sender, inbox) = mpsc::channel(INBOX_MAX);
    let (seen, seen_receiver) = watch::channel(log.facts().last_seq);
    let info = Arc::new(Mutex::new(info_with(log.facts(), machine.state(), &spec)));
    let clients = ClientPresence::default();
    let egress = spec.hosts().map(|rules| Arc::new(Ledger::new(rules, sender.clone())));
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
    let caller = spec.caller(&id);
    // Of a twin that an earlier node made, the journal may know already that its worker has been up.
    let awaits_twin = spec.forked_from.is_some() && log.facts().worker.is_none();
    let wall_s = spec.wall_s();
    let wall = limits::wall_end(log.facts().created.created_at_ms, wall_s);
    let timers = Timers { wall, ..Timers::default() };
    let actor = Actor {
        id,
        context: context.clone(),
        machine,
        log,
        link,
        inbox,
        info,
        seen,
        turns: Turns::default(),
        caller,
        calls: OpenCalls::default(),
        waiters: Vec::new(),
        confirmations: Vec::new(),
        timers,
        alarm: Alarm::default(),
        idle: IdleWatch::new(spec.idle_s, context.config.session_idle, clients),
        deadlines: Deadlines::new(spec.deadline_ms, context.config.deadline),
        interrupt_grace_ms: spec.interrupt_grace_ms,
        wall_s,
        limits: LimitsHeard::default(),
        cgroups: spec.cgroups,
        tmp: spec.tmp,
        zygote_of: spec.zygote_of,
        records: Vec::new(),
        acts: Vec::new(),
        owed: Owed::default(),
        attached: None,
        closing: None,
        fork: ForkSide::new(spec.room, awaits_twin),
    };
    (actor, handle)
}

/// A session from its journal: what clients are shown of it. Without its policy it is not shown, since
/// what the policy hides is found by it.
pub(crate) fn info(facts: &Facts, state: SessionState) -> Result<api::Session, Failure> {
    Ok(info_with(facts, state, &Spec::of(&facts.created)?))
}

fn info_with(facts: &Facts, state: SessionState, spec: &Spec) -> api::Session {
    api::Session {
        id: facts.created.id.clone(),
        state,
        worker: facts.worker.clone().unwrap_or_default(),
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
    tracing::error!(message);
    Failure::new(ErrorCode::Internal, message)
}

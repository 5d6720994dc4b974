//! The life of a node: claim the runtime directory, take over the sessions of an earlier node, serve,
//! stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use windlass_audit::{AuditDetails, AuditLog};
use windlass_client::TokenError;
use windlass_fleet::credentials::{CredentialsError, NodeTls};
use windlass_journal::{Journal, JournalOptions, OpenError};
use windlass_procs::sched_slice::{SchedSlice, SliceTarget, set_slice};
use windlass_protocol::SessionId;
use windlass_protocol::api::StopSessions;
use windlass_telemetry::{Telemetry, TelemetrySetting};

use crate::config::{Config, Reach};
use crate::context::{Context, NodeParts};
use crate::doors::Doors;
use crate::fleet::{self, FleetNode, StandingFileError};
use crate::http::{self, DoorCertificate, DoorCertificateError, DoorScheme, Listener, TcpGate};
use crate::instance::{ClaimError, RuntimeDirClaim};
use crate::secrets::Secrets;
use crate::session::take_over::take_over;
use crate::session::writable_roots;
use crate::session::{Request, children};
use crate::trust::Trust;
use crate::workers::Workers;
use crate::{disk, keepers, provision, session_dirs};

/// Maximum time to wait for the cgroups of ended sessions to be empty when the node stops.
const STOP_CGROUPS: Duration = Duration::from_secs(2);

/// Maximum time to wait for sessions to end when the node stops.
const STOP_SESSIONS: Duration = Duration::from_secs(15);

/// Maximum time to wait for tool hosts to close their connections when the node stops.
const DETACH_HOSTS: Duration = Duration::from_millis(500);

/// Maximum time to wait for the last records of the audit log when the node stops.
const FINISH_AUDIT: Duration = Duration::from_secs(2);

/// Interval of the housekeeping: metrics upkeep and removal of old sessions.
const HOUSEKEEPING: Duration = Duration::from_secs(60);

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("the journal cannot be opened: {0}")]
    Journal(#[from] OpenError),
    #[error("{0} can be reached from other machines; pass --listen-anywhere to allow that")]
    NotThisMachine(SocketAddr),
    #[error("the TCP door cannot be encrypted: {0}")]
    Certificate(#[from] DoorCertificateError),
    #[error("the credentials of this node in its fleet cannot be used: {0}")]
    Fleet(#[from] CredentialsError),
    #[error(transparent)]
    FleetStanding(#[from] StandingFileError),
    #[error("cannot listen at {address}: {cause}")]
    Listen { address: SocketAddr, cause: io::Error },
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(
        "`session_uids` is set, and only a node that root runs can give its sessions user ids of their own; run the \
         node as root, or remove the setting"
    )]
    UserIdsNeedRoot,
    #[error("cannot {act}: {cause}")]
    Io { act: &'static str, cause: io::Error },
}

/// Runs a node until it is told to stop. `doors` are served in addition to the node's own door. `ready`
/// is called when clients can connect.
pub async fn run(mut config: Config, doors: Doors, ready: impl FnOnce()) -> Result<(), RunError> {
    if config.session_uids.is_some() && !rustix::process::geteuid().is_root() {
        return Err(RunError::UserIdsNeedRoot);
    }
    windlass_procs::memory::share_heaps();
    forbid_core_files();
    let failed = |act| move |cause| RunError::Io { act, cause };
    let (mut claim, listener) = RuntimeDirClaim::take(&config, doors.socket)?;
    let egress_listener = claim.listen(config.egress_socket())?;
    let descriptors = raise_descriptor_limit();
    set_slice(SliceTarget::CurrentThread, SchedSlice::Short);
    windlass_client::rotate_log(&keepers::log_path(&config));
    let socket = UnixListener::from_std(listener).map_err(failed("listen"))?;
    let egress_listener = UnixListener::from_std(egress_listener).map_err(failed("listen"))?;
    let mut listeners = vec![Listener::Socket(socket)];
    let tcp = open_tcp_door(&config, &mut listeners).await?;
    let tls = open_peer_door(&config, &mut listeners).await?;
    let journal = Journal::open(&config.state_dir, JournalOptions::default())?;
    // Recorded paths contain no symlinks. So a symlink that appears on one later was planted.
    config.state_dir =
        config.state_dir.canonicalize().map_err(failed("resolve the state directory"))?;
    // Not before the journal is open: the log must have one writer.
    let audit = AuditLog::start(config.audit_dir(), config.audit);
    session_dirs::sweep_staging(&config);
    let epoch = journal.next_epoch().map_err(failed("take an epoch"))?;
    let earlier = || writable_roots::of_journal(&journal);
    let trust = Arc::new(Trust::open(&config.state_dir, config.written_dirs(), earlier));
    let workers =
        Workers::prepare(&config, trust.clone()).map_err(failed("lay out the workers"))?;
    let secrets = Secrets::open(&config.state_dir).map_err(failed("read the secrets"))?;
    let secrets = secrets.recorded_in(audit.clone());
    let fleet = FleetNode::open(&config, tls)?.map(Arc::new);
    let telemetry = start_telemetry(&config, fleet.as_deref());
    let (agent_door, in_fleet) = (doors.agents, fleet.clone());
    let parts =
        NodeParts { workers, trust, secrets, agent_door, fleet: in_fleet, audit, telemetry };
    let context = Arc::new(Context::new(config, tcp, journal, epoch, parts));
    let reaped = context.clone();
    tokio::spawn(context.host.keepers.clone().reap(move || retry_cgroups(&reaped)));
    adopt(&context).await?;
    tokio::spawn(provision::tend(context.host.provision.clone()));
    let sessions = context.clone();
    let find = Arc::new(move |id: &SessionId| sessions.sessions.find(id)?.egress);
    tokio::spawn(windlass_egress::serve(egress_listener, descriptors, find));
    http::serve(listeners, descriptors, doors.router, &context);
    if let Some(fleet) = fleet {
        tokio::spawn(fleet::keep::keep(context.clone(), fleet));
    }
    note_start(&context);
    ready();
    tracing::info!(%epoch, sessions = context.sessions.count(), "the node serves");
    let sessions = until_stopped(&context).await.map_err(failed("listen to signals"))?;
    shut_down(&context, claim, sessions).await;
    Ok(())
}

/// Takes over what an earlier node left: sessions, and what was made for them.
async fn adopt(context: &Arc<Context>) -> Result<(), RunError> {
    take_over_all(context).await;
    context.host.agents.open(&context.sessions);
    children::end_orphans(context);
    context
        .host
        .cgroups
        .sweep(|id| SessionId::parse(id).is_ok_and(|id| context.sessions.knows(&id)));
    tokio::spawn(context.host.cgroups.clone().tend());
    context.host.placeholders.take_over(|id| context.sessions.knows(id));
    let packages = context.host.packages.clone();
    drop(tokio::task::spawn_blocking(move || packages.sweep()));
    let live = context.sessions.handles();
    let lives = |first: &SessionId| live.iter().any(|one| one.family == *first);
    let taken = context.host.user_ids.take_over(lives);
    taken.map_err(|cause| RunError::Io { act: "read the user ids of sessions", cause })?;
    context.host.secrets.live_rules.sweep(lives);
    Ok(())
}

/// Lets the next node start, ends or leaves the sessions, and ends what the node has started for itself.
async fn shut_down(context: &Arc<Context>, claim: RuntimeDirClaim, sessions: StopSessions) {
    tracing::info!(?sessions, "the node stops");
    let what = AuditDetails::default().with("sessions", serde_json::json!(sessions));
    context.serving.audit.decided("node.end", None, what);
    // Before a client can start the next node, which listens at the console's port if a login needs it.
    context.serving.console.stop_listening();
    claim.release();
    context.host.provision.clone().shut_down().await;
    leave_sessions(context, sessions).await;
    remove_cgroups(context).await;
    // Tool hosts that do not close in time are cut off.
    let _ = tokio::time::timeout(DETACH_HOSTS, context.tools.detach_all()).await;
    if let Some(telemetry) = &context.serving.telemetry {
        telemetry.shut_down().await;
    }
    let audit = context.serving.audit.log.clone();
    // The join fails only when the runtime stops.
    let _ = tokio::task::spawn_blocking(move || audit.finish(FINISH_AUDIT)).await;
}

/// Records that this node serves from now on.
fn note_start(context: &Context) {
    let identity = &context.identity;
    let sessions = u64::try_from(context.sessions.count()).unwrap_or(u64::MAX);
    let mut what = AuditDetails::default()
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("pid", u64::from(std::process::id()))
        .with("epoch", identity.epoch.0)
        .with("sessions", sessions);
    if let Some(address) = identity.tcp {
        what.add("listen", address.to_string());
    }
    if let Some(fleet) = &identity.fleet {
        what.add("node", fleet.name().to_string());
    }
    context.serving.audit.decided("node.start", None, what);
}

/// Starts the telemetry, if it is configured. A node runs without it if it cannot start.
fn start_telemetry(config: &Config, fleet: Option<&FleetNode>) -> Option<Arc<Telemetry>> {
    let settings = match &config.telemetry {
        TelemetrySetting::Off => return None,
        TelemetrySetting::On(settings) => settings.clone(),
        TelemetrySetting::Invalid(why) => {
            tracing::warn!(why, "the settings of telemetry cannot be used; no spans are sent");
            return None;
        }
    };
    let endpoint = settings.endpoint.authority.clone();
    match Telemetry::start(settings, fleet.map(|fleet| fleet.name().to_string())) {
        Ok(telemetry) => {
            tracing::info!(endpoint, "spans are sent");
            Some(Arc::new(telemetry))
        }
        Err(error) => {
            tracing::error!(%error, "telemetry cannot start; no spans are sent");
            None
        }
    }
}

/// Opens the TCP door, if one is configured. Returns the address that it listens at.
async fn open_tcp_door(
    config: &Config,
    listeners: &mut Vec<Listener>,
) -> Result<Option<SocketAddr>, RunError> {
    let Some(listen) = &config.listen else { return Ok(None) };
    let address = listen.address;
    if listen.reach == Reach::ThisMachine && !address.ip().is_loopback() {
        return Err(RunError::NotThisMachine(address));
    }
    let certificate = listen.tls.clone().map(DoorCertificate::load).transpose()?;
    let failed = |cause| RunError::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let scheme = if certificate.is_some() { DoorScheme::Https } else { DoorScheme::Http };
    let (token, named) = (config.token_file(), config.named_tokens_file());
    let gate = Box::new(TcpGate::new(address, scheme, token, named)?);
    let certificate = certificate.map(Box::new);
    listeners.push(Listener::Tcp { listener, gate, certificate });
    Ok(Some(address))
}

/// Opens the door for other nodes, if the node belongs to a fleet. Returns what identifies the node there.
async fn open_peer_door(
    config: &Config,
    listeners: &mut Vec<Listener>,
) -> Result<Option<NodeTls>, RunError> {
    let Some(fleet) = &config.fleet else { return Ok(None) };
    let address = fleet.listen;
    let tls = NodeTls::load(&fleet.credentials)?;
    let failed = |cause| RunError::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    listeners.push(Listener::Peers(listener, tls.clone()));
    Ok(Some(tls))
}

async fn take_over_all(context: &Arc<Context>) {
    let live = match context.journal.live_sessions() {
        Ok(live) => live,
        Err(error) => {
            tracing::error!(%error, "cannot list the sessions of earlier nodes");
            return;
        }
    };
    // Concurrently, because one keeper may answer slowly.
    let taken = live.iter().map(|id| async move {
        if let Err(error) = take_over(context, id).await {
            tracing::error!(session = %id, error, "cannot take over a session");
        }
    });
    join_all(taken).await;
    keepers::end_unknown(&context.config, &live);
}

/// Waits for a reason to stop. Returns whether the sessions end or stay.
async fn until_stopped(context: &Arc<Context>) -> io::Result<StopSessions> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut stop_request = context.stop.subscribe();
    let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
    loop {
        tokio::select! {
            // A service manager's stop, or an upgrade: the next node takes the sessions over.
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Ok(sessions) = stop_request.wait_for(Option::is_some) => {
                return Ok(sessions.unwrap_or(StopSessions::Keep));
            }
            () = long_unused(context) => return Ok(StopSessions::End),
            _ = housekeeping.tick() => keep_house(context),
        }
    }
    context.stop.send_replace(Some(StopSessions::Keep));
    Ok(StopSessions::Keep)
}

/// Returns when the node has had no session, no tool host and no request for its idle time.
async fn long_unused(context: &Context) {
    let Some(limit) = context.config.idle_exit else { return std::future::pending().await };
    loop {
        let unused = Duration::from_millis(context.sessions.unused_ms());
        if context.sessions.count() == 0 && context.tools.is_unused() {
            if unused >= limit {
                return;
            }
            tokio::time::sleep(limit - unused).await;
        } else {
            context.sessions.idle.notified().await;
        }
    }
}

fn keep_house(context: &Arc<Context>) {
    context.metrics.upkeep();
    retry_cgroups(context);
    let context = context.clone();
    // In the background: nothing waits for the removal of old sessions.
    tokio::spawn(async move { disk::keep_house(&context).await });
}

/// Retries the removal of cgroups. Called when a process has ended and once per housekeeping.
fn retry_cgroups(context: &Arc<Context>) {
    if context.host.cgroups.has_busy() {
        let context = context.clone();
        drop(tokio::task::spawn_blocking(move || context.host.cgroups.retry()));
    }
}

/// Removes the cgroups of ended sessions, within `STOP_CGROUPS`. The next node removes the rest.
async fn remove_cgroups(context: &Arc<Context>) {
    let all = async {
        let mut ended = signal(SignalKind::child())?;
        loop {
            let context = context.clone();
            let tried = tokio::task::spawn_blocking(move || {
                context.host.cgroups.retry();
                context.host.cgroups.has_busy()
            });
            if !tried.await.unwrap_or(false) {
                return io::Result::Ok(());
            }
            // An ended keeper leaves no process behind, so its cgroup can be removed then.
            ended.recv().await;
        }
    };
    let _ = tokio::time::timeout(STOP_CGROUPS, all).await;
}

async fn leave_sessions(context: &Arc<Context>, sessions: StopSessions) {
    let mut left = Vec::new();
    for handle in context.sessions.handles() {
        left.push(tokio::spawn(async move {
            match sessions {
                StopSessions::End => {
                    // An error means that the session has ended already.
                    let _ = handle.ask(|reply| Request::Close { grace_ms: 500, reply }).await;
                }
                StopSessions::Keep => {
                    let (reply, released) = oneshot::channel();
                    if handle.send(Request::Release { reply }).await.is_ok() {
                        let _ = released.await;
                    }
                }
            }
        }));
    }
    let all = async {
        for one in left {
            let _ = one.await;
        }
    };
    if tokio::time::timeout(STOP_SESSIONS, all).await.is_err() {
        tracing::warn!("some sessions did not end in time; the node stops without them");
    }
    if let Err(error) = context.journal.flush_index() {
        tracing::warn!(%error, "the index is behind; the next node catches up");
    }
}

/// The node's memory has the values of secrets, so a crash leaves no core file. At a limit of 1 the kernel neither
/// writes a file nor passes the core to a program; at 0 it would still do the latter.
fn forbid_core_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = rustix::process::Rlimit { current: Some(1), ..getrlimit(Resource::Core) };
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!(%error, "cannot forbid core files of the node");
    }
}

/// Raises the soft limit of open descriptors to the hard limit, because each session takes a few and the
/// usual soft limit is 1,024. Returns the limit of this node.
fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open descriptors");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

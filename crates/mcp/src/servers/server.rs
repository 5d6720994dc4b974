//! The life of one server: started, asked for its tools, called, and restarted when it ends. One
//! task owns it ([`McpServer::live`]). Calls come from any task and fail at once while the server
//! does not run.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::RoleClient;
use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject};
use rmcp::service::{Peer, ServiceError};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{self, ServerState};
use windlass_protocol::host::ToolError;

use super::config::{ServerEntry, ServerTransport};
use super::connection::{Lifecycle, PendingConnection, ServerConnection};
use super::process::ServerProcess;
use super::restart_pause::RestartPauses;
use super::result;
use super::tools::OfferedTool;

/// Most concurrent calls to one server. Further calls wait.
const CALLS_MAX: usize = 64;

/// Most calls that wait for one server. Another call is refused as `overloaded`.
const CALLS_WAITING_MAX: usize = 4096;

/// One configured server.
#[derive(Debug)]
pub(crate) struct McpServer {
    pub entry: ServerEntry,
    /// The windlass program, which holds the server's process.
    ours: PathBuf,
    status: Mutex<ServerStatus>,
    /// Permits for running calls.
    running_calls: Semaphore,
    /// Permits for running and waiting calls together.
    open_calls: Semaphore,
    calls: AtomicU64,
    /// Incremented when the server's tools or state change.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct ServerStatus {
    phase: ServerPhase,
    /// Why the server ended or failed to start the last time.
    reason: Option<String>,
    restarts: u64,
}

#[derive(Debug)]
enum ServerPhase {
    Starting,
    Running(Arc<RunningServer>),
    Waiting { until: Instant },
    Failed,
}

/// A running server.
#[derive(Debug)]
struct RunningServer {
    peer: Peer<RoleClient>,
    tools: Vec<OfferedTool>,
    pid: Option<u32>,
    /// Notified when a call finds the server unreachable.
    broken: Arc<Notify>,
}

impl McpServer {
    pub fn new(entry: ServerEntry, ours: PathBuf, changed: watch::Sender<u64>) -> Self {
        let (phase, reason) = match &entry.transport {
            Ok(_) => (ServerPhase::Starting, None),
            Err(why) => (ServerPhase::Failed, Some(why.clone())),
        };
        Self {
            entry,
            ours,
            status: Mutex::new(ServerStatus { phase, reason, restarts: 0 }),
            running_calls: Semaphore::new(CALLS_MAX),
            open_calls: Semaphore::new(CALLS_MAX + CALLS_WAITING_MAX),
            calls: AtomicU64::new(0),
            changed,
        }
    }

    /// Keeps the server running until `stopped`. Returns when no process of it is left.
    pub async fn live(&self, stopped: impl Future<Output = ()>) {
        let Ok(transport) = &self.entry.transport else { return };
        let mut stopped = pin!(stopped);
        let mut pauses = RestartPauses::default();
        let mut lifecycle = Lifecycle::Initialize;
        loop {
            let began = Instant::now();
            let life = self.one_life(transport, &mut lifecycle, stopped.as_mut()).await;
            let LifeEnd::Over(why) = life else { return };
            let pause = pauses.after(began.elapsed());
            tracing::warn!(server = self.entry.name, why, ?pause, "an mcp server is not running");
            self.set(ServerPhase::Waiting { until: Instant::now() + pause }, Some(why));
            tokio::select! {
                () = stopped.as_mut() => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.lock().restarts += 1;
            self.set(ServerPhase::Starting, None);
        }
    }

    /// One run of the server, from its start to its end.
    async fn one_life(
        &self,
        transport: &ServerTransport,
        lifecycle: &mut Lifecycle,
        stopped: impl Future<Output = ()>,
    ) -> LifeEnd {
        let (process, begun) = match transport {
            ServerTransport::Process(program) => {
                match ServerProcess::start(&self.ours, &self.entry.name, program) {
                    Ok((process, pipes)) => {
                        (Some(process), PendingConnection::over_pipes(pipes, *lifecycle))
                    }
                    Err(error) => return LifeEnd::Over(error.to_string()),
                }
            }
            ServerTransport::Http { uri, headers } => {
                (None, PendingConnection::over_http(uri, headers.clone(), *lifecycle))
            }
        };
        let end = {
            let working = pin!(self.work(begun, process.as_ref(), lifecycle));
            tokio::select! {
                why = working => LifeEnd::Over(why),
                () = stopped => LifeEnd::Stopped,
            }
        };
        // Its pipes are closed now. While it ends, its state shows that it offers no tools.
        self.set(ServerPhase::Starting, None);
        let last_words = match process {
            Some(process) => process.ended().await,
            None => None,
        };
        match (end, last_words) {
            (LifeEnd::Over(why), Some(last)) => LifeEnd::Over(format!("{why} ({last})")),
            (end, _) => end,
        }
    }

    /// Connects, lists the tools and waits for the end. Returns why the server is no longer usable.
    async fn work(
        &self,
        begun: PendingConnection,
        process: Option<&ServerProcess>,
        lifecycle: &mut Lifecycle,
    ) -> String {
        let wait = self.entry.start_wait;
        let started = timeout(wait, async {
            let connection = begun.connect().await?;
            let tools = self.list(&connection).await?;
            Ok::<_, super::connection::BeginError>((connection, tools))
        });
        let (connection, tools) = match started.await {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => {
                *lifecycle = error.next(*lifecycle);
                return error.to_string();
            }
            Err(_) => return format!("it was not ready within {} ms", wait.as_millis()),
        };
        let ServerConnection { peer, tool_list, over } = connection;
        let broken = Arc::new(Notify::new());
        let pid = process.and_then(ServerProcess::pid);
        let count = tools.len();
        tracing::info!(server = self.entry.name, pid, tools = count, "an mcp server runs");
        let running = |peer: &Peer<RoleClient>, tools| {
            let (peer, broken) = (peer.clone(), broken.clone());
            ServerPhase::Running(Arc::new(RunningServer { peer, tools, pid, broken }))
        };
        self.set(running(&peer, tools), None);
        let mut over = pin!(over);
        loop {
            tokio::select! {
                () = over.as_mut() => return "it has ended".to_owned(),
                () = broken.notified() => return "it cannot be reached any more".to_owned(),
                () = tool_list.changed() => {}
            }
            match timeout(wait, self.list_from(&peer)).await {
                Ok(Ok(tools)) => self.set(running(&peer, tools), None),
                Ok(Err(error)) => return format!("it does not list its tools: {error}"),
                Err(_) => return "it does not list its tools".to_owned(),
            }
        }
    }

    async fn list(
        &self,
        connection: &ServerConnection<impl Future<Output = ()>>,
    ) -> Result<Vec<OfferedTool>, super::connection::BeginError> {
        Ok(self.list_from(&connection.peer).await?)
    }

    async fn list_from(&self, peer: &Peer<RoleClient>) -> Result<Vec<OfferedTool>, ServiceError> {
        super::tools::list(peer, &self.entry).await
    }

    /// Calls a tool by the name that code uses. Dropping the future cancels the call on the server.
    pub async fn call(&self, tool: &str, arguments: JsonObject) -> Result<Value, ToolError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let name = &self.entry.name;
        let full = |_| error(ErrorCode::Overloaded, format!("too many calls wait for {name}"));
        let _open = self.open_calls.try_acquire().map_err(full)?;
        let _running = self.running_calls.acquire().await.expect("the semaphore is never closed");
        let gone =
            || error(ErrorCode::ToolHostGone, format!("the MCP server {name} is not running"));
        let Some(running) = self.running() else { return Err(gone()) };
        let offered = running.tools.iter().find(|offered| offered.offer.name == tool);
        let Some(offered) = offered else {
            let message = format!("the MCP server {name} no longer has the tool {tool}");
            return Err(error(ErrorCode::ToolNotFound, message));
        };
        let request =
            CallToolRequestParams::new(offered.original.clone()).with_arguments(arguments);
        match running.peer.call_tool_once(request).await {
            Ok(CallToolResponse::Complete(done)) => result::of(done),
            Ok(_) => Err(ToolError {
                message: format!("a tool of {name} asks for more input, which code cannot give"),
                code: None,
                kind: None,
            }),
            Err(fault) => Err(self.failed(fault, &running)),
        }
    }

    fn failed(&self, fault: ServiceError, running: &RunningServer) -> ToolError {
        let name = &self.entry.name;
        match fault {
            ServiceError::McpError(fault) => {
                ToolError { message: fault.message.into_owned(), code: None, kind: None }
            }
            ServiceError::TransportSend(_) | ServiceError::TransportClosed => {
                running.broken.notify_one();
                let message = format!("the MCP server {name} ended before it answered");
                error(ErrorCode::ToolHostGone, message)
            }
            fault => ToolError { message: format!("{name}: {fault}"), code: None, kind: None },
        }
    }

    /// The tools that the server offers now.
    pub fn offers(&self) -> Vec<OfferedTool> {
        self.running().map(|running| running.tools.clone()).unwrap_or_default()
    }

    pub fn look(&self) -> api::Server {
        let status = self.lock();
        let (state, running, until) = match &status.phase {
            ServerPhase::Starting => (ServerState::Starting, None, None),
            ServerPhase::Running(running) => (ServerState::Running, Some(running), None),
            ServerPhase::Waiting { until } => (ServerState::Waiting, None, Some(*until)),
            ServerPhase::Failed => (ServerState::Failed, None, None),
        };
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        api::Server {
            name: self.entry.name.clone(),
            group: self.entry.group.clone(),
            sessions: self.entry.sessions,
            state,
            reason: status.reason.clone(),
            restart_in_ms: left.map(millis),
            pid: running.and_then(|running| running.pid),
            tools: running.map_or(0, |running| running.tools.len()),
            calls: self.calls.load(Ordering::Relaxed),
            open_calls: CALLS_MAX + CALLS_WAITING_MAX - self.open_calls.available_permits(),
            restarts: status.restarts,
        }
    }

    fn running(&self) -> Option<Arc<RunningServer>> {
        match &self.lock().phase {
            ServerPhase::Running(running) => Some(running.clone()),
            _ => None,
        }
    }

    /// Sets the phase. A reason stays until another one replaces it.
    fn set(&self, phase: ServerPhase, reason: Option<String>) {
        let mut status = self.lock();
        status.phase = phase;
        status.reason = reason.or(status.reason.take());
        drop(status);
        self.changed.send_modify(|generation| *generation += 1);
    }

    fn lock(&self) -> MutexGuard<'_, ServerStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How one run of a server ended.
#[derive(Debug)]
enum LifeEnd {
    /// The server ended by itself, for this reason.
    Over(String),
    Stopped,
}

fn error(code: ErrorCode, message: String) -> ToolError {
    ToolError { message, code: Some(code), kind: None }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

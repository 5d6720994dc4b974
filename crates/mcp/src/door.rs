//! The MCP door and the state that its calls share. `handler` answers the requests.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{OnceCell, watch};
use windlass_client::{Client, ClientError};
use windlass_protocol::agent::PermissionPolicy;
use windlass_protocol::api::WorkerList;
use windlass_protocol::host::Within;
use windlass_protocol::policy::PolicyRequest;

use crate::sessions::SessionCache;

/// A connection attempt to a node. It may start the node.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Client, ClientError>> + Send>>;

/// Connects to the node when the first call needs it.
pub type Connect = Box<dyn Fn() -> Connecting + Send + Sync>;

/// How clients connect to the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Stdio,
    Http,
    /// The agent of a session sends requests by its session's tool calls.
    Agent,
}

/// The options of a door.
pub struct DoorOptions {
    pub connect: Connect,
    pub transport: Transport,
    /// The workspace of its sessions. `None`: each session gets a new directory.
    pub workspace: Option<PathBuf>,
    /// The policy of its sessions, unless a call names another one. `None`: the node's default.
    pub policy: Option<PolicyRequest>,
    /// The interpreter of its sessions. `None`: the one that the node finds.
    pub interpreter: Option<String>,
    /// Who answers the permissions that agents in its sessions ask for. `None`: the agent's default.
    pub permissions: Option<PermissionPolicy>,
}

/// The MCP server. Clones share one state.
#[derive(Clone)]
pub struct Door {
    pub(crate) shared: Arc<DoorShared>,
    /// The agent whose request is served.
    pub(crate) agent: Option<Arc<AgentSide>>,
}

/// The agent of a session, for one of its requests.
pub(crate) struct AgentSide {
    /// The call that carries the request.
    pub(crate) call: Within,
    /// A client that reaches only the children of the agent's session.
    client: OnceCell<Client>,
}

/// The state that all calls share.
pub(crate) struct DoorShared {
    connect: Connect,
    client: OnceCell<Client>,
    /// The node's kinds of worker, after a client asked for the tools.
    workers: OnceCell<WorkerList>,
    pub(crate) transport: Transport,
    pub(crate) workspace: Option<PathBuf>,
    pub(crate) policy: Option<PolicyRequest>,
    pub(crate) interpreter: Option<String>,
    pub(crate) permissions: Option<PermissionPolicy>,
    pub(crate) session_cache: SessionCache,
    /// Becomes true when the client has closed its end.
    pub(crate) gone: watch::Receiver<bool>,
    /// Kept so that the channel stays open: without a sender, `gone` would end.
    leave: watch::Sender<bool>,
}

impl Door {
    pub fn new(options: DoorOptions) -> Self {
        let DoorOptions { connect, transport, workspace, policy, interpreter, permissions } =
            options;
        let (leave, gone) = watch::channel(false);
        let (client, workers) = (OnceCell::new(), OnceCell::new());
        let session_cache = SessionCache::default();
        let shared = DoorShared {
            connect,
            client,
            workers,
            transport,
            workspace,
            policy,
            interpreter,
            permissions,
            session_cache,
            gone,
            leave,
        };
        Self { shared: Arc::new(shared), agent: None }
    }

    /// The door for one request of a session's agent. It reaches only the children of that session.
    pub(crate) fn for_agent(&self, call: Within) -> Self {
        let agent = AgentSide { call, client: OnceCell::new() };
        Self { shared: self.shared.clone(), agent: Some(Arc::new(agent)) }
    }

    /// The client of the node. Connects if this is the first call that needs it.
    pub(crate) async fn client(&self) -> Result<&Client, ClientError> {
        let shared = self.shared.client.get_or_try_init(|| (self.shared.connect)()).await?;
        let Some(agent) = &self.agent else { return Ok(shared) };
        let limited =
            || async { shared.limited_to_children_of(&agent.call.session).within(&agent.call) };
        Ok(agent.client.get_or_init(limited).await)
    }

    /// The node's kinds of worker, if a call has connected before. Never starts a node.
    pub(crate) async fn workers(&self) -> Option<&WorkerList> {
        let client = self.client_if_known()?;
        self.shared.workers.get_or_try_init(|| client.workers()).await.ok()
    }

    /// The client of the node, if a call has connected before.
    pub(crate) fn client_if_known(&self) -> Option<&Client> {
        match &self.agent {
            Some(agent) => agent.client.get(),
            None => self.shared.client.get(),
        }
    }

    /// The client has closed its end and no longer waits for answers.
    pub(crate) fn leave(&self) {
        self.shared.leave.send_replace(true);
    }
}

impl fmt::Debug for DoorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorOptions").field("workspace", &self.workspace).finish_non_exhaustive()
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door")
            .field("transport", &self.shared.transport)
            .field("workspace", &self.shared.workspace)
            .finish_non_exhaustive()
    }
}

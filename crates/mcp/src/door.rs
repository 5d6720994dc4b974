//! The MCP door and the state that its calls share. `handler` answers the requests.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{OnceCell, watch};
use windlass_client::{Client, ClientError};
use windlass_protocol::TenantName;
use windlass_protocol::agent::PermissionPolicy;
use windlass_protocol::api::WorkerList;
use windlass_protocol::host::Within;
use windlass_protocol::policy::PolicyRequest;

use crate::output::SeenOutput;
use crate::sessions::SessionCache;

/// A connection attempt to a node. It may start the node.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Client, ClientError>> + Send>>;

/// Connects to the node when the first call needs it.
pub type Connect = Box<dyn Fn() -> Connecting + Send + Sync>;

/// Where the sessions of a door work, and whose they are.
#[derive(Debug, Clone, Default)]
pub struct DoorScope {
    /// The workspace of its sessions. `None`: each session gets a new directory.
    pub workspace: Option<PathBuf>,
    /// The tenant of the token with which the door connects. `None`: the token has no tenant.
    pub tenant: Option<TenantName>,
}

/// A question to a node about the scope of the door.
pub type AskingScope = Pin<Box<dyn Future<Output = Result<DoorScope, ClientError>> + Send>>;

/// How a door learns its scope.
pub enum ScopeSource {
    Known(DoorScope),
    /// Only the node knows it. The door asks when the first call needs it, and again if the node did not answer.
    AskNode(Box<dyn Fn(Client) -> AskingScope + Send + Sync>),
}

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
    pub scope: ScopeSource,
    /// The policy of its sessions, unless a call names another one. `None`: the node's default.
    pub policy: Option<PolicyRequest>,
    /// The interpreter of its sessions. `None`: the one that the node finds.
    pub interpreter: Option<String>,
    /// Who answers the permissions that agents in its sessions ask for. `None`: the agent's default.
    pub permissions: Option<PermissionPolicy>,
    /// Whether the code of its Python sessions may install packages.
    pub allow_packages: bool,
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

/// The node of the door.
struct DoorNode {
    connect: Connect,
    client: OnceCell<Client>,
    scope: ScopeSource,
    /// The scope, if the node has told it.
    told_scope: OnceCell<DoorScope>,
    /// The node's kinds of worker, after a client asked for the tools.
    workers: OnceCell<WorkerList>,
}

/// The state that all calls share.
pub(crate) struct DoorShared {
    node: DoorNode,
    pub(crate) transport: Transport,
    pub(crate) policy: Option<PolicyRequest>,
    pub(crate) interpreter: Option<String>,
    pub(crate) permissions: Option<PermissionPolicy>,
    pub(crate) allow_packages: bool,
    pub(crate) session_cache: SessionCache,
    /// How far the replies went, if the door has one client only.
    pub(crate) seen: Option<Arc<SeenOutput>>,
    /// Becomes true when the client has closed its end.
    pub(crate) gone: watch::Sender<bool>,
}

impl Door {
    pub fn new(options: DoorOptions) -> Self {
        let DoorOptions {
            connect,
            transport,
            scope,
            policy,
            interpreter,
            permissions,
            allow_packages,
        } = options;
        let node = DoorNode {
            connect,
            client: OnceCell::new(),
            scope,
            told_scope: OnceCell::new(),
            workers: OnceCell::new(),
        };
        let session_cache = SessionCache::default();
        let seen = (transport == Transport::Stdio).then(Arc::default);
        let shared = DoorShared {
            node,
            transport,
            policy,
            interpreter,
            permissions,
            allow_packages,
            session_cache,
            seen,
            gone: watch::Sender::new(false),
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
        let shared = self.shared.node.client().await?;
        let Some(agent) = &self.agent else { return Ok(shared) };
        let limited =
            || async { shared.limited_to_children_of(&agent.call.session).within(&agent.call) };
        Ok(agent.client.get_or_init(limited).await)
    }

    /// Where the sessions of the door work, and whose they are. Connects if only the node knows that.
    pub(crate) async fn scope(&self) -> Result<&DoorScope, ClientError> {
        self.shared.node.scope().await
    }

    /// The node's kinds of worker, if a call has connected before. Never starts a node.
    pub(crate) async fn workers(&self) -> Option<&WorkerList> {
        let client = self.client_if_known()?;
        self.shared.node.workers.get_or_try_init(|| client.workers()).await.ok()
    }

    /// The client of the node, if a call has connected before.
    pub(crate) fn client_if_known(&self) -> Option<&Client> {
        match &self.agent {
            Some(agent) => agent.client.get(),
            None => self.shared.node.client.get(),
        }
    }

    /// The client has closed its end and no longer waits for answers.
    pub(crate) fn leave(&self) {
        self.shared.gone.send_replace(true);
    }
}

impl DoorNode {
    async fn client(&self) -> Result<&Client, ClientError> {
        // The door finds its sessions by name in the list of its node.
        let connect =
            || async { Ok::<_, ClientError>((self.connect)().await?.with_sessions_here()) };
        self.client.get_or_try_init(connect).await
    }

    async fn scope(&self) -> Result<&DoorScope, ClientError> {
        match &self.scope {
            ScopeSource::Known(scope) => Ok(scope),
            ScopeSource::AskNode(ask) => {
                let client = self.client().await?;
                self.told_scope.get_or_try_init(|| ask(client.clone())).await
            }
        }
    }
}

impl fmt::Debug for ScopeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(scope) => f.debug_tuple("Known").field(scope).finish(),
            Self::AskNode(_) => f.debug_tuple("AskNode").finish_non_exhaustive(),
        }
    }
}

impl fmt::Debug for DoorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorOptions").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door")
            .field("transport", &self.shared.transport)
            .field("scope", &self.shared.node.scope)
            .finish_non_exhaustive()
    }
}

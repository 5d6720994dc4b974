//! The client: which node it talks to, whether it may start that node, and how it connects. The
//! requests are in `endpoints`; `call` sends and retries them.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use tokio::time::sleep;
use windlass_protocol::api::CLIENT_HEADER;
use windlass_protocol::fleet::{PLACED_HERE, PLACEMENT_HEADER};
use windlass_protocol::host::{PARENT_HEADER, WITHIN_HEADER, Within};
use windlass_protocol::{ClientName, ErrorCode, SessionId};

use crate::address::{NodeAddress, RemoteNode};
use crate::call::{PAUSE_FIRST, PAUSE_MAX};
use crate::connection::{ConnectionPool, HttpConnection};
use crate::dirs::Dirs;
use crate::error::ClientError;
use crate::start::{NodeStartError, StartLock, launch_node};
use crate::timers::TimerPool;

/// How long a repeatable request is retried after its connection failed.
pub const RETRY_FOR_DEFAULT: Duration = Duration::from_secs(10);

/// What to do when no node listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartNode {
    /// Start one: `program node ARGS...`.
    IfAbsent { program: PathBuf, args: Vec<OsString> },
    /// Report that no node listens.
    Never,
}

/// Talks to one node. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
    /// The tool call that sends these requests, as a header value.
    within: Option<HeaderValue>,
    /// The session to whose children this client is limited, as a header value.
    parent: Option<HeaderValue>,
    /// Where the node makes the sessions that this client creates, as a header value.
    placement: Option<HeaderValue>,
    /// The program that sends these requests, as a header value.
    name: Option<HeaderValue>,
}

struct ClientShared {
    dirs: Dirs,
    start: StartNode,
    retry_for: Duration,
    pool: ConnectionPool,
    timers: TimerPool,
}

impl Client {
    /// Connects. Starts the node first if none runs and `start` allows it.
    pub async fn connect(dirs: Dirs, start: StartNode) -> Result<Self, ClientError> {
        let address = NodeAddress::Socket(dirs.socket());
        Self::connect_at(address, dirs, start).await
    }

    /// Connects to a node's TCP door. A remote node is never started from here, and `dirs` are the
    /// caller's directories: the client looks for nothing of that node in them.
    pub async fn connect_remote(remote: RemoteNode, dirs: Dirs) -> Result<Self, ClientError> {
        Self::connect_at(NodeAddress::Tcp(remote), dirs, StartNode::Never).await
    }

    async fn connect_at(
        address: NodeAddress,
        dirs: Dirs,
        start: StartNode,
    ) -> Result<Self, ClientError> {
        let client = Self::new(address, dirs, start, RETRY_FOR_DEFAULT);
        let first = match client.pool().take().await {
            Ok(connection) => connection,
            Err(cause) => client.reach(cause).await?,
        };
        client.pool().put(first);
        Ok(client)
    }

    /// A client of the same node with another retry time.
    #[must_use]
    pub fn with_retry_for(&self, retry_for: Duration) -> Self {
        self.changed(self.shared.start.clone(), retry_for)
    }

    /// A client of the same node that starts, or does not start, an absent node.
    #[must_use]
    pub fn with_start(&self, start: StartNode) -> Self {
        self.changed(start, self.shared.retry_for)
    }

    /// A client of the same node whose requests come from within a host tool's call. The node
    /// refuses a request that would wait for that call for ever.
    #[must_use]
    pub fn within(&self, call: &Within) -> Self {
        let header = HeaderValue::from_str(&call.to_string()).expect("letters, digits and slashes");
        Self { within: Some(header), ..self.clone() }
    }

    /// A client of the same node that is limited to the children of one session. The sessions that it creates are
    /// children of that session, and it reaches no other session.
    #[must_use]
    pub fn limited_to_children_of(&self, parent: &SessionId) -> Self {
        let header = HeaderValue::from_str(parent.as_str()).expect("letters and digits");
        Self { parent: Some(header), ..self.clone() }
    }

    /// A client of the same node whose sessions are made on that node, also if it belongs to a fleet.
    #[must_use]
    pub fn with_sessions_here(&self) -> Self {
        let header = HeaderValue::from_static(PLACED_HERE);
        Self { placement: Some(header), ..self.clone() }
    }

    /// A client of the same node that tells the name of its program. The node shows it with the sessions that the
    /// client creates.
    #[must_use]
    pub fn named(&self, name: &ClientName) -> Self {
        let header = HeaderValue::from_str(name.as_str()).expect("printable ASCII");
        Self { name: Some(header), ..self.clone() }
    }

    /// Whether this client is limited to the children of one session.
    pub fn is_limited(&self) -> bool {
        self.parent.is_some()
    }

    /// The headers that tell where these requests come from.
    pub(crate) fn origin(&self) -> impl Iterator<Item = (&'static str, &HeaderValue)> {
        let headers = [
            (WITHIN_HEADER, &self.within),
            (PARENT_HEADER, &self.parent),
            (PLACEMENT_HEADER, &self.placement),
            (CLIENT_HEADER, &self.name),
        ];
        headers.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }

    pub fn dirs(&self) -> &Dirs {
        &self.shared.dirs
    }

    pub(crate) fn pool(&self) -> &ConnectionPool {
        &self.shared.pool
    }

    pub(crate) fn timers(&self) -> &TimerPool {
        &self.shared.timers
    }

    pub(crate) fn retry_for(&self) -> Duration {
        self.shared.retry_for
    }

    /// A connection after a plain connect failed with `cause`: starts the node if that is allowed.
    pub(crate) async fn reach(&self, cause: io::Error) -> Result<HttpConnection, ClientError> {
        let absent =
            matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        let StartNode::IfAbsent { program, args } = &self.shared.start else {
            return Err(self.unreachable(cause));
        };
        if !absent {
            return Err(self.unreachable(cause));
        }
        let lock = StartLock::take(&self.shared.dirs).await?;
        // The previous holder of the lock has probably started the node.
        if let Ok(connection) = HttpConnection::open(self.pool().address()).await {
            return Ok(connection);
        }
        match launch_node(program, &self.shared.dirs, args, &[]).await {
            Ok(node) => node.detach(),
            // Another node is starting or stopping at this moment: a user may have started it by
            // hand.
            Err(NodeStartError::Refused(error)) if error.code == ErrorCode::AlreadyRunning => {}
            Err(error) => return Err(error.into()),
        }
        let reached = self.open_patiently().await;
        drop(lock);
        reached.map_err(|cause| self.unreachable(cause))
    }

    async fn open_patiently(&self) -> io::Result<HttpConnection> {
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            match HttpConnection::open(self.pool().address()).await {
                Err(_) if began.elapsed() + pause < self.retry_for() => {
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                done => return done,
            }
        }
    }

    fn changed(&self, start: StartNode, retry_for: Duration) -> Self {
        let address = self.pool().address().clone();
        let changed = Self::new(address, self.shared.dirs.clone(), start, retry_for);
        let (within, parent) = (self.within.clone(), self.parent.clone());
        let (placement, name) = (self.placement.clone(), self.name.clone());
        Self { within, parent, placement, name, ..changed }
    }

    fn new(address: NodeAddress, dirs: Dirs, start: StartNode, retry_for: Duration) -> Self {
        let pool = ConnectionPool::new(address);
        Self {
            shared: Arc::new(ClientShared {
                dirs,
                start,
                retry_for,
                pool,
                timers: TimerPool::default(),
            }),
            within: None,
            parent: None,
            placement: None,
            name: None,
        }
    }

    fn unreachable(&self, cause: io::Error) -> ClientError {
        self.pool().address().unreachable(cause)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.pool().address().to_string())
            .finish_non_exhaustive()
    }
}

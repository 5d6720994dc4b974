//! The client itself: which node, whether it may be started, and how it is reached. The requests
//! are in `endpoints`, what happens to each of them in `call`.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use tokio::time::sleep;
use windlass_protocol::ErrorCode;
use windlass_protocol::host::Within;

use crate::address::{Address, Remote};
use crate::call::{PAUSE_FIRST, PAUSE_MAX};
use crate::connection::{Connection, Pool};
use crate::dirs::Dirs;
use crate::error::ClientError;
use crate::patience::Patience;
use crate::start::{StartError, StartLock, launch_node};

/// How long a request that may be repeated is repeated after its connection failed.
pub const RETRY_FOR_DEFAULT: Duration = Duration::from_secs(10);

/// What to do when no node listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartNode {
    /// Start one: `program node ARGS...`.
    IfAbsent { program: PathBuf, args: Vec<OsString> },
    /// Report it.
    Never,
}

/// A way to talk to one node. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// The call that its requests are made in, as they say it.
    within: Option<HeaderValue>,
}

struct Shared {
    dirs: Dirs,
    start: StartNode,
    retry_for: Duration,
    pool: Pool,
    patience: Patience,
}

impl Client {
    /// Connects, and starts the node first if there is none and `start` lets it.
    pub async fn connect(dirs: Dirs, start: StartNode) -> Result<Self, ClientError> {
        let address = Address::Socket(dirs.socket());
        Self::connect_at(address, dirs, start).await
    }

    /// Connects to a node's TCP door, which is never started from here. `dirs` are the caller's
    /// own: nothing of the node is looked for there.
    pub async fn connect_remote(remote: Remote, dirs: Dirs) -> Result<Self, ClientError> {
        Self::connect_at(Address::Tcp(remote), dirs, StartNode::Never).await
    }

    async fn connect_at(
        address: Address,
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

    /// The same node, with another patience for failed connections.
    #[must_use]
    pub fn with_retry_for(&self, retry_for: Duration) -> Self {
        self.changed(self.shared.start.clone(), retry_for)
    }

    /// The same node, started or not started when it is absent.
    #[must_use]
    pub fn with_start(&self, start: StartNode) -> Self {
        self.changed(start, self.shared.retry_for)
    }

    /// The same node, asked from within a host tool's call: what would wait for that call for ever
    /// is refused.
    #[must_use]
    pub fn within(&self, call: &Within) -> Self {
        let header = HeaderValue::from_str(&call.to_string()).expect("letters, digits and slashes");
        Self { shared: self.shared.clone(), within: Some(header) }
    }

    pub(crate) fn within_header(&self) -> Option<&HeaderValue> {
        self.within.as_ref()
    }

    pub fn dirs(&self) -> &Dirs {
        &self.shared.dirs
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(crate) fn patience(&self) -> &Patience {
        &self.shared.patience
    }

    pub(crate) fn retry_for(&self) -> Duration {
        self.shared.retry_for
    }

    /// A connection after a plain connect failed with `cause`.
    pub(crate) async fn reach(&self, cause: io::Error) -> Result<Connection, ClientError> {
        let absent =
            matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        let StartNode::IfAbsent { program, args } = &self.shared.start else {
            return Err(self.unreachable(cause));
        };
        if !absent {
            return Err(self.unreachable(cause));
        }
        let lock = StartLock::take(&self.shared.dirs).await?;
        // Whoever had the lock before us has probably started it.
        if let Ok(connection) = Connection::open(self.pool().address()).await {
            return Ok(connection);
        }
        match launch_node(program, &self.shared.dirs, args, &[]).await {
            Ok(node) => node.detach(),
            // One that someone started by hand is on its way up, or the last on its way down.
            Err(StartError::Refused(error)) if error.code == ErrorCode::AlreadyRunning => {}
            Err(error) => return Err(error.into()),
        }
        let reached = self.open_patiently().await;
        drop(lock);
        reached.map_err(|cause| self.unreachable(cause))
    }

    async fn open_patiently(&self) -> io::Result<Connection> {
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            match Connection::open(self.pool().address()).await {
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
        Self { within: self.within.clone(), ..changed }
    }

    fn new(address: Address, dirs: Dirs, start: StartNode, retry_for: Duration) -> Self {
        let pool = Pool::new(address);
        Self {
            shared: Arc::new(Shared {
                dirs,
                start,
                retry_for,
                pool,
                patience: Patience::default(),
            }),
            within: None,
        }
    }

    fn unreachable(&self, cause: io::Error) -> ClientError {
        ClientError::Unreachable { address: self.pool().address().to_string(), cause }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.pool().address().to_string())
            .finish_non_exhaustive()
    }
}

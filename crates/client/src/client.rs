//! The client itself: which node, whether it may be started, and how it is reached. The requests
//! are in `endpoints`, what happens to each of them in `call`.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use windlass_protocol::ErrorCode;

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
    /// Start one: `program node`.
    IfAbsent { program: PathBuf },
    /// Report it.
    Never,
}

/// A way to talk to one node. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
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
        let client = Self::new(dirs, start, RETRY_FOR_DEFAULT);
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
        Self::new(self.shared.dirs.clone(), self.shared.start.clone(), retry_for)
    }

    /// The same node, started or not started when it is absent.
    #[must_use]
    pub fn with_start(&self, start: StartNode) -> Self {
        Self::new(self.shared.dirs.clone(), start, self.shared.retry_for)
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
        let StartNode::IfAbsent { program } = &self.shared.start else {
            return Err(self.unreachable(cause));
        };
        if !absent {
            return Err(self.unreachable(cause));
        }
        let lock = StartLock::take(&self.shared.dirs).await?;
        // Whoever had the lock before us has probably started it.
        if let Ok(connection) = Connection::open(self.pool().socket()).await {
            return Ok(connection);
        }
        match launch_node(program, &self.shared.dirs, &[], &[]).await {
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
            match Connection::open(self.pool().socket()).await {
                Err(_) if began.elapsed() + pause < self.retry_for() => {
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                done => return done,
            }
        }
    }

    fn new(dirs: Dirs, start: StartNode, retry_for: Duration) -> Self {
        let pool = Pool::new(dirs.socket());
        Self {
            shared: Arc::new(Shared {
                dirs,
                start,
                retry_for,
                pool,
                patience: Patience::default(),
            }),
        }
    }

    fn unreachable(&self, cause: io::Error) -> ClientError {
        ClientError::Unreachable { socket: self.pool().socket().to_owned(), cause }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("socket", &self.pool().socket()).finish_non_exhaustive()
    }
}
